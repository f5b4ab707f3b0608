"""The demo's processes: started, listened to and ended here, and none other than these.

Times are those of this process's own clock when it hears of something.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, TypeAlias

STEP_S = 15.0
"""How long a step may take; every one takes a fraction of a second, more where starting Python is slow."""
DRAW_S = 0.1


class DemoError(Exception):
    """Something that should have happened did not."""


class Interruption:
    """A signal that asks for the end.  It is obeyed where nothing is half done.

    An exception out of a signal's handler may come in the middle of anything: of the start of a process, which is then never
    ended, or while `Popen` holds a lock, which is then never let go.
    """

    def __init__(self) -> None:
        self._number = 0

    def ask(self, number: int, frame: FrameType | None) -> None:
        """For `signal.signal`.  A second signal ends the process at once."""
        if self._number:
            raise SystemExit(128 + number)
        self._number = number

    def obey(self) -> None:
        """End with the exit code that a shell would give, if that was asked."""
        if self._number:
            raise SystemExit(128 + self._number)


@dataclass(frozen=True)
class Message:
    """A line that a process printed, and when; what a node says is JSON."""

    at: float
    line: str
    said: dict[str, Any] = field(default_factory=dict)


Lines: TypeAlias = "queue.SimpleQueue[tuple[float, ChildProcess, str | None]]"
"""What was printed, when and by whom; None when it has ended."""


class ChildProcess:
    """One process."""

    def __init__(self, name: str, process: subprocess.Popen[str], log: Path, lines: Lines) -> None:
        self.name = name
        self.process = process
        self.log = log
        self.listener = threading.Thread(target=self._listen, args=(lines,), daemon=True)
        self.messages: list[Message] = []
        self.may_end = False
        self.ended = False
        self.outcome = ""

    def take(self, at: float, line: str) -> None:
        """It printed a line."""
        said = json.loads(line) if line.startswith("{") else {}
        self.messages.append(Message(at, line, said))

    def last(self, event: str) -> Message | None:
        """The last that it said of this kind."""
        return next((message for message in reversed(self.messages) if message.said.get("event") == event), None)

    @property
    def place(self) -> dict[str, Any]:
        """Its place in a world: round, rank, size, fence; empty before it has one."""
        placed = self.last("placed")
        return placed.said if placed is not None else {}

    def order(self, words: str) -> None:
        """Tell it something."""
        assert self.process.stdin is not None, "started with a pipe"
        self.process.stdin.write(f"{words}\n")
        self.process.stdin.flush()

    def kill(self) -> float:
        """SIGKILL; returns when."""
        self.may_end = True
        at = time.monotonic()
        self.process.kill()
        self.process.wait()
        self.outcome = "killed"
        return at

    def _listen(self, lines: Lines) -> None:
        assert self.process.stdout is not None, "started with a pipe"
        for line in self.process.stdout:
            lines.put((time.monotonic(), self, line.rstrip("\n")))
        lines.put((time.monotonic(), self, None))

    def last_error(self) -> str:
        """The last thing that it complained of."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "it said nothing")


class ProcessGroup:
    """All processes of the demo; leaving the block ends those that are still there."""

    def __init__(self, folder: Path, draw: Callable[[], None], interruption: Interruption) -> None:
        self._folder = folder
        self._interruption = interruption
        self._draw = draw
        self._started = 0
        self._lines: Lines = queue.SimpleQueue()
        self.children: list[ChildProcess] = []

    def start(self, name: str, *module_and_arguments: str) -> ChildProcess:
        """Start a Python module of ours."""
        self._started += 1
        log = self._folder / f"{self._started}-{name}.log"
        with log.open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", *module_and_arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
                # A control-C is for the demo, which then ends them in its own order.
                start_new_session=True,
            )
        child = ChildProcess(name, process, log, self._lines)
        self.children.append(child)
        child.listener.start()
        return child

    def wait(self, until: Callable[[], bool], what: str) -> None:
        """Wait until something is so; `what` says what in case it never is."""
        deadline = time.monotonic() + STEP_S
        while not until():
            if time.monotonic() > deadline:
                raise DemoError(f"within {STEP_S:.0f} s it did not happen that {what}")
            self._hear(DRAW_S)

    def wait_for_ends(self, children: Iterable[ChildProcess], what: str) -> None:
        """Wait until processes have ended, each with exit code 0."""
        group = list(children)
        for child in group:
            child.may_end = True
        self.wait(lambda: all(child.ended for child in group), what)
        for child in group:
            child.outcome = f"exit code {child.process.wait(STEP_S)}"
            if child.process.returncode != 0:
                raise DemoError(f"{child.name} ended with {child.outcome}: {child.last_error()}")

    def linger(self, pause_s: float) -> None:
        """Let time pass while listening."""
        deadline = time.monotonic() + pause_s
        while (left := deadline - time.monotonic()) > 0:
            self._hear(min(left, DRAW_S))

    def _hear(self, timeout_s: float) -> None:
        self._interruption.obey()
        try:
            at, child, line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            self._draw()
            return
        if line is not None:
            child.take(at, line)
        else:
            child.ended = True
            if not child.may_end:
                code = child.process.wait(STEP_S)
                raise DemoError(f"{child.name} ended with exit code {code}: {child.last_error()}")
        self._draw()

    def __enter__(self) -> ProcessGroup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for child in self.children:
            child.process.kill()
        for child in self.children:
            child.process.wait()
            child.listener.join()
            for pipe in (child.process.stdin, child.process.stdout):
                assert pipe is not None, "started with pipes"
                with suppress(OSError):
                    pipe.close()
