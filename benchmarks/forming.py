"""How long nodes take to meet, and to meet again after a loss: ours and torch's c10d, side by side in one run."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.measurements import Setup, form, idle, regroup, split
from benchmarks.processes import Worker, free_port, memory_mb, server

TORCH, OURS = "torch:c10d", "rallypoint:rallypoint"
SIZES = (4, 16, 64)
OURS_ALONE = (256, 1000)


def run(console: Console, output: Path) -> None:
    """Everything that the embedded server promises about speed."""
    formed: dict[int, tuple[float | None, float]] = {
        size: (form_embedded(TORCH, size), form_embedded(OURS, size)) for size in SIZES
    }
    formed.update({size: (None, form_embedded(OURS, size)) for size in OURS_ALONE})
    table = Table("nodes", "torch c10d, s", "rallypoint, s", "times faster", title="form a world", title_justify="left")
    for size, (theirs, ours) in formed.items():
        table.add_row(str(size), *compared(theirs, ours))
    console.print(table)
    again = Table(
        "one of four killed", "torch c10d, s", "rallypoint, s", "times faster", title="regroup", title_justify="left"
    )
    told = [regroup_embedded(kind, watch=False) for kind in (TORCH, OURS)]
    again.add_row("survivors rejoin at once", *compared(*told))
    noticed = [regroup_embedded(kind, watch=True) for kind in (TORCH, OURS)]
    again.add_row("survivors only watch", *compared(*noticed))
    console.print(again)
    alone = Table("what", "measured", "goal", title="the server alone", title_justify="left")
    seconds, memory = many_nodes(8000)
    alone.add_row("8,000 asyncio nodes form", f"{seconds:.2f} s", "under 4 s")
    alone.add_row("its memory then", f"{memory:.0f} MB", "under 100 MB")
    alone.add_row("1,000 idle nodes", f"{idle_share(1000):.1%} of a core", "under 4 %")
    alone.add_row("import rallypoint", f"{start_up('-c', 'import rallypoint') * 1000:.0f} ms", "under 10 ms")
    alone.add_row("rallypoint --help", f"{start_up('-m', 'rallypoint', '--help') * 1000:.0f} ms", "under 100 ms")
    console.print(alone)
    _plot(formed, output / "form.png")
    console.print(f"plot: {output / 'form.png'}")


def form_embedded(implementation: str, nodes: int, *give_up_s: float) -> float:
    """Seconds until the last of so many nodes has its rank, where one of the nodes serves the endpoint."""
    setup = Setup(implementation, f"127.0.0.1:{free_port()}", (nodes, nodes))
    return form(setup, split(nodes), *give_up_s)


def regroup_embedded(implementation: str, *, watch: bool) -> float | None:
    """Seconds from the death of one of four nodes to the new world of the others; None where they never notice."""
    setup = Setup(implementation, f"127.0.0.1:{free_port()}", (3, 4))
    try:
        return regroup(setup, watch=watch).world_s
    except TimeoutError:
        return None


def many_nodes(nodes: int) -> tuple[float, float]:
    """Seconds for so many nodes to form a world on a standalone server, and the server's memory."""
    half = nodes // 2
    with server() as (endpoint, pid), ExitStack() as stack:
        parts = [
            stack.enter_context(Worker("benchmarks.many_nodes", endpoint, "crowd", str(nodes), str(first), str(half)))
            for first in (0, half)
        ]
        for part in parts:
            part.hear()
        for part in parts:
            part.tell("join")
        return max(float(part.hear()) for part in parts), memory_mb(pid)


def idle_share(nodes: int) -> float:
    """The share of a core that a standalone server uses for so many nodes that do nothing."""
    with server() as (endpoint, pid):
        return idle(Setup(OURS, endpoint, (nodes, nodes)), split(nodes), pid)


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
