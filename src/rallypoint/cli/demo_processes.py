"""The demo's launchers: started, watched and ended here; a live table of them on a terminal, plain lines elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import TYPE_CHECKING

from rallypoint.cli.demo_counter import checkpoint_file, last_checkpoint
from rallypoint.cli.output import is_terminal

if TYPE_CHECKING:
    from rich.live import Live

STEP_S = 60.0  # how long a step may take: a second, or more where starting Python is slow
LOOK_S = 0.02  # how often the demo reads what its processes have printed
PAUSE_S = 1.3  # before each step on a terminal, so that people can follow
_PLACE = re.compile(r"round (\d+): this node is (\d+) of (\d+)")
_WORKER = re.compile(r"worker (\d+) goes on after")


class DemoError(Exception):
    """Something that should have happened did not."""


class Launcher:
    """One `rallypoint run`.  It prints into a file."""

    def __init__(self, name: str, folder: Path, arguments: tuple[str, ...]) -> None:
        self.name = name
        self.outcome = ""
        self._log = folder / f"{name}.log"
        program = (sys.executable, "-m", "rallypoint.cli.demo_counter", str(folder))
        with self._log.open("wb") as log:
            # In a session of its own, because Ctrl-C is for the demo, which then ends its launchers itself.
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "rallypoint", "run", *arguments, "--", *program],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def lines(self) -> list[str]:
        """The whole lines that it and its workers printed."""
        return self._log.read_text(encoding="utf-8", errors="replace").rpartition("\n")[0].splitlines()

    def place(self) -> tuple[int, int, int]:
        """Its last round, its rank there, and the number of nodes; zeros before the first."""
        found = next((match for line in reversed(self.lines()) if (match := _PLACE.search(line))), None)
        return (int(found[1]), int(found[2]), int(found[3])) if found else (0, 0, 0)

    def worker(self) -> int:
        """The process id of its worker."""
        return next(int(match[1]) for line in reversed(self.lines()) if (match := _WORKER.search(line)))

    def kill(self) -> None:
        """End it with SIGKILL."""
        self.outcome = "killed"
        self.popen.kill()
        self.popen.wait()

    def check(self) -> None:
        """Note its end, which is an error unless the exit code is 0."""
        code = self.popen.poll()
        if code is not None and not self.outcome:
            self.outcome = f"exit code {code}"
            if code != 0:
                raise DemoError(f"{self.name} ended with {self.outcome}: {(self.lines() or ['it said nothing'])[-1]}")

    def state(self) -> tuple[str, str]:
        """What it is doing, and the colour of that."""
        if self.outcome:
            return self.outcome, "red" if self.outcome == "killed" else "dim"
        lines = self.lines()
        if not lines:
            return "starting", "dim"
        return ("counting", "green") if _WORKER.search(lines[-1]) else ("regrouping", "yellow")


class Demo:
    """All launchers of the demo, and what it says of them.

    A signal that asks for the end is obeyed only while the demo waits.  An exception from a signal handler could come at
    any moment: while a process is started, which then nobody ends, or while `Popen` holds a lock.
    """

    def __init__(self) -> None:
        self.launchers: list[Launcher] = []
        self.folder = Path()
        self._signal = 0
        self._sentences: list[tuple[str, str]] = []
        self._live: Live | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Leaving the block ends the launchers that still run, and removes their files."""
        with TemporaryDirectory(prefix="rallypoint-demo-") as folder, ExitStack() as stack:
            self.folder = Path(folder)
            if is_terminal():
                from rich.live import Live

                self._live = stack.enter_context(Live(auto_refresh=False))
            try:
                yield
            finally:
                # A launcher that is asked to end ends its workers first; one that does not is killed, and its guard ends them.
                for launcher in self.launchers:
                    launcher.popen.terminate()
                for launcher in self.launchers:
                    try:
                        launcher.popen.wait(5)
                    except subprocess.TimeoutExpired:  # noqa: PERF203  # there are five
                        launcher.kill()

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """For `signal.signal`.  A second signal ends the demo at once."""
        if self._signal:
            raise SystemExit(128 + number)
        self._signal = number

    def launch(self, name: str, *arguments: str) -> Launcher:
        """Start a launcher of the counter."""
        launcher = Launcher(name, self.folder, arguments)
        self.launchers.append(launcher)
        return launcher

    def checkpoint(self) -> tuple[int, int]:
        """How far the workers have counted, and the sum."""
        return last_checkpoint(self.folder)

    def has_saved(self, number: int) -> bool:
        """Whether a round has saved a checkpoint."""
        return checkpoint_file(self.folder, number).exists()

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
        for launcher in self.launchers:
            launcher.check()
        self._draw()
        time.sleep(LOOK_S)

    def _draw(self) -> None:
        if self._live is None:
            return
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(
            "launcher", "pid", "round", "rank", "state", title="run 'demo'", title_justify="left", min_width=60
        )
        for launcher in self.launchers:
            number, rank, size = launcher.place() if not launcher.outcome else (0, 0, 0)
            cells = (str(number), f"{rank} of {size}") if number else ("", "")
            table.add_row(launcher.name, str(launcher.popen.pid), *cells, Text(*launcher.state()))
        self._live.update(Group(table, *(Text(*sentence) for sentence in self._sentences)), refresh=True)
