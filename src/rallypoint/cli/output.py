"""What commands print: sentences, and tables that are drawn on a terminal and plain elsewhere.

Names come from the nodes, so nothing of theirs reaches a terminal as a control character.  rich leaves colours out where
NO_COLOR is set.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

Rows = Iterable[Sequence[str]]


def print_error(command: str, sentence: str) -> None:
    """Say why a command could not do what it was asked to."""
    print(f"rallypoint {command}: {printable(sentence)}", file=sys.stderr, flush=True)


def printable(text: str) -> str:
    """The text with a mark in place of every character that would do something instead of being seen."""
    return text if text.isprintable() else "".join(char if char.isprintable() else "\ufffd" for char in text)


def is_terminal() -> bool:
    """Whether the output goes to a terminal."""
    return sys.stdout.isatty()


def drawn_table(columns: Sequence[str], rows: Rows) -> Table:
    """A table for a terminal."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=box.SIMPLE_HEAD)
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table


def plain_table(columns: Sequence[str], rows: Rows) -> list[str]:
    """The same as lines, in columns of the width that they need."""
    lines = [list(columns), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(columns))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def show_table(columns: Sequence[str], rows: Rows) -> None:
    """Print a table as it suits the place."""
    if is_terminal():
        from rich.console import Console

        Console().print(drawn_table(columns, rows))
    else:
        print("\n".join(plain_table(columns, rows)), flush=True)
