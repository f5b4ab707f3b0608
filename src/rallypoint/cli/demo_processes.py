"""The demo's processes: started, watched and ended here; a live table of them on a terminal, plain lines elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from rallypoint.cli.output import is_terminal

if TYPE_CHECKING:
    from rich.console import Group

STEP_S = 15.0
"""How long a step may take; each takes a fraction of a second, more where starting Python is slow."""
LOOK_S = 0.05
"""How often the demo reads what its processes have printed."""
PAUSE_S = 1.3
"""The pause before each step on a terminal, so that people can follow."""


class DemoError(Exception):
    """Something that should have happened did not."""


class Process:
    """One process.  It prints into a file; its standard input stays open until it is told to finish."""

    def __init__(self, name: str, log: Path, arguments: tuple[str, ...]) -> None:
        self.name = name
        self.may_end = False
        self.outcome = ""
        self._output = log.with_suffix(".out")
        self._errors = log.with_suffix(".err")
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            # In a session of its own, because Ctrl-C is for the demo, which then ends its processes itself.
            self.popen = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=errors,
                start_new_session=True,
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

    def finish(self) -> None:
        """Let a node end by itself."""
        self.may_end = True
        assert self.popen.stdin is not None, "started with a pipe"
        self.popen.stdin.close()

    def look(self) -> None:
        """Note its end, which is an error unless it was told to end and succeeded."""
        code = self.popen.poll()
        if code is not None and not self.outcome:
            self.outcome = f"exit code {code}"
            if code != 0 or not self.may_end:
                complaints = self._errors.read_text(encoding="utf-8", errors="replace").strip() or "it said nothing"
                raise DemoError(f"{self.name} ended with {self.outcome}: {complaints.splitlines()[-1]}")

    def state(self) -> tuple[str, str]:
        """What it is doing, and the colour of that."""
        if self.outcome:
            return self.outcome, "red" if self.outcome == "killed" else "dim"
        if not self.lines():
            return "starting", "dim"
        events = self.events()
        if not events:
            return "serving", "cyan"
        known = {"joining": "waiting", "changed": "regrouping", "finished": "finished"}.get(events[-1]["event"])
        return (known, "yellow") if known else ("working", "green")


class Demo:
    """All processes of the demo, and what it says of them.  Leaving the block ends those that still run and removes their files.

    A signal that asks for the end is obeyed only while the demo waits.  An exception from a signal handler could come at
    any moment: while a process is started, which then nobody ends, or while `Popen` holds a lock.
    """

    def __init__(self) -> None:
        self.processes: list[Process] = []
        self.folder = Path()
        self._signal = 0
        self._sentences: list[tuple[str, bool]] = []
        self._is_live = is_terminal()
        self._draw: Callable[[], None] = lambda: None
        self._resources = ExitStack()

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
            if time.monotonic() > deadline:
                raise DemoError(f"within {STEP_S:.0f} s it did not happen that {what}")
            self._look()

    def say(self, sentence: str, *, heading: bool = False) -> None:
        """Say which step comes next (a heading), or what came of it."""
        pause_ends = time.monotonic() + (PAUSE_S if heading and self._is_live else 0)
        while time.monotonic() < pause_ends:
            self._look()
        self._sentences.append((sentence if heading else f"  {sentence}", heading))
        if not self._is_live:
            print(self._sentences[-1][0], flush=True)
        self._draw()

    def _look(self) -> None:
        if self._signal:
            raise SystemExit(128 + self._signal)
        for process in self.processes:
            process.look()
        self._draw()
        time.sleep(LOOK_S)

    def _picture(self) -> Group:
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
        return Group(table, *(Text(sentence, "bold" if heading else "") for sentence, heading in self._sentences))

    def __enter__(self) -> Demo:
        self.folder = Path(self._resources.enter_context(TemporaryDirectory(prefix="rallypoint-demo-")))
        if self._is_live:
            from rich.live import Live

            live = self._resources.enter_context(Live(auto_refresh=False))
            self._draw = lambda: live.update(self._picture(), refresh=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for process in self.processes:
            process.popen.kill()
        for process in self.processes:
            with process.popen:  # waits for it, and closes the pipe
                pass
        self._resources.close()
