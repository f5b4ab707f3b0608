"""Processes that do what they are told, line by line, and answer in JSON: what the benchmarks measure with."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


class Worker:
    """A Python module run as a process of its own.

    By default it asks nobody for the names of addresses: torch looks up the name of every peer, and where the name
    service is slow, that would be all that is measured.
    """

    def __init__(self, module: str, *arguments: str, looks_up: bool = False) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env=os.environ if looks_up else {**os.environ, "RES_OPTIONS": "attempts:0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            bufsize=1,
        )

    def tell(self, order: str) -> None:
        """Give an order."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{order}\n")
        self.process.stdin.flush()

    def hear(self, within_s: float | None = None) -> Any:
        """Wait for an answer; TimeoutError where it does not come in time."""
        assert self.process.stdout is not None
        if within_s is not None and not select.select([self.process.stdout], [], [], max(within_s, 0.0))[0]:
            raise TimeoutError(f"no answer within {within_s:.0f} s")
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args!r} ended with {self.process.wait()} and said nothing")
        return json.loads(line)

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()


@contextmanager
def workers(*started: Worker) -> Iterator[tuple[Worker, ...]]:
    """Workers that do not outlive the block."""
    try:
        yield started
    finally:
        for worker in started:
            worker.kill()


@contextmanager
def server() -> Iterator[tuple[str, int]]:
    """A standalone server: its endpoint and its process id."""
    process = subprocess.Popen(
        [sys.executable, "-m", "rallypoint.cli", "serve", "--bind", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().rsplit(" ", 1)[-1].strip(), process.pid
    finally:
        process.kill()
        process.wait()


def answer(what: Any) -> None:
    """Say something to whoever started this process."""
    print(json.dumps(what), flush=True)


def memory_mb(pid: int) -> float:
    """The largest amount of memory that a process has had."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} has no memory")


def cpu_s(pid: int) -> float:
    """How much processor time a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def descendant(name: str, of: int | None = None) -> int:
    """The process of this name among those that this one, or another, has started."""
    pid = os.getpid() if of is None else of
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text(encoding="ascii").split():
            if Path(f"/proc/{child}/comm").read_text(encoding="utf-8").strip() == name:
                return int(child)
            with suppress(LookupError):
                return descendant(name, int(child))
    raise LookupError(f"there is no process {name!r} among those that process {pid} has started")
