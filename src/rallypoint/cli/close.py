"""`rallypoint close`: close a run for everybody."""

from __future__ import annotations

import argparse

from rallypoint.cli.arguments import declare_endpoint, visit
from rallypoint.cli.output import printable

HELP = "close a run for everybody, as failed"


def declare(parser: argparse.ArgumentParser) -> None:
    """Say which arguments it takes."""
    parser.add_argument("run_id", metavar="RUN", help="the run to close")
    declare_endpoint(parser)
    parser.add_argument("--why", default="", metavar="TEXT", help="the reason that its nodes are told")


def run(given: argparse.Namespace) -> int:
    """Close it, and show what the server makes of it."""
    with visit(given) as visitor:
        visitor.close_run(given.run_id, given.why)
        status = visitor.status(given.run_id)
    situation = status.run.situation if status.run is not None else "closed"
    print(printable(f"run {given.run_id!r}: {situation}"))
    return 0
