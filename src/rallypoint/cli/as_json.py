"""What `--json` prints: numbers, and times of the wall clock in ISO 8601 with their offset.  docs/cli.md lists the fields."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from rallypoint.cli.exit_codes import exit_code_of
from rallypoint.errors import RendezvousError

if TYPE_CHECKING:
    from rallypoint.protocol import Runs, Status
    from rallypoint.report import KeptOutLine, RunLine


def runs_as_json(answer: Runs) -> str:
    """The runs in a list, and how many there are."""
    now = _now()
    return json.dumps({"total": answer.total, "runs": [_run(line, now) for line in answer.runs]})


def status_as_json(status: Status) -> str:
    """One run with its nodes."""
    return json.dumps(_status(status, _now()))


def statuses_as_json(statuses: Sequence[Status]) -> str:
    """Several runs with their nodes, as a list."""
    now = _now()
    return json.dumps([_status(status, now) for status in statuses])


def error_as_json(error: RendezvousError) -> str:
    """Why there is no answer, with the exit code that a command would have."""
    return json.dumps({"at": _iso(_now()), "error": str(error), "exit_code": int(exit_code_of(error))})


def _status(status: Status, now: datetime) -> dict[str, object]:
    assert status.run is not None, "the server answers with a run, or says that there is none"
    low, _, high = status.bounds.partition(":")
    nodes = [
        {"name": node.name, "id": node.id, "standing": node.standing, "rank": node.rank, "address": node.address}
        for node in status.nodes
    ]
    return {
        **_run(status.run, now),
        "min_nodes": int(low) if low.isdecimal() else None,
        "max_nodes": int(high or low) if low.isdecimal() else None,
        "nodes": nodes,
        "kept_out": [_kept_out(node, now) for node in status.kept_out],
        "messages": status.messages,
    }


def _run(line: RunLine, now: datetime) -> dict[str, object]:
    return {
        "at": _iso(now),
        "run_id": line.run_id,
        "phase": line.phase,
        "round": line.round,
        "live": line.nodes,
        "ending": line.ending or None,
        "sealed_at": None if line.sealed_ago_s is None else _iso(now - timedelta(seconds=line.sealed_ago_s)),
        "waits_until": None if line.wait_left_s is None else _iso(now + timedelta(seconds=line.wait_left_s)),
        "situation": line.situation,
    }


def _kept_out(node: KeptOutLine, now: datetime) -> dict[str, object]:
    return {
        "name": node.name,
        "id": node.id,
        "address": node.address,
        "until": _iso(now + timedelta(seconds=node.left_s)),
        "left_s": node.left_s,
        "why": node.why,
    }


def _now() -> datetime:
    return datetime.now(timezone.utc)


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds")
