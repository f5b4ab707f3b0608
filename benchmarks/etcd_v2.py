"""How long nodes take to meet on etcd's API v2, and what a read costs: ours and torch's, side by side in one run.

torch's etcd-v2 falls off a cliff: where joining takes longer than the 15 s after which it gives nodes up, they give up each
other and begin anew.  64 nodes do so where etcd's disk is slow, 128 on a busy machine too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.measurements import GIVE_UP_S, Setup, form, split
from rallypoint.elastic.etcd_server import EtcdServer

SIZES = {"etcd-v2": (16, 64, 128), "etcd": (16, 64)}
GOALS = {("etcd-v2", 64): "50", ("etcd", 16): "3", ("etcd", 64): "3"}
RUNS = 3
KEYS = 1000
READS = 300


def run(console: Console, output: Path) -> None:
    """Form on both backends, and read one of many keys; nothing is drawn, so `output` stays as it is."""
    with serving() as server:
        endpoint = server.get_endpoint()
        for backend, sizes in SIZES.items():
            table = Table(
                *("nodes", f"torch {backend}, s", f"our {backend}, s", "times faster", "goal"),
                title=f"{backend}: form",
                title_justify="left",
            )
            for size in sizes:
                theirs, ours = (taken(f"{owner}:{backend}", size, endpoint) for owner in ("torch", "rallypoint"))
                table.add_row(
                    str(size), shown(theirs), shown(ours), ratio(theirs, ours), GOALS.get((backend, size), "")
                )
            console.print(table)
        reads = Table(*("", "torch, ms", "ours, ms", "times faster", "goal"), title="EtcdStore", title_justify="left")
        theirs_ms, ours_ms = read_ms(server)
        reads.add_row(
            *(f"get, {KEYS:,} keys in the prefix", f"{theirs_ms:.2f}", f"{ours_ms:.2f}"),
            *(f"{theirs_ms / ours_ms:.0f}", "10"),
        )
        console.print(reads)


@contextmanager
def serving() -> Iterator[EtcdServer]:
    """An etcd for both."""
    server = EtcdServer()
    server.start()
    try:
        yield server
    finally:
        server.stop()


def taken(implementation: str, nodes: int, endpoint: str, give_up_s: float = GIVE_UP_S) -> float | None:
    """Seconds until a world has formed; None where it has not by the time that we give up."""
    try:
        return form(Setup(implementation, endpoint, (nodes, nodes)), split(nodes), give_up_s)
    except TimeoutError:
        return None


def several(implementation: str, nodes: int, endpoint: str, give_up_s: float = GIVE_UP_S) -> list[float | None]:
    """What it takes, several times; the least first."""
    times = [taken(implementation, nodes, endpoint, give_up_s) for _ in range(RUNS)]
    return sorted(times, key=lambda seconds: give_up_s if seconds is None else seconds)


def median(times: list[float | None]) -> float | None:
    """The one in the middle."""
    return times[len(times) // 2]


def spread(times: list[float | None], give_up_s: float = GIVE_UP_S) -> str:
    """The median, the least and the most."""
    least, middle, most = (shown(seconds, give_up_s) for seconds in (times[0], median(times), times[-1]))
    return f"{middle} ({least} to {most})"


def shown(seconds: float | None, give_up_s: float = GIVE_UP_S) -> str:
    """A time, or what is known of it."""
    return f">= {give_up_s:.0f}" if seconds is None else f"{seconds:.2f}"


def ratio(theirs: float | None, ours: float | None, give_up_s: float = GIVE_UP_S) -> str:
    """How many times ours is faster, or at least how many."""
    if ours is None:
        return ""
    return f">= {give_up_s / ours:.0f}" if theirs is None else f"{theirs / ours:.1f}"


def read_ms(server: EtcdServer) -> tuple[float, float]:
    """Milliseconds that one read takes, on torch's store and on ours, in a directory with many keys."""
    from torch.distributed.elastic.rendezvous.etcd_store import EtcdStore as TorchStore

    from rallypoint.elastic.etcd_store import EtcdStore

    client = server.get_client()
    ours: Any = EtcdStore(client, "/bench")
    ours.multi_set([f"key{number}" for number in range(KEYS)], ["value"] * KEYS)
    theirs = TorchStore(client, "/bench")
    return _mean_ms(lambda: theirs.get("key500"), READS // 10), _mean_ms(lambda: ours.get("key500"), READS)


def _mean_ms(read: Callable[[], bytes], times: int) -> float:
    read()
    began = time.monotonic()
    for _ in range(times):
        read()
    return (time.monotonic() - began) / times * 1000
