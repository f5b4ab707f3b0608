"""How long a training job takes to its first step, and stands still when an agent is killed: torchrun and `rallypoint run`.

Measured from `kill -9` of one of three agents, with its worker, to the first training step of the two that are left.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.table import Table

from benchmarks.processes import free_port

TRAIN = Path(__file__).resolve().parents[1] / "examples" / "train.py"
PATIENCE_S = 180.0
BACKENDS = ("c10d", "rallypoint")


def run(console: Console, output: Path) -> None:
    """Both, and what of it is the workers' own start-up; nothing is drawn, so `output` stays as it is."""
    table = Table(
        *("torchrun, one of three agents killed", "torch c10d, s", "rallypoint, s", "goal"),
        title="kill -9 to the first step of the new world",
        title_justify="left",
    )
    measured = [kill_one(partial(torchrun, backend)) for backend in BACKENDS]
    table.add_row("first step after", *(f"{stood_still:.1f}" for stood_still, _ in measured), "start-up + 1")
    table.add_row("of that, the workers' start-up", *(f"{start_up:.1f}" for _, start_up in measured), "")
    table.add_row("the rest", *(f"{stood_still - start_up:.1f}" for stood_still, start_up in measured), "1")
    console.print(table)


def kill_one(command: Command) -> tuple[float, float]:
    """Seconds from the kill to the last survivor's first step in the new world, and from the start of its worker to it."""
    with agents(command, "2:3", 3) as all_three:
        # The first hosts, and is not the one to die.
        for agent in all_three:
            agent.step(size=3)
        all_three[2].kill()
        began = time.monotonic()
        steps = [agent.step(size=2) for agent in all_three[:2]]
        last, pid = max((step["at"], step["pid"]) for step in steps)
        return last - began, last - _born(pid)


def first_step(command: Command) -> tuple[float, float]:
    """Seconds from the start of two agents to the last one's first step, and from the start of its worker to that."""
    began = time.monotonic()
    with agents(command, "2", 2, at_once=True) as both:
        last, pid = max((step["at"], step["pid"]) for step in [agent.step(size=2) for agent in both])
        return last - began, last - _born(pid)


class Command(Protocol):
    """The command line of an agent, without the program that it starts."""

    def __call__(self, port: int, nodes: str) -> list[str]: ...


def torchrun(backend: str, port: int, nodes: str) -> list[str]:
    """torchrun on a backend."""
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes", nodes, "--nproc-per-node", "1"),
        *("--max-restarts", "9", "--rdzv-backend", backend, "--rdzv-endpoint", f"127.0.0.1:{port}"),
        *("--rdzv-id", "bench", "--rdzv-conf", "last_call_timeout=1"),
    ]


class Agent:
    """One agent that trains."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self.process = subprocess.Popen(
            [*command, str(TRAIN), "--checkpoint", str(folder / "checkpoint.pt"), "--steps", "1000000"],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._steps: queue.Queue[dict[str, Any]] = queue.Queue()
        self._workers: set[int] = set()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def step(self, size: int) -> dict[str, Any]:
        """Wait for a training step in a world of this size; TimeoutError where there is none in time."""
        deadline = time.monotonic() + PATIENCE_S
        with suppress(queue.Empty):
            while (step := self._steps.get(timeout=max(deadline - time.monotonic(), 0.0)))["world_size"] != size:
                pass
            return step
        raise TimeoutError(f"there was no step of {size} agents within {PATIENCE_S:.0f} s")

    def kill(self) -> None:
        """SIGKILL to the agent and its workers."""
        self.process.kill()
        for pid in self._workers:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        """Leave nothing running."""
        self.kill()
        self._reader.join()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                with suppress(ValueError):
                    event = json.loads(line[line.index("{") :])  # behind the rank
                    self._workers.add(event["pid"])
                    if event["event"] == "step":
                        self._steps.put({**event, "at": time.monotonic()})


@contextmanager
def agents(command: Command, nodes: str, count: int, *, at_once: bool = False) -> Iterator[list[Agent]]:
    """Agents in one job; unless all start at once, the first is there before the others, so that it is the host."""
    port, started = free_port(), []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for _ in range(count):
                started.append(Agent(command(port, nodes), Path(folder)))
                while not at_once and not _listens(port):
                    time.sleep(0.05)
            yield started
        finally:
            for agent in started:
                agent.end()


def _born(pid: int) -> float:
    """When a process that still runs was started, on the monotonic clock (this machine has not slept meanwhile)."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    since_boot = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return since_boot - (time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic())


def _listens(port: int) -> bool:
    import socket

    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
