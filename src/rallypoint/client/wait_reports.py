"""Says what a wait waits for (rule 11), if it lasts and whenever the reason changes: in a log, lines or one live line."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TextIO

import msgspec

from rallypoint import wording
from rallypoint.client.view import State

if TYPE_CHECKING:
    from rallypoint.client.member import Member

log = logging.getLogger("rallypoint")

REPORT_AFTER_S = 2.0
"""How long a wait may take before it is reported, and how long one sentence stands before the next."""
LOOK_S = 1.0
_WRITE_S = 0.5
"""How long the end of a wait is held up if nobody reads what is written."""

_WIDTH = 80


class WaitReport(msgspec.Struct, frozen=True):
    """A wait at one moment; `left_s` is None where it has no deadline of its own, or the sentence tells it."""

    run_id: str
    why: str
    elapsed_s: float
    left_s: float | None = None

    def __str__(self) -> str:
        """The sentence, with the elapsed time and until when."""
        left = "" if self.left_s is None else f", at most {max(self.left_s, 0.0):.0f} s more"
        return f"run {self.run_id!r}: waiting for {self.elapsed_s:.0f} s{left}: {self.why}"


class Reporter:
    """Where waits are reported.  All calls for one wait come from one thread."""

    def wait(self, wait: WaitReport, *, is_news: bool) -> None:
        """It is still waited; `is_news` where the reason was not told yet."""

    def tell(self, text: str) -> None:
        """Something came of it."""

    def end(self) -> None:
        """The wait is over."""


@contextmanager
def reported(member: Member, reporter: Reporter | None) -> Iterator[None]:
    """Report what is awaited while the block lasts, from a thread of its own; None reports nothing."""
    if reporter is None:
        yield
        return
    done = threading.Event()
    thread = threading.Thread(target=_report, args=(member, reporter, done), name="rallypoint-waiting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(_WRITE_S)  # so that what the program says next does not meet a line that is being written


def reporter_for_program() -> Reporter | None:
    """The log where the program has one for this; otherwise stderr, live on a terminal."""
    if _is_logged():
        return LogReporter(log, logging.INFO)
    stream = sys.stderr
    if stream is None:  # as under pythonw
        return None
    is_live = stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    return LiveReporter(stream) if is_live else LineReporter(stream)


class LogReporter(Reporter):
    """Reports each new reason to a logger."""

    def __init__(self, logger: logging.Logger, level: int) -> None:
        self._logger = logger
        self._level = level

    def wait(self, wait: WaitReport, *, is_news: bool) -> None:
        if is_news:
            self._logger.log(self._level, "run %r: waiting: %s", wait.run_id, wait.why)

    def tell(self, text: str) -> None:
        self._logger.log(self._level, "%s", text)


class LineReporter(Reporter):
    """Reports each new reason as a line of its own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def wait(self, wait: WaitReport, *, is_news: bool) -> None:
        if is_news:
            self.tell(str(wait))

    def tell(self, text: str) -> None:
        self._write(f"rallypoint: {printable(text)}\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class LiveReporter(LineReporter):
    """Reports on a terminal, in one line that is written over and erased in the end."""

    _is_shown = False

    def wait(self, wait: WaitReport, *, is_news: bool) -> None:
        # In one piece and without erasing it first, so that it does not flicker.
        self._write(f"\r{_cut(printable(f'rallypoint: {wait}'), self._columns() - 1)}\x1b[K")
        self._is_shown = True

    def tell(self, text: str) -> None:
        self.end()
        super().tell(text)

    def end(self) -> None:
        if self._is_shown:
            self._write("\r\x1b[K")
            self._is_shown = False

    def _columns(self) -> int:
        with suppress(OSError, ValueError):
            return os.get_terminal_size(self._stream.fileno()).columns or _WIDTH
        return _WIDTH


def _report(member: Member, reporter: Reporter, done: threading.Event) -> None:
    began = told_at = time.monotonic()
    told, told_as_spare = "", False
    with suppress(OSError, ValueError):  # a stream that is closed, or that nobody reads any more
        try:
            while not done.wait(LOOK_S):
                view, why, now = member.view, member.why_waiting(), time.monotonic()
                if not why:
                    continue
                is_spare, gist = view.state is State.SPARE, wording.gist(why)
                # A node that becomes a spare says so at once, anything else can wait.
                is_due = now >= told_at + REPORT_AFTER_S or (is_spare and not told_as_spare)
                is_news = is_due and gist != told
                if is_news:
                    told, told_at, told_as_spare = gist, now, is_spare
                if told:
                    left_s = None if view.deadline is None else view.deadline - now
                    reporter.wait(WaitReport(member.run_id, why, now - began, left_s), is_news=is_news)
            world = member.view.world
            if told_as_spare and world is not None and member.view.state is State.HOLDS:
                place = f"rank {world.rank} of {world.size} in round {world.round}"
                reporter.tell(f"run {member.run_id!r}: this spare was promoted: it has {place}")
        finally:
            reporter.end()


def _is_logged() -> bool:
    """Whether the program has a handler that takes this package's messages of level INFO."""
    if not log.isEnabledFor(logging.INFO):
        return False
    logger: logging.Logger | None = log
    while logger is not None:
        if any(h.level <= logging.INFO and not isinstance(h, logging.NullHandler) for h in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


def printable(text: str) -> str:
    """What peers call themselves must not move the cursor."""
    return "".join(char if char.isprintable() else "?" for char in text)


def _cut(text: str, columns: int) -> str:
    """As much of a text as there is room for."""
    for number, char in enumerate(text):
        columns -= 2 if unicodedata.east_asian_width(char) in "WF" else 1
        if columns < 0:
            return f"{text[: max(number - 2, 0)]}…"
    return text
