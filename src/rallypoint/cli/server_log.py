"""The log of `rallypoint serve` on standard error: a pipe that nobody reads costs lines, and never holds the server up."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from contextlib import suppress

from rallypoint.cli.output import printable

WAITING_LINES = 10_000
MOST_AT_ONCE = 100
TOGETHER_S = 0.05
"""How long the first line waits for others."""
LAST_LINES_S = 1.0
"""How long the last lines may take to be read when the server ends."""


class _Lines(logging.Formatter):
    """A line for each message, whatever characters a node has in its name."""

    def format(self, record: logging.LogRecord) -> str:
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        trace = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return f"{self.formatTime(record)} {level}{printable(record.getMessage())}{trace}"


class StderrLog(logging.Handler):
    """Hands lines to a thread that writes them; what finds no room is counted, and said when there is room again.

    The thread is woken for the first line of many that come together: a wake-up costs the server as much as a join does.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[logging.LogRecord] = deque()
        self._dropped = 0
        self._format = _Lines().format
        self._has_lines, self._is_ending = threading.Event(), threading.Event()
        self._writer = threading.Thread(target=self._write, name="rallypoint-log", daemon=True)
        self._writer.start()

    def emit(self, record: logging.LogRecord) -> None:
        if len(self._lines) >= WAITING_LINES:
            self._dropped += 1
            return
        if self._dropped:
            lost, self._dropped = self._dropped, 0
            text = f"{lost} lines of this log were lost: nobody read it"
            self._lines.append(logging.LogRecord("rallypoint", logging.WARNING, "", 0, text, None, None))
        self._lines.append(record)
        if not self._has_lines.is_set():
            self._has_lines.set()

    def finish(self) -> None:
        """Write the last lines, unless nobody reads them."""
        self._is_ending.set()
        self._has_lines.set()
        self._writer.join(LAST_LINES_S)

    def _write(self) -> None:
        while self._lines or not self._is_ending.is_set():
            self._has_lines.wait()
            self._is_ending.wait(TOGETHER_S)
            self._has_lines.clear()
            while self._lines:
                some = [self._lines.popleft() for _ in range(min(len(self._lines), MOST_AT_ONCE))]
                self._put("".join(f"{self._format(record)}\n" for record in some).encode(errors="backslashreplace"))

    @staticmethod
    def _put(text: bytes) -> None:
        # Not through sys.stderr: its lock, held by a write that nobody reads, would keep the process from ending.
        with suppress(OSError):
            while text:
                text = text[os.write(2, text) :]
