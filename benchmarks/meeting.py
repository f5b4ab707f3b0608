"""How long nodes take to meet, and to meet again after a loss: ours and torch's c10d, side by side in one run."""

from __future__ import annotations

import itertools
import socket
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.processes import Worker, cpu_s, memory_mb, server, workers

TORCH, OURS = "torch:c10d", "rallypoint:rallypoint"
GIVE_UP_S = 60.0
SIZES = (4, 16, 64)
OURS_ALONE = (256, 1000)
PROCESSES = 4
IDLE_S = 10

_runs = itertools.count()


def run(console: Console, output: Path) -> None:
    """Everything that the embedded server promises about speed."""
    formed: dict[int, tuple[float | None, float]] = {size: (form(TORCH, size), form(OURS, size)) for size in SIZES}
    formed.update({size: (None, form(OURS, size)) for size in OURS_ALONE})
    table = Table("nodes", "torch c10d, s", "rallypoint, s", "times faster", title="form a world", title_justify="left")
    for size, (theirs, ours) in formed.items():
        table.add_row(str(size), *compared(theirs, ours))
    console.print(table)
    again = Table(
        "one of four killed", "torch c10d, s", "rallypoint, s", "times faster", title="regroup", title_justify="left"
    )
    told = [regroup(kind, watch=False) for kind in (TORCH, OURS)]
    again.add_row("survivors rejoin at once", *compared(*told))
    noticed = [regroup(kind, watch=True) for kind in (TORCH, OURS)]
    again.add_row("survivors only watch", *compared(*noticed))
    console.print(again)
    alone = Table("what", "measured", "goal", title="the server alone", title_justify="left")
    seconds, memory = crowd(8000)
    alone.add_row("8,000 asyncio nodes form", f"{seconds:.2f} s", "under 8 s")
    alone.add_row("its memory then", f"{memory:.0f} MB", "under 200 MB")
    alone.add_row("1,000 idle nodes", f"{idle(1000):.1%} of a core", "under 5 %")
    alone.add_row("import rallypoint", f"{start_up('-c', 'import rallypoint') * 1000:.0f} ms", "under 60 ms")
    alone.add_row("rallypoint --help", f"{start_up('-m', 'rallypoint.cli', '--help') * 1000:.0f} ms", "under 150 ms")
    console.print(alone)
    _plot(formed, output / "form.png")
    console.print(f"plot: {output / 'form.png'}")


def form(implementation: str, nodes: int, give_up_s: float | None = None, endpoint: str | None = None) -> float:
    """Seconds until the last of so many nodes, joining at one instant, has its rank.

    TimeoutError where they do not meet before somebody gives up.  Without an endpoint, one of the nodes serves it.
    """
    endpoint, run_id = endpoint or f"127.0.0.1:{free_port()}", f"bench-{next(_runs)}"
    shares = [nodes // PROCESSES + (i < nodes % PROCESSES) for i in range(PROCESSES)]
    started = [
        Worker("benchmarks.node", implementation, endpoint, run_id, str(nodes), str(nodes), str(n)) for n in shares
    ]
    with workers(*started):
        for worker in started:
            worker.hear()
        for worker in started:
            worker.tell("join")
        began = time.monotonic()
        places = []
        for worker in started:
            places += worker.hear(None if give_up_s is None else began + give_up_s - time.monotonic())
    ranks = sorted(rank for _, rank, _ in places)
    if ranks != list(range(nodes)):
        raise AssertionError(f"{implementation}: the ranks of {nodes} nodes are {ranks}")
    return max(float(seconds) for seconds, _, _ in places)


def regroup(implementation: str, *, watch: bool) -> float | None:
    """Seconds from the death of one of four nodes to the new world of the others; None where they never notice."""
    endpoint, run_id = f"127.0.0.1:{free_port()}", f"bench-{next(_runs)}"
    first = Worker("benchmarks.node", implementation, endpoint, run_id, "3", "4", "1")
    first.hear()  # the first process hosts, and is not the one to die
    nodes = [first] + [Worker("benchmarks.node", implementation, endpoint, run_id, "3", "4", "1") for _ in range(3)]
    with workers(*nodes):
        for node in nodes[1:]:
            node.hear()
        for node in nodes:
            node.tell("join")
        for node in nodes:
            node.hear()
        nodes[3].kill()
        began = time.monotonic()
        if watch:
            for node in nodes[:3]:
                node.tell(f"watch {GIVE_UP_S}")
            if any(node.hear() < 0 for node in nodes[:3]):
                return None
        for node in nodes[:3]:
            node.tell("join")
        for node in nodes[:3]:
            node.hear()
        return time.monotonic() - began


def crowd(nodes: int) -> tuple[float, float]:
    """Seconds for so many nodes to form a world on a standalone server, and the server's memory."""
    with server() as (endpoint, pid):
        half = nodes // 2
        parts = [Worker("benchmarks.crowd", endpoint, "crowd", str(nodes), str(i * half), str(half)) for i in (0, 1)]
        with workers(*parts):
            for part in parts:
                part.hear()
            for part in parts:
                part.tell("join")
            return max(float(part.hear()) for part in parts), memory_mb(pid)


def idle(nodes: int) -> float:
    """The share of a core that a server uses for so many nodes that do nothing."""
    with server() as (endpoint, pid):
        crew = Worker("benchmarks.crowd", endpoint, "idle", str(nodes), "0", str(nodes))
        with workers(crew):
            crew.hear()
            crew.tell("join")
            crew.hear()
            crew.tell("stay 3")
            crew.hear()
            before = cpu_s(pid)
            crew.tell(f"stay {IDLE_S}")
            if not crew.hear():
                raise AssertionError("idle nodes lost their world")
            return (cpu_s(pid) - before) / IDLE_S


def start_up(*arguments: str) -> float:
    """Seconds that a command takes, less those of an empty interpreter; the best of five."""
    return _best(*arguments) - _best("-c", "pass")


def _best(*arguments: str) -> float:
    taken = []
    for _ in range(5):
        began = time.monotonic()
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
        taken.append(time.monotonic() - began)
    return min(taken)


def compared(theirs: float | None, ours: float | None) -> tuple[str, str, str]:
    """A row's columns: torch's seconds, ours, and how many times ours is faster."""
    shown = [("—" if value is None else f"{value:.3f}") for value in (theirs, ours)]
    return shown[0], shown[1], f"{theirs / ours:.0f}" if theirs and ours else ""


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _plot(formed: dict[int, tuple[float | None, float]], file: Path) -> None:
    from matplotlib import pyplot

    chart, axes = pyplot.subplots(figsize=(6, 4))
    theirs = [(size, pair[0]) for size, pair in formed.items() if pair[0] is not None]
    axes.loglog([size for size, _ in theirs], [seconds for _, seconds in theirs], "s--", label="torch c10d")
    axes.loglog(list(formed), [ours for _, ours in formed.values()], "o-", label="rallypoint")
    axes.set_xlabel("nodes")
    axes.set_ylabel("seconds until the last has its rank")
    axes.legend()
    chart.tight_layout()
    chart.savefig(file)
