"""What commands print: sentences and tables, drawn on a terminal and plain elsewhere, or JSON.

Names come from the nodes, so control characters are replaced before anything is printed.  rich leaves colours out where
NO_COLOR is set.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from rich.console import Group


class Sentence(NamedTuple):
    """A line for people, and how rich draws it."""

    text: str
    style: str = ""


class Table(NamedTuple):
    """A table for people."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


Output: TypeAlias = "str | list[Sentence | Table]"
"""JSON as it is, or the parts of an answer for people."""


def print_error(command: str, sentence: str) -> None:
    """Say why a command could not do what it was asked to."""
    print(f"rallypoint {command}: {printable(sentence)}", file=sys.stderr, flush=True)


def printable(text: str) -> str:
    """The text with a mark in place of every character that would do something instead of being seen."""
    return text if text.isprintable() else "".join(char if char.isprintable() else "\ufffd" for char in text)


def is_terminal() -> bool:
    """Whether the output goes to a terminal."""
    return sys.stdout.isatty()


def show(output: Output) -> None:
    """Print it."""
    if isinstance(output, str):
        print(output, flush=True)
    elif is_terminal():
        from rich.console import Console

        Console().print(_drawn(output))
    else:
        lines = [line for part in output for line in _lines(part)]
        print("\n".join(lines), flush=True)


@contextmanager
def display(*, as_json: bool) -> Iterator[Callable[[Output], None]]:
    """A function that shows output again and again: on a terminal in place, elsewhere only what is new.

    JSON is printed each time, so that its reader knows that nothing is new.
    """
    if is_terminal() and not as_json:
        from rich.live import Live

        with Live(auto_refresh=False) as live:
            yield lambda output: live.update(_drawn(output), refresh=True)
        return
    shown: Output = []

    def show_if_new(output: Output) -> None:
        nonlocal shown
        if output != shown or as_json:
            show(output)
        shown = output

    yield show_if_new


def _drawn(output: Output) -> Group:
    from rich import box
    from rich import table as rich_table
    from rich.console import Group, RenderableType
    from rich.text import Text

    drawn: list[RenderableType] = []
    for part in output:
        if isinstance(part, Sentence):
            drawn.append(Text(printable(part.text), part.style))
        elif isinstance(part, Table):
            table = rich_table.Table(*part.columns, box=box.SIMPLE_HEAD)
            for row in part.rows:
                table.add_row(*(Text(printable(cell)) for cell in row))
            drawn.append(table)
    return Group(*drawn)


def _lines(part: Sentence | Table) -> list[str]:
    """A table has columns of the width that they need."""
    if isinstance(part, Sentence):
        return [printable(part.text)]
    lines = [list(part.columns), *([printable(cell) for cell in row] for row in part.rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
