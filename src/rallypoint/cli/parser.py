"""The argument parser of `rallypoint`: what is mistyped gets a suggestion, and the usage of the command that it is for."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn, Protocol


class Command(Protocol):
    """The module of a command: it declares its arguments, runs with them, and returns the exit code."""

    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int: ...


class Parser:
    """Parses a command line into the command and its arguments; `by_command` has the parser of each."""

    def __init__(self, commands: Mapping[str, Command]) -> None:
        self.top = argparse.ArgumentParser(prog="rallypoint", description="The meeting point of a distributed job.")
        self.top.add_argument("--version", action="store_true", help="print the version and exit")
        subparsers = self.top.add_subparsers(dest="command", metavar="COMMAND")
        self.by_command: dict[str, argparse.ArgumentParser] = {}
        for name, command in commands.items():
            parser = subparsers.add_parser(name, help=command.HELP, description=f"{command.HELP}.")
            command.add_arguments(parser)
            self.by_command[name] = parser

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The arguments; a mistake prints the usage and a sentence, and exits with 2."""
        for word in arguments:
            if not word.startswith("-"):
                if word not in self.by_command:
                    known = f" The commands are: {', '.join(self.by_command)}"
                    _refuse(self.top, f"there is no command {word!r}.", word, self.by_command, known)
                break
            if not any(option.startswith(word) for option in option_strings(self.top)):
                _refuse_option(self.top, word)
        args, unknown = self.top.parse_known_args(arguments)
        if args.version:
            from importlib.metadata import version

            print(f"rallypoint {version('rallypoint')}")
            self.top.exit()
        if args.command is None:
            self.top.error("the following arguments are required: COMMAND")
        if unknown:
            parser = self.by_command[args.command]
            option = next((word for word in unknown if word.startswith("-")), None)
            if option is None:
                parser.error(f"{unknown[0]!r} is one argument too many")
            _refuse_option(parser, option)
        return args


def option_strings(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Every option of a parser, as it is written."""
    actions = parser._actions  # noqa: SLF001  argparse has no public way to list them
    return {option: action for action in actions for option in action.option_strings}


def _refuse_option(parser: argparse.ArgumentParser, word: str) -> NoReturn:
    option = word.partition("=")[0]
    _refuse(parser, f"there is no option {option!r}.", option, option_strings(parser))


def _refuse(parser: argparse.ArgumentParser, why: str, word: str, known: Iterable[str], more: str = "") -> NoReturn:
    from rallypoint.backends.options import did_you_mean

    parser.error(f"{why}{did_you_mean(word, known)}{more}")
