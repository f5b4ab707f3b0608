"""`rallypoint close`: close a run for everybody."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rallypoint.cli.arguments import declare_endpoint, visit
from rallypoint.cli.output import printable
from rallypoint.errors import RendezvousError

if TYPE_CHECKING:
    from rallypoint.client.admin import Visitor
    from rallypoint.location.admin import RegisterVisitor

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
        situation = _situation(visitor, given.run_id)
    print(printable(f"run {given.run_id!r}: {situation}"))
    return 0


def _situation(visitor: Visitor | RegisterVisitor, run_id: str) -> str:
    """What became of it.  Its nodes may have ended by now, and with them its server or the store that names it."""
    try:
        line = visitor.status(run_id).run
    except RendezvousError:
        return "closed"
    return line.situation if line is not None else "closed"
