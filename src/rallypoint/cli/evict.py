"""`rallypoint evict`: give a node up, so that the others regroup without it; or let it in again."""

from __future__ import annotations

import argparse

from rallypoint.cli.arguments import declare_endpoint, duration, visit
from rallypoint.cli.output import printable
from rallypoint.errors import RendezvousError

HELP = "give a node up and keep it out for a while, so that the others regroup without it"


def declare(parser: argparse.ArgumentParser) -> None:
    """Say which arguments it takes."""
    parser.add_argument("run_id", metavar="RUN", help="the run that the node is in")
    parser.add_argument("node", metavar="NODE", help="the node's name or id, as `rallypoint status` shows them")
    declare_endpoint(parser)
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
    parser.add_argument("--why", default="", metavar="TEXT", help="the reason that the nodes are told")


def run(given: argparse.Namespace) -> int:
    """Evict it, or lift its eviction."""
    if given.lift and given.why:
        raise RendezvousError("--why is the reason of an eviction, and --lift ends one: leave --why out")
    with visit(given) as visitor:
        if given.lift:
            done = visitor.lift(given.run_id, given.node)
        else:
            done = visitor.evict(given.run_id, given.node, given.for_s, given.why)
    print(printable(done))
    return 0
