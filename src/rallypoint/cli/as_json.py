"""What `--json` prints: numbers, and times of the wall clock in ISO 8601 with their offset.  docs/cli.md lists the fields."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from rallypoint.cli.exit_codes import exit_code_of
from rallypoint.errors import RendezvousError

if TYPE_CHECKING:
    from rallypoint.protocol import Status
    from rallypoint.report import RunLine


def run_fields(line: RunLine) -> dict[str, object]:
    """One run."""
    return {
        "at": _iso_time(),
        "run_id": line.run_id,
        "phase": line.phase,
        "round": line.round,
        "live": line.nodes,
        "ending": line.ending or None,
        "sealed_at": None if line.sealed_ago_s is None else _iso_time(-line.sealed_ago_s),
        "waits_until": None if line.wait_left_s is None else _iso_time(line.wait_left_s),
        "situation": line.situation,
    }


def status_fields(status: Status) -> dict[str, object]:
    """One run with its nodes."""
    from msgspec.structs import asdict

    assert status.run is not None, "the server answers with a run, or says that there is none"
    low, _, high = status.bounds.partition(":")
    return {
        **run_fields(status.run),
        "min_nodes": int(low) if low.isdecimal() else None,
        "max_nodes": int(high or low) if low.isdecimal() else None,
        "nodes": [asdict(node) for node in status.nodes],
        "kept_out": [{**asdict(node), "until": _iso_time(node.left_s)} for node in status.kept_out],
        "messages": status.messages,
    }


def error_fields(error: RendezvousError) -> dict[str, object]:
    """Why there is no answer, with the exit code that a command would have."""
    return {"at": _iso_time(), "error": str(error), "exit_code": int(exit_code_of(error))}


def _iso_time(after_s: float = 0.0) -> str:
    """The time so many seconds from now."""
    return (datetime.now(timezone.utc) + timedelta(seconds=after_s)).isoformat(timespec="milliseconds")
