"""The demo's processes: started, watched and ended here; a live table of them on a terminal, plain lines elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import TYPE_CHECKING, Any

from rallypoint.cli.output import is_terminal

if TYPE_CHECKING:
    from rich.live import Live

STEP_S = 60.0  # how long a step may take: a fraction of a second, or more where starting Python is slow
LOOK_S = 0.05  # how often the demo reads what its processes have printed
PAUSE_S = 1.3  # before each step on a terminal, so that people can follow
_STATES = {  # what a node does after it has reported an event, and the colour of that
    "joining": ("waiting", "yellow"),
    "placed": ("working", "green"),
    "changed": ("regrouping", "yellow"),
    "finished": ("finished", "yellow"),
}


class DemoError(Exception):
    """Something that should have happened did not."""


class Process:
    """One process.  It prints into a file; its standard input stays open until it is told to finish."""

    def __init__(self, name: str, log: Path, arguments: tuple[str, ...]) -> None:
        self.name = name
        self.outcome = ""
        self._output, self._errors = log.with_suffix(".out"), log.with_suffix(".err")
        command = [sys.executable, "-m", *arguments]
        with self._output.open("wb") as out, self._errors.open("wb") as err:
            # In a session of its own, because Ctrl-C is for the demo, which then ends its processes itself.
            self.popen = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=out, stderr=err, start_new_session=True
            )

    def lines(self) -> list[str]:
        """The whole lines that it printed."""
        return self._output.read_text(encoding="utf-8").rpartition("\n")[0].splitlines()

    def events(self) -> list[dict[str, Any]]:
        """What a node reported; a server reports nothing."""
        return [json.loads(line) for line in self.lines() if line.startswith("{")]

    def last(self, event: str) -> dict[str, Any]:
        """The last event of a kind; empty where there was none."""
        return next((found for found in reversed(self.events()) if found["event"] == event), {})

    def kill(self) -> float:
        """End it with SIGKILL, and return when."""
        at = time.monotonic()
        self.outcome = "killed"
        self.popen.kill()
        self.popen.wait()
        return at

    def check(self) -> None:
        """Note its end, which is an error unless the exit code is 0."""
        code = self.popen.poll()
        if code is not None and not self.outcome:
            self.outcome = f"exit code {code}"
            if code != 0:
                complaints = self._errors.read_text(encoding="utf-8", errors="replace").strip() or "it said nothing"
                raise DemoError(f"{self.name} ended with {self.outcome}: {complaints.splitlines()[-1]}")

    def state(self) -> tuple[str, str]:
        """What it is doing, and the colour of that."""
        if self.outcome:
            return self.outcome, "red" if self.outcome == "killed" else "dim"
        if events := self.events():
            return _STATES[events[-1]["event"]]
        return ("serving", "cyan") if self.lines() else ("starting", "dim")


class Demo:
    """All processes of the demo, and what it says of them.

    A signal that asks for the end is obeyed only while the demo waits.  An exception from a signal handler could come at
    any moment: while a process is started, which then nobody ends, or while `Popen` holds a lock.
    """

    def __init__(self) -> None:
        self.processes: list[Process] = []
        self.folder = Path()
        self._signal = 0
        self._sentences: list[tuple[str, str]] = []
        self._live: Live | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Leaving the block ends the processes that still run, and removes their files."""
        with TemporaryDirectory(prefix="rallypoint-demo-") as folder, ExitStack() as stack:
            self.folder = Path(folder)
            if is_terminal():
                from rich.live import Live

                self._live = stack.enter_context(Live(auto_refresh=False))
            try:
                yield
            finally:
                for process in self.processes:
                    process.popen.kill()
                for process in self.processes:
                    process.popen.communicate()

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """For `signal.signal`.  A second signal ends the demo at once."""
        if self._signal:
            raise SystemExit(128 + number)
        self._signal = number

    def start(self, name: str, *module_and_arguments: str) -> Process:
        """Start a Python module."""
        process = Process(name, self.folder / f"{len(self.processes)}-{name}", module_and_arguments)
        self.processes.append(process)
        return process

    def wait(self, until: Callable[[], bool], what: str) -> None:
        """Wait until something is so; `what` says what, in case it never is."""
        deadline = time.monotonic() + STEP_S
        while not until():
            self.demand(time.monotonic() < deadline, f"within {STEP_S:.0f} s it did not happen that {what}")
            self._look()

    def demand(self, holds: bool, otherwise: str) -> None:
        """Fail the demo where something does not hold."""
        if not holds:
            raise DemoError(otherwise)

    def say(self, sentence: str, *, heading: bool = False) -> None:
        """Say which step comes next (a heading), or what came of it."""
        pause_ends = time.monotonic() + (PAUSE_S if heading and self._live is not None else 0)
        while time.monotonic() < pause_ends:
            self._look()
        self._sentences.append((sentence, "bold") if heading else (f"  {sentence}", ""))
        if self._live is None:
            print(self._sentences[-1][0], flush=True)
        self._draw()

    def _look(self) -> None:
        if self._signal:
            raise SystemExit(128 + self._signal)
        for process in self.processes:
            process.check()
        self._draw()
        time.sleep(LOOK_S)

    def _draw(self) -> None:
        if self._live is None:
            return
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(
            "process", "pid", "round", "rank", "state", title="run 'demo'", title_justify="left", min_width=60
        )
        for process in self.processes:
            place = process.last("placed") if not process.outcome else {}
            cells = (str(place["round"]), f"{place['rank']} of {place['size']}") if place else ("", "")
            table.add_row(process.name, str(process.popen.pid), *cells, Text(*process.state()))
        self._live.update(Group(table, *(Text(*sentence) for sentence in self._sentences)), refresh=True)
