"""`rallypoint runs`: which runs a server has, or a register names."""

from __future__ import annotations

import argparse
import json

from rallypoint.cli.arguments import add_endpoint_arguments, connect
from rallypoint.cli.as_json import run_fields
from rallypoint.cli.output import Sentence, Table, show

HELP = "list the runs of a server, or in etcd, a c10d store or a store file"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that it takes."""
    add_endpoint_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """List them, the first by name where there are very many."""
    with connect(args) as admin:
        answer = admin.runs()
    if args.json:
        show(json.dumps({"total": answer.total, "runs": [run_fields(line) for line in answer.runs]}))
        return 0
    rows = [(line.run_id, line.phase, str(line.round), str(line.nodes), line.situation) for line in answer.runs]
    if not rows:
        show([Sentence(f"There are no runs at {admin.where}.")])
        return 0
    more = [Sentence(f"… and {answer.total - len(rows)} more.")] if answer.total > len(rows) else []
    show([Table(("run", "phase", "round", "nodes", "situation"), rows), *more])
    return 0
