"""The command `rallypoint`, one file a command.

A command is a module with `HELP`, `declare(parser)` and `run(given)`.  What a command needs it imports when it runs, so
that `rallypoint --help` is there at once.  Exit codes: 0, it was done; 2, it was not, and a sentence says why.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Protocol

from rallypoint.cli import close, demo, evict, runs, serve, status
from rallypoint.cli.output import complain
from rallypoint.errors import RendezvousError

__all__ = ["main"]


class Command(Protocol):
    """What the module of a command has."""

    HELP: str

    def declare(self, parser: argparse.ArgumentParser) -> None:
        """Say which arguments it takes."""

    def run(self, given: argparse.Namespace) -> int:
        """Do it, and return the exit code."""


COMMANDS: dict[str, Command] = {
    "serve": serve,
    "status": status,
    "runs": runs,
    "close": close,
    "evict": evict,
    "demo": demo,
}


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return the exit code."""
    parser = argparse.ArgumentParser(prog="rallypoint", description="The meeting point of a distributed job.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        described = commands.add_parser(name, help=command.HELP, description=f"{command.HELP}.")
        command.declare(described)
    given = parser.parse_args(arguments)
    try:
        return COMMANDS[given.command].run(given)
    except RendezvousError as exc:
        return complain(given.command, str(exc))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone; without this, Python would complain once more when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
