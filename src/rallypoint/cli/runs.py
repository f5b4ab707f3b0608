"""`rallypoint runs`: which runs a server has, or a register names."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rallypoint.cli.arguments import declare_endpoint, visit
from rallypoint.cli.output import show_table

if TYPE_CHECKING:
    from rallypoint.report import RunLine

HELP = "list the runs of a server, or in etcd, a c10d store or a store file"


def declare(parser: argparse.ArgumentParser) -> None:
    """Say which arguments it takes."""
    declare_endpoint(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(given: argparse.Namespace) -> int:
    """List them, the first by name where there are very many."""
    with visit(given) as visitor:
        answer = visitor.runs()
    if given.json:
        import json

        print(json.dumps({"total": answer.total, "runs": [as_json(line) for line in answer.runs]}))
    elif not answer.runs:
        print(f"There are no runs at {visitor.where}.")
    else:
        rows = [(line.run_id, line.phase, str(line.round), str(line.nodes), line.situation) for line in answer.runs]
        show_table(("run", "phase", "round", "nodes", "situation"), rows)
        if answer.total > len(answer.runs):
            print(f"… and {answer.total - len(answer.runs)} more.")
    return 0


def as_json(line: RunLine) -> dict[str, object]:
    """A run in a line, for machines."""
    return {
        "run_id": line.run_id,
        "phase": line.phase,
        "round": line.round,
        "live": line.nodes,
        "situation": line.situation,
    }
