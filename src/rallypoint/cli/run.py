"""`rallypoint run`: start any command on every node of the world, watch it, restart it with new ranks, end it cleanly."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from rallypoint.cli.exit_codes import ExitCode, UsageError

HELP = "start a command on every node, watch it, and restart it with new ranks when the world changes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that it takes."""
    from rallypoint.launcher.options import OPTIONS

    parser.usage = "rallypoint run [OPTION …] -- COMMAND [ARGUMENT …]"
    parser.add_argument("--config", metavar="FILE", help="a TOML file with options, by their names")
    for option in OPTIONS:
        more: dict[str, Any] = (
            {"action": "store_const", "const": "true"} if option.is_flag else {"metavar": option.metavar}
        )
        if option.is_repeated:
            more["action"] = "append"
        parser.add_argument(*option.flags, dest=option.name, default=None, help=option.help, **more)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="COMMAND", help="what to run on each node")


def run(args: argparse.Namespace) -> int:
    """Run it; the exit code is in docs/launcher.md."""
    import socket

    from rallypoint.launcher.options import OPTIONS, OptionSources
    from rallypoint.launcher.plan import make_plan

    command = list(args.arguments)
    is_literal = command[:1] == ["--"]
    try:
        sources = OptionSources(
            {option.name: getattr(args, option.name) for option in OPTIONS}, os.environ, *_read_config(args.config)
        )
        plan = make_plan(
            command[1:] if is_literal else command, sources, os.environ, socket.gethostname(), is_literal=is_literal
        )
    except ValueError as exc:
        raise UsageError(str(exc)) from exc
    if sources["dry_run"]:
        print("\n".join(plan.lines()))
        return ExitCode.DONE
    from rallypoint.launcher.start import launch

    try:
        return launch(plan)
    except ValueError as exc:  # what the rendezvous cannot use, such as an option that it does not have
        raise UsageError(str(exc)) from exc


def _read_config(file: str | None) -> tuple[dict[str, Any], str]:
    if file is None:
        return {}, ""
    import msgspec

    try:
        return msgspec.toml.decode(Path(file).read_bytes()), file
    except OSError as exc:
        raise ValueError(f"--config {file} cannot be read: {exc.strerror or exc}") from exc
    except ImportError as exc:
        raise ValueError(f"--config {file}: Python 3.10 reads TOML by the package tomli: pip install tomli") from exc
    except (msgspec.DecodeError, ValueError) as exc:
        raise ValueError(f"--config {file} is not valid TOML: {exc}") from exc
