"""Agents of torchrun as processes that tests start, listen to and kill.  Tests wait for events; nobody sleeps.

An agent that is killed leaves its workers running, so every process is known by its own id, and ended by it.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.forked_processes import TORCH, ForkedProcess, has_stopped
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
TRAIN = ROOT / "examples" / "train.py"
WORKER = str(ROOT / "tests" / "torchrun" / "worker.py")
PATIENCE_S = 60.0
"""How long an event may take on a machine that is very busy; a test that passes never waits for so long."""

FAST: dict[str, Any] = {
    "heartbeat_interval": 0.3,
    "heartbeat_timeout": 3,
    "last_call_timeout": 60,
    "join_timeout": 80,
    "is_host": "false",
}

Event = dict[str, Any]


class Agent:
    """One torchrun; what its workers print as JSON lines are events, and so is each line on stderr."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        before: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.seen: list[Event] = []
        self.ended_at = 0.0
        self._taken = 0
        self._news: queue.Queue[Event | None] = queue.Queue()
        self._workers: set[int] = set()
        program = "torch.distributed.run"
        given = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1", **(environment or {})}
        self.process: ForkedProcess | subprocess.Popen[str]
        if before:
            self.process = subprocess.Popen(
                [*before, sys.executable, "-m", program, *arguments],
                cwd=ROOT,
                env=given,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                bufsize=1,
            )
        else:
            self.process = ForkedProcess(program, *arguments, environment=given, imported=TORCH)
        self._threads = [threading.Thread(target=work) for work in (self._read, self._read_errors, self._wait)]
        for thread in self._threads:
            thread.start()

    def __repr__(self) -> str:
        return f"<agent {self.name}, process {self.process.pid}>"

    # What it says -----------------------------------------------------------------------------------------------------

    def expect(self, kind: str, timeout_s: float = PATIENCE_S, **wanted: Any) -> Event:
        """Wait for an event that comes after the last one that was awaited; others are passed over."""
        deadline = time.monotonic() + timeout_s
        while True:
            while self._taken < len(self.seen):
                event = self.seen[self._taken]
                self._taken += 1
                if event["event"] == kind and all(_fits(event.get(name), value) for name, value in wanted.items()):
                    return event
            try:
                news = self._news.get(timeout=max(deadline - time.monotonic(), 0.0))
            except queue.Empty:
                raise AssertionError(f"{self}: no {kind!r} with {wanted} came; {self.last_words()}") from None
            if news is None:
                self._news.put(None)
                raise AssertionError(f"{self}: ended before {kind!r} with {wanted}; {self.account()}")
            self.seen.append(news)

    def reach(self, step: int) -> Event:
        """Wait until its worker has made a step with this number, or a later one."""
        while (event := self.expect("step"))["step"] < step:
            pass
        return event

    def says(self, words: str) -> str:
        """Wait for a line on stderr that contains these words."""
        return str(self.expect("stderr", line=words)["line"])

    def account(self) -> str:
        lines = [event["line"].rstrip() if event["event"] == "stderr" else str(event) for event in self.seen[-100:]]
        return "\n".join([f"exit code {self.process.poll()}", *lines])

    def last_words(self) -> str:
        """Its account, and where each of its threads stands: that ends it."""
        self._living_workers()
        self.send(signal.SIGABRT)
        self.process.wait()
        self._threads[1].join(1.0)
        self._drain()
        return self.account()

    def losses(self) -> list[float]:
        """The loss of every step that was seen, over all rounds."""
        return [event["loss"] for event in self.seen if event["event"] == "step"]

    # What is done to it -----------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """SIGKILL to the agent and to its workers, in one go."""
        workers = self._living_workers()
        for pid in [self.process.pid, *workers]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def kill_alone(self) -> None:
        """SIGKILL to the agent only: its workers stay behind."""
        self._living_workers()
        self.process.kill()
        self.process.wait()

    def send(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def pause(self) -> None:
        """SIGSTOP, and wait until it has stopped."""
        self.send(signal.SIGSTOP)
        until(lambda: has_stopped(self.process.pid), "it has stopped")

    def resume(self) -> None:
        self.send(signal.SIGCONT)

    def exit_code(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait for its end."""
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self} does not end; {self.last_words()}") from None
        self._threads[2].join()  # it notes when that was
        return code

    def errors(self) -> str:
        """All that it said on stderr, once it has ended."""
        self.exit_code()
        self._threads[1].join()
        self._drain()
        return "".join(event["line"] for event in self.seen if event["event"] == "stderr")

    def end(self) -> None:
        self.kill()
        for pid in self._workers:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for thread in self._threads:
            thread.join()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()

    # Inside -----------------------------------------------------------------------------------------------------------

    def _living_workers(self) -> list[int]:
        """The children of the agent; a worker that has outlived its agent is known by what it printed."""
        living = children(self.process.pid)
        self._workers.update(living)
        return living

    def _drain(self) -> None:
        with suppress(queue.Empty):
            while (news := self._news.get_nowait()) is not None:
                self.seen.append(news)
            self._news.put(None)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with suppress(ValueError):
                event = json.loads(line)
                self._workers.add(event["pid"])
                self._news.put({**event, "at": time.monotonic()})
        self._news.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._news.put({"event": "stderr", "line": line})

    def _wait(self) -> None:
        self.process.wait()
        self.ended_at = time.monotonic()


def children(pid: int) -> list[int]:
    """The ids of a process's children, and theirs."""
    try:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [int(child) for child in found] + [below for child in found for below in children(int(child))]


def connections(pid: int) -> list[int]:
    """The ports that a process is connected to, one for each connection."""
    sockets = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # it was closed meanwhile
            sockets.add(str(descriptor.readlink()))
    tables = [Path(f"/proc/{pid}/net/{name}").read_text(encoding="ascii") for name in ("tcp", "tcp6")]
    lines = [line.split() for table in tables for line in table.splitlines()[1:]]
    theirs = [line for line in lines if line[3] == "01" and f"socket:[{line[9]}]" in sockets]
    return [int(line[2].rpartition(":")[2], 16) for line in theirs]


def is_alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def _fits(value: object, wanted: object) -> bool:
    if isinstance(wanted, str) and isinstance(value, str):
        return wanted in value
    return value == wanted
