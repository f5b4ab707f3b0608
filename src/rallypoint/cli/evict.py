"""`rallypoint evict`: give a node up, so that the others regroup without it."""

from __future__ import annotations

import argparse

from rallypoint.cli.arguments import declare_endpoint, visit
from rallypoint.cli.output import printable

HELP = "give a node up, so that the others regroup without it"


def declare(parser: argparse.ArgumentParser) -> None:
    """Say which arguments it takes."""
    parser.add_argument("run_id", metavar="RUN", help="the run that the node is in")
    parser.add_argument("node", metavar="NODE", help="the node's name or id, as `rallypoint status` shows them")
    declare_endpoint(parser)


def run(given: argparse.Namespace) -> int:
    """Evict it."""
    with visit(given) as visitor:
        visitor.evict(given.run_id, given.node)
    print(printable(f"node {given.node!r} was evicted from run {given.run_id!r}"))
    return 0
