"""`rallypoint evict`: give a node up, so that the others regroup without it; or let it in again."""

from __future__ import annotations

import argparse

from rallypoint.cli.arguments import add_endpoint_arguments, add_why_argument, connect, duration, node_name, run_name
from rallypoint.cli.exit_codes import UsageError
from rallypoint.cli.output import printable

HELP = "give a node up and keep it out for a while, so that the others regroup without it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that it takes."""
    parser.add_argument("run_id", type=run_name, metavar="RUN", help="the run that the node is in")
    parser.add_argument(
        "node", type=node_name, metavar="NODE", help="the node's name or id, as `rallypoint status` shows them"
    )
    add_endpoint_arguments(parser)
    until = parser.add_mutually_exclusive_group()
    until.add_argument(
        "--for",
        dest="for_s",
        type=duration,
        metavar="TIME",
        help="how long it is kept out: 30s, 10m, 2h; 0 lets it come straight back (default: 30s, and twice as long with "
        "each further eviction of the node, up to 1h)",
    )
    until.add_argument("--lift", action="store_true", help="let the node in again, before its time is over")
    add_why_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Evict it, or lift its eviction."""
    if args.lift and args.why:
        raise UsageError("--why is the reason of an eviction, and --lift ends one: leave --why out")
    with connect(args) as admin:
        if args.lift:
            done = admin.lift(args.run_id, args.node)
        else:
            done = admin.evict(args.run_id, args.node, args.for_s, args.why)
    print(printable(done))
    return 0
