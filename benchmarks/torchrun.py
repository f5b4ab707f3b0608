"""How long a training job stands still when an agent is killed: torchrun on torch's c10d and on ours, in one run.

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
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

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
    measured = [measure(backend) for backend in BACKENDS]
    table.add_row("first step after", *(f"{stood_still:.1f}" for stood_still, _ in measured), "start-up + 1")
    table.add_row("of that, the workers' start-up", *(f"{start_up:.1f}" for _, start_up in measured), "")
    table.add_row("the rest", *(f"{stood_still - start_up:.1f}" for stood_still, start_up in measured), "1")
    console.print(table)


def measure(backend: str) -> tuple[float, float]:
    """Seconds from the kill to the last survivor's first step in the new world, and from the start of its worker to it."""
    with tempfile.TemporaryDirectory() as folder, _agents(backend, Path(folder), _free_port()) as agents:
        # The first hosts, and is not the one to die.
        for agent in agents:
            agent.step(size=3)
        agents[2].kill()
        began = time.monotonic()
        steps = [agent.step(size=2) for agent in agents[:2]]
        last, pid = max((step["at"], step["pid"]) for step in steps)
        return last - began, last - _born(pid)


class Agent:
    """One torchrun."""

    def __init__(self, backend: str, folder: Path, port: int) -> None:
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2:3", "--nproc-per-node", "1"),
                *("--max-restarts", "9", "--rdzv-backend", backend, "--rdzv-endpoint", f"127.0.0.1:{port}"),
                *("--rdzv-id", "bench", "--rdzv-conf", "last_call_timeout=1"),
                *(str(TRAIN), "--checkpoint", str(folder / "checkpoint.pt"), "--steps", "1000000"),
            ],
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
        """Wait for a training step in a world of this size."""
        deadline = time.monotonic() + PATIENCE_S
        while (step := self._steps.get(timeout=max(deadline - time.monotonic(), 0.0)))["world_size"] != size:
            pass
        return step

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
                    event = json.loads(line)
                    self._workers.add(event["pid"])
                    if event["event"] == "step":
                        self._steps.put({**event, "at": time.monotonic()})


@contextmanager
def _agents(backend: str, folder: Path, port: int) -> Iterator[list[Agent]]:
    """Three agents in one job; the first is there before the others, so that it is the host."""
    agents = [Agent(backend, folder, port)]
    try:
        while not _listens(port):
            time.sleep(0.05)
        agents += [Agent(backend, folder, port) for _ in range(2)]
        yield agents
    finally:
        for agent in agents:
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


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
