"""From a plan to a running launcher: the membership, the output, the agent."""

from __future__ import annotations

import os
import sys

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
    try:
        return Agent(plan, lambda: open_member(plan), output).run()
    finally:
        output.close()


def open_member(plan: Plan) -> tuple[Member, float]:
    """This node's membership, and how long its join may take."""
    endpoint = plan.endpoint or f"127.0.0.1:{free_port()}"
    config: dict[str, object] = {"rank": plan.wanted_rank, "store": "rallypoint", **plan.config}
    return backend_at(endpoint).open(
        endpoint, plan.run_id, plan.min_nodes, plan.max_nodes, plan.options["local_addr"] or None, config
    )


def free_port() -> int:
    """A port that nobody has at the moment; a world of one node needs it for its own server only."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
