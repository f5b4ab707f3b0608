"""`rallypoint token`: make a master token, or the token of one run and role from it (rule 16)."""

from __future__ import annotations

import argparse

from rallypoint.cli.arguments import run_name
from rallypoint.cli.exit_codes import ExitCode, UsageError

HELP = "print a new token, or the token of one run and role"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that it takes."""
    parser.add_argument("run_id", nargs="?", type=run_name, metavar="RUN", help="the run that the token is for")
    parser.add_argument(
        "--role",
        choices=("node", "viewer", "admin"),
        default="node",
        help="what its holder may do: a node joins, a viewer looks, an admin closes and evicts (default: node)",
    )
    parser.add_argument("--new", action="store_true", help="print a new master token, for the server")
    parser.add_argument(
        "--token-file", metavar="FILE", help="the file with the master token (default: $RALLYPOINT_TOKEN)"
    )


def run(args: argparse.Namespace) -> int:
    """Print one token and nothing else, so that it can go to a file."""
    from rallypoint.tokens import AccessRole, client_token, new_token, read_token

    if args.new == (args.run_id is not None):
        raise UsageError("name a run, as in `rallypoint token RUN`, or ask for a new master token by --new")
    if args.new:
        print(new_token())
        return ExitCode.DONE
    try:
        token = read_token(args.token_file)
        if token is None:
            raise UsageError("there is no master token: name its file by --token-file, or put it into RALLYPOINT_TOKEN")
        print(client_token(token, args.run_id, AccessRole(args.role)).written())
    except ValueError as exc:
        raise UsageError(str(exc)) from exc
    return ExitCode.DONE
