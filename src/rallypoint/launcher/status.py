"""What a launcher shows while it waits: on a terminal who is here and who is missing, kept up to date; elsewhere plain lines."""

from __future__ import annotations

import os
import textwrap
from contextlib import suppress

from rallypoint.client.wait_reports import Reporter, WaitReport, printable
from rallypoint.launcher.output import OutputRouter

__all__ = ["StatusReporter"]

WIDTH = 80
LINES = 6
"""A longer text would push the workers' lines off the screen."""


class StatusReporter(Reporter):
    """Shows waits between the lines of the workers, so that neither is torn."""

    def __init__(self, output: OutputRouter) -> None:
        self._output = output

    def wait(self, wait: WaitReport, *, is_news: bool) -> None:
        if self._output.is_live:
            self._output.status(wrapped(f"rallypoint: {printable(str(wait))}", _columns()))
        elif is_news:
            self.tell(str(wait))

    def tell(self, text: str) -> None:
        self._output.say(f"rallypoint: {printable(text)}")

    def end(self) -> None:
        self._output.status("")


def wrapped(text: str, columns: int) -> str:
    """A text in lines that fit, few enough to be written over."""
    lines = textwrap.wrap(text, max(columns - 1, 20), subsequent_indent="  ", max_lines=LINES, placeholder=" …")
    return "\n".join(lines)


def _columns() -> int:
    with suppress(OSError, ValueError):
        return os.get_terminal_size(2).columns or WIDTH
    return WIDTH
