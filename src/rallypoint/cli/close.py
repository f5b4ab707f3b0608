"""`rallypoint close`: close a run for everybody."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rallypoint.cli.arguments import add_endpoint_arguments, connect, reason_text, run_name
from rallypoint.cli.output import printable
from rallypoint.errors import RendezvousError

if TYPE_CHECKING:
    from rallypoint.client.admin_client import AdminClient
    from rallypoint.location.register_admin import RegisterAdminClient

HELP = "close a run for everybody, as failed"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that it takes."""
    parser.add_argument("run_id", type=run_name, metavar="RUN", help="the run to close")
    add_endpoint_arguments(parser)
    parser.add_argument(
        "--why", type=reason_text, default="", metavar="TEXT", help="the reason that its nodes are told"
    )


def run(args: argparse.Namespace) -> int:
    """Close it, and show what the server makes of it."""
    with connect(args) as admin:
        admin.close_run(args.run_id, args.why)
        situation = _situation(admin, args.run_id)
    print(printable(f"run {args.run_id!r}: {situation}"))
    return 0


def _situation(admin: AdminClient | RegisterAdminClient, run_id: str) -> str:
    """What became of it.  Its nodes may have ended by now, and with them its server or the store that names it."""
    try:
        line = admin.status(run_id).run
    except RendezvousError:
        return "closed"
    return line.situation if line is not None else "closed"
