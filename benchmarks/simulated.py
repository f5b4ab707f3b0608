"""The cost of a round in the simulation, from a hundred to a hundred thousand nodes: near-linear, or something is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from simulation.scale import Figures

SIZES = (100, 1_000, 10_000, 100_000)


def run(console: Console, output: Path) -> None:
    """Form one world of each size, each in a process of its own so that none inherits another's memory."""
    figures = [_measure(nodes) for nodes in SIZES]
    table = Table(title="one round in the simulation", title_justify="left")
    for column in ("nodes", "seconds", "µs a node", "messages a node", "bytes a node"):
        table.add_column(column, justify="right")
    for f in figures:
        table.add_row(
            f"{f.nodes:,}",
            f"{f.seconds:.2f}",
            f"{f.seconds / f.nodes * 1e6:.0f}",
            f"{f.messages_a_node:.2f}",
            f"{f.octets_a_node:.0f}",
        )
    console.print(table)
    _plot(figures, output / "simulated.png")
    console.print(f"plot: {output / 'simulated.png'}")


def _measure(nodes: int) -> Figures:
    code = f"import msgspec, sys; from simulation.scale import form; sys.stdout.buffer.write(msgspec.json.encode(form({nodes})))"
    told = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    return msgspec.json.decode(told.stdout, type=Figures)


def _plot(figures: list[Figures], file: Path) -> None:
    from matplotlib import pyplot

    chart, axes = pyplot.subplots(figsize=(6, 4))
    nodes = [f.nodes for f in figures]
    axes.loglog(nodes, [f.seconds for f in figures], "o-", label="measured")
    first = figures[0]
    axes.loglog(nodes, [first.seconds * n / first.nodes for n in nodes], "--", label="linear")
    axes.set_xlabel("nodes")
    axes.set_ylabel("seconds for one round")
    axes.legend()
    chart.tight_layout()
    chart.savefig(file)
