"""`rallypoint runs`: which runs a server has, or a register names."""

from __future__ import annotations

import argparse

from rallypoint.cli.arguments import add_endpoint_arguments, connect
from rallypoint.cli.output import show_table

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
        from rallypoint.cli.as_json import runs_as_json

        print(runs_as_json(answer))
    elif not answer.runs:
        print(f"There are no runs at {admin.where}.")
    else:
        rows = [(line.run_id, line.phase, str(line.round), str(line.nodes), line.situation) for line in answer.runs]
        show_table(("run", "phase", "round", "nodes", "situation"), rows)
        if answer.total > len(answer.runs):
            print(f"… and {answer.total - len(answer.runs)} more.")
    return 0
