"""The log of `rallypoint serve` on standard error: a pipe that nobody reads costs lines, and never holds the server up."""

from __future__ import annotations

import logging
import os
import queue
import threading
from contextlib import suppress

from rallypoint.cli.output import printable

WAITING_LINES = 10_000
LAST_LINES_S = 1.0
"""How long the last lines may take to be read when the server ends."""


class _Lines(logging.Formatter):
    """A line for each message, whatever characters a node has in its name."""

    def format(self, record: logging.LogRecord) -> str:
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        trace = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return f"{self.formatTime(record)} {level}{printable(record.getMessage())}{trace}"


class StderrLog(logging.Handler):
    """Hands lines to a thread that writes them; what finds no room is counted, and said when there is room again."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: queue.Queue[logging.LogRecord | None] = queue.Queue(WAITING_LINES)
        self._dropped = 0
        self._format = _Lines().format
        self._writer = threading.Thread(target=self._write, name="rallypoint-log", daemon=True)
        self._writer.start()

    def emit(self, record: logging.LogRecord) -> None:
        if self._dropped and not self._lines.full():
            lost, self._dropped = self._dropped, 0
            text = f"{lost} lines of this log were lost: nobody read it"
            self._lines.put_nowait(logging.LogRecord("rallypoint", logging.WARNING, "", 0, text, None, None))
        try:
            self._lines.put_nowait(record)
        except queue.Full:
            self._dropped += 1

    def finish(self) -> None:
        """Write the last lines, unless nobody reads them."""
        try:
            self._lines.put(None, timeout=LAST_LINES_S)
        except queue.Full:
            return
        self._writer.join(LAST_LINES_S)

    def _write(self) -> None:
        # Not through sys.stderr: its lock, held by a write that nobody reads, would keep the process from ending.
        while (record := self._lines.get()) is not None:
            line = f"{self._format(record)}\n".encode(errors="backslashreplace")
            with suppress(OSError):
                while line:
                    line = line[os.write(2, line) :]
