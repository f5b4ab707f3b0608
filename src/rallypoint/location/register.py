"""The port to a register: where an elected server is found (rule 17).

A register holds one record per run and answers one question: which process serves this run?  An implementation is one
small file in `registers/`: a compare-and-set on a few hundred bytes.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from rallypoint.errors import RendezvousConnectionError

Token = Any
"""What a register uses to tell one version of a value from another; nobody else looks into it."""


class Entry(msgspec.Struct, frozen=True):
    """A value as a register holds it.  `claim_lives`: whether the claim's lease lives; None where the medium has none."""

    value: bytes
    token: Token
    claim_lives: bool | None = None


class RegisterRefusedError(RendezvousConnectionError):
    """The medium understood and refused, and will refuse again: a wrong password, a wrong certificate, something else.

    `problem` is the error that a node which joins is to see instead, where there is one.
    """

    def __init__(self, why: str, problem: Exception | None = None) -> None:
        super().__init__(why)
        self.problem = problem or self


class Register(Protocol):
    """One run's record in some medium.

    Calls block.  `read`, `write`, `resign` and `close` come one after another, from one thread; `wait` comes from another
    one.  RendezvousConnectionError means that nothing is known, RendezvousStateError that somebody else's value is there.
    """

    @property
    def is_hosted_here(self) -> bool | None:
        """Whether the medium lives in this process and dies with it; None where it lives in no node (rule 17b)."""

    def read(self) -> Entry | None:
        """What is there, as fresh as the medium allows; None where nothing is."""

    def write(self, value: bytes, token: Token | None) -> Entry | None:
        """Write where the token is still right, or, without one, where nothing is; None where another was first."""

    def wait(self, token: Token | None, timeout_s: float) -> Token | None:
        """Wait until the value may have changed since this token: a token of what is there then, None where time passed."""

    def stop_waiting(self) -> None:
        """End a `wait` that is under way, and listen for nothing more; from any thread."""

    def resign(self) -> None:
        """This process does not serve, or serves no longer: let go of all that its claims have left in the medium."""

    def close(self) -> None:
        """Let go of the medium."""
