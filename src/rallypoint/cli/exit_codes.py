"""The exit codes of `rallypoint`; docs/cli.md has them as a table."""

from __future__ import annotations

from enum import IntEnum

from rallypoint.errors import RendezvousConnectionError, RendezvousError


class ExitCode(IntEnum):
    """How a command ended."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    UNKNOWN_RUN = 4
    REFUSED = 5
    CLOSED = 6
    INTERRUPTED = 130


class UsageError(RendezvousError):
    """The arguments of a command cannot be used together, or with this endpoint."""


def exit_code_of(error: RendezvousError) -> ExitCode:
    """The exit code of a command that ends with this error."""
    from rallypoint import protocol
    from rallypoint.client.admin_client import UNANSWERED, NotDoneError

    reason = error.reason if isinstance(error, NotDoneError) else ""
    if isinstance(error, UsageError):
        return ExitCode.USAGE
    if isinstance(error, RendezvousConnectionError) or reason == UNANSWERED:
        return ExitCode.UNREACHABLE
    by_reason = {protocol.UNKNOWN_RUN: ExitCode.UNKNOWN_RUN, protocol.CLOSED: ExitCode.CLOSED}
    return by_reason.get(reason, ExitCode.REFUSED)
