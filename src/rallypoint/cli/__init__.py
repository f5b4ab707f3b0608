"""The command `rallypoint`, one file a command.

A command is a module with `HELP`, `add_arguments(parser)` and `run(args)`.  What a command needs it imports when it runs,
so that `rallypoint --help` is there at once.  The exit codes are in `exit_codes`.
"""

from __future__ import annotations

import os
import sys

from rallypoint.cli import certs, close, completion, demo, evict, run, runs, serve, status, token
from rallypoint.cli.exit_codes import ExitCode, exit_code_of
from rallypoint.cli.output import print_error
from rallypoint.cli.parser import Command, Parser
from rallypoint.errors import RendezvousError

__all__ = ["main"]

COMMANDS: dict[str, Command] = {
    "run": run,
    "serve": serve,
    "status": status,
    "runs": runs,
    "close": close,
    "evict": evict,
    "demo": demo,
    "token": token,
    "certs": certs,
    "completion": completion,
}


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return the exit code."""
    args = Parser(COMMANDS).parse(sys.argv[1:] if arguments is None else arguments)
    try:
        return COMMANDS[args.command].run(args)
    except RendezvousError as exc:
        print_error(args.command, str(exc))
        return exit_code_of(exc)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone; without this, Python would complain once more when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILED
