"""How long nodes take to meet on etcd v3, to notice a loss, and what idling costs etcd; beside torch's etcd backends."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.etcd_v2 import median, ratio, serving, several, spread
from benchmarks.measurements import Setup, idle, regroup, split
from benchmarks.processes import descendant

OURS = "rallypoint:etcd-v3"
NODES = 64
MANY = 1000


def run(console: Console, output: Path) -> None:
    """Form, notice, idle; nothing is drawn, so `output` stays as it is."""
    with serving() as server:
        endpoint = server.get_endpoint()
        ours = several(OURS, NODES, endpoint)
        table = Table(
            *("torch's backend", "torch, s", "our etcd-v3, s", "times faster", "goal"),
            title=f"etcd-v3: form a world of {NODES}",
            title_justify="left",
        )
        for backend, goal in (("etcd-v2", "300"), ("etcd", "20")):
            theirs = several(f"torch:{backend}", NODES, endpoint)
            table.add_row(backend, spread(theirs), spread(ours), ratio(median(theirs), median(ours)), goal)
        console.print(table)
        alone = Table("what", "measured", "goal", title="etcd-v3 alone, one member", title_justify="left")
        alone.add_row(f"{MANY:,} nodes form", f"{spread(several(OURS, MANY, endpoint))} s", "under 1 s")
        alone.add_row("kill -9 of one of four is noticed", f"{noticed(endpoint):.2f} s", "under 0.3 s")
        alone.add_row(f"{MANY:,} idle nodes, etcd's share", f"{idle_share(endpoint):.1%} of a core", "under 2 %")
        console.print(alone)


def noticed(endpoint: str) -> float:
    """Seconds from the death of one of four nodes until the last of the others is told."""
    return regroup(Setup(OURS, endpoint, (3, 4))).told_s


def idle_share(endpoint: str) -> float:
    """The share of a core that etcd uses for many nodes that do nothing."""
    return idle(Setup(OURS, endpoint, (MANY, MANY)), split(MANY), descendant("etcd"))
