"""`rallypoint close`: close a run for everybody."""

from __future__ import annotations

import argparse
from contextlib import suppress

from rallypoint.cli.arguments import add_endpoint_arguments, add_why_argument, connect, run_name
from rallypoint.cli.output import printable
from rallypoint.errors import RendezvousError

HELP = "close a run for everybody, as failed"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that it takes."""
    parser.add_argument("run_id", type=run_name, metavar="RUN", help="the run to close")
    add_endpoint_arguments(parser)
    add_why_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Close it, and show what became of it."""
    situation = "closed"
    with connect(args) as admin:
        admin.close_run(args.run_id, args.why)
        # Its nodes may have ended by now, and with them its server or the store that names it.
        with suppress(RendezvousError):
            line = admin.status(args.run_id).run
            situation = line.situation if line is not None else situation
    print(printable(f"run {args.run_id!r}: {situation}"))
    return 0
