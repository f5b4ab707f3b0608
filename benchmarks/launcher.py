"""`rallypoint run` beside torchrun, in one run: a command from cold, two agents to the first step, a killed agent, 64 at once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial
from math import inf
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.processes import free_port
from benchmarks.torchrun import PATIENCE_S as WITHIN_S
from benchmarks.torchrun import first_step, kill_one, torchrun

LAUNCHERS = 64
TURNS = 5
PATIENCE_S = 300.0
RALLYPOINT = (sys.executable, "-m", "rallypoint", "run")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")


def run(console: Console, output: Path) -> None:
    """All of it, median of several where it is short; nothing is drawn, so `output` stays as it is."""
    table = Table(
        *("the launcher", "torchrun c10d, s", "torchrun on rallypoint, s", "rallypoint run, s", "goal, s"),
        title="rallypoint run beside torchrun",
        title_justify="left",
    )
    ways = (partial(torchrun, "c10d"), partial(torchrun, "rallypoint"), launcher)
    table.add_row(
        "`true` on one machine, from cold",
        f"{from_cold([*TORCHRUN, '--standalone', '--no-python', 'true']):.2f}",
        "",
        f"{from_cold([*RALLYPOINT, '--', 'true']):.2f}",
        "0.4",
    )
    steps = [_median(partial(first_step, way)) for way in ways]
    table.add_row("two agents to the first training step", *(_shown(took) for took, _ in steps), "3")
    table.add_row("of that, the workers' start-up", *(_shown(start_up) for _, start_up in steps), "")
    killed = [_median(partial(kill_one, way)) for way in ways]
    table.add_row("one of three killed, to the next step", *(_shown(took) for took, _ in killed), _shown(killed[1][0]))
    table.add_row("of that, the workers' start-up", *(_shown(start_up) for _, start_up in killed), "")
    table.add_row(f"{LAUNCHERS} launchers of `true`, until all ended", "", "", f"{many(LAUNCHERS):.1f}", "8")
    console.print(table)


def launcher(port: int, nodes: str) -> list[str]:
    """Our own launcher, with what `benchmarks.torchrun` gives torchrun."""
    return [
        *(*RALLYPOINT, "--nnodes", nodes, "--max-restarts", "9", "--rdzv", f"127.0.0.1:{port}"),
        *("--run-id", "bench", "--rdzv-conf", "last_call_timeout=1"),
    ]


def from_cold(command: list[str]) -> float:
    """Seconds that a command takes."""

    def once() -> float:
        began = time.monotonic()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=PATIENCE_S)
        return time.monotonic() - began

    return median(once() for _ in range(TURNS))


def many(count: int) -> float:
    """Seconds from the start of so many launchers of one world to the end of the last."""
    command = [*RALLYPOINT, "--nnodes", str(count), "--rdzv", f"127.0.0.1:{free_port()}", "--", "true"]
    began = time.monotonic()
    started = [
        subprocess.Popen(command, env=os.environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(count)
    ]
    try:
        codes = [process.wait(PATIENCE_S) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    if any(codes):
        raise RuntimeError(f"{count} launchers of `true` ended with {sorted(set(codes))}")
    return time.monotonic() - began


def _median(measure: partial[tuple[float, float]]) -> tuple[float, float]:
    """The median of three, by the first figure; infinite where one did not come to it in time."""
    try:
        return sorted(measure() for _ in range(3))[1]
    except TimeoutError:
        return inf, inf


def _shown(seconds: float) -> str:
    return f"not in {WITHIN_S:.0f} s" if seconds == inf else f"{seconds:.1f}"
