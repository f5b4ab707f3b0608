"""From a plan to a running launcher: the membership, the output, the agent."""

from __future__ import annotations

import os
import socket
import sys

from rallypoint import net
from rallypoint.backends.endpoints import backend_at
from rallypoint.client.member import Member
from rallypoint.launcher.agent import Agent
from rallypoint.launcher.output import OutputRouter
from rallypoint.launcher.plan import Plan

__all__ = ["launch"]


def launch(plan: Plan) -> int:
    """Run a plan to its end; the exit code."""
    wants_colours = not os.environ.get("NO_COLOR")
    output = OutputRouter(
        coloured=(wants_colours and sys.stdout.isatty(), wants_colours and sys.stderr.isatty()),
        is_live=sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb",
    )
    for line in plan.notices:
        output.say(f"rallypoint: {line}")
    with socket.socket() as held:
        endpoint = plan.endpoint or own_endpoint(held)
        try:
            return Agent(plan, lambda: open_member(plan, endpoint), output).run()
        finally:
            output.close()


def own_endpoint(held: socket.socket) -> str:
    """Where a world of one node meets: a port that nobody else is given while it is held, and that our server may bind."""
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return net.written(*held.getsockname())


def open_member(plan: Plan, endpoint: str) -> tuple[Member, float]:
    """This node's membership, and how long its join may take."""
    config: dict[str, object] = {"rank": plan.wanted_rank, "store": "rallypoint", **plan.config}
    return backend_at(endpoint).open(
        endpoint, plan.run_id, plan.min_nodes, plan.max_nodes, plan.options["local_addr"] or None, config
    )
