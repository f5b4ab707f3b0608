"""The argument parser of `rallypoint`: what is mistyped gets a suggestion, and the usage of the command that it is for."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn, Protocol


class Command(Protocol):
    """The module of a command."""

    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments that it takes."""

    def run(self, args: argparse.Namespace) -> int:
        """Run it, and return the exit code."""


class Parser:
    """Parses a command line into the command and its arguments; `by_command` has the parser of each."""

    def __init__(self, commands: Mapping[str, Command]) -> None:
        self.top = argparse.ArgumentParser(prog="rallypoint", description="The meeting point of a distributed job.")
        self.top.add_argument("--version", action=_Version, help="print the version and exit")
        subparsers = self.top.add_subparsers(dest="command", required=True, metavar="COMMAND")
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
                    self._refuse_command(word)
                break
            if not any(option.startswith(word) for option in option_strings(self.top)):
                _refuse_arguments(self.top, [word])
        args, unknown = self.top.parse_known_args(arguments)
        if unknown:
            _refuse_arguments(self.by_command[args.command], unknown)
        return args

    def _refuse_command(self, command: str) -> NoReturn:
        known = ", ".join(self.by_command)
        self.top.error(
            f"there is no command {command!r}.{_suggest(command, self.by_command)} The commands are: {known}"
        )


def option_strings(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Every option of a parser, as it is written."""
    actions = parser._actions  # noqa: SLF001  argparse has no public way to list them
    return {option: action for action in actions for option in action.option_strings}


def _refuse_arguments(parser: argparse.ArgumentParser, unknown: list[str]) -> NoReturn:
    mistyped = next((word for word in unknown if word.startswith("-")), None)
    if mistyped is None:
        parser.error(f"{unknown[0]!r} is one argument too many")
    option = mistyped.partition("=")[0]
    parser.error(f"there is no option {option!r}.{_suggest(option, option_strings(parser))}")


def _suggest(word: str, known: Iterable[str]) -> str:
    """ " Did you mean 'this'?" where one of the known words is near, else nothing."""
    import difflib

    nearest = difflib.get_close_matches(word, list(known), n=1)
    return f" Did you mean {nearest[0]!r}?" if nearest else ""


class _Version(argparse.Action):
    """Prints the version of the installed package; it is looked up only when asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version

        print(f"rallypoint {version('rallypoint')}")
        parser.exit()
