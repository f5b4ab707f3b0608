"""How long nodes take to meet where etcd's disk is slow: every write of etcd's waits for it, and torch writes one by one.

strace delays each of etcd's syncs.  The delay is such that 16 nodes of torch's etcd-v2 take about 4 s, as they do on a disk
of the cheaper kind; of the quick disk the other benchmarks tell.  How often torch's nodes get in each other's way is a
matter of luck, so each is measured several times: the median counts, and the least and the most are shown.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.etcd_v2 import median, ratio, several, spread
from rallypoint.elastic.etcd_server import BINARY_VARIABLE, EtcdServer, find_etcd

SYNC_S = 0.08
GIVE_UP_S = 240.0
SIZES = (("etcd-v2", 16), ("etcd-v2", 64), ("etcd", 64))
GOALS = {("etcd-v2", 64): ("50", "300"), ("etcd", 64): ("", "20")}


def run(console: Console, output: Path) -> None:
    """Form on torch's backends and on ours; nothing is drawn, so `output` stays as it is."""
    if shutil.which("strace") is None:
        console.print("what a slow disk costs was not measured: there is no strace here to slow etcd's down")
        return
    table = Table(
        *("nodes", "torch's backend", "torch, s", "ours of that name, s", "times faster", "goal"),
        *("our etcd-v3, s", "times faster", "goal"),
        title=f"etcd on a disk that takes {SYNC_S * 1000:.0f} ms for a sync: form",
        title_justify="left",
    )
    with serving() as server:
        endpoint = server.get_endpoint()
        for backend, size in SIZES:
            same, best = (several(f"rallypoint:{ours}", size, endpoint, GIVE_UP_S) for ours in (backend, "etcd-v3"))
            theirs = several(f"torch:{backend}", size, endpoint, GIVE_UP_S)
            goals = GOALS.get((backend, size), ("", ""))
            row = [str(size), backend, spread(theirs, GIVE_UP_S)]
            for ours, goal in zip((same, best), goals, strict=True):
                row += [spread(ours, GIVE_UP_S), ratio(median(theirs), median(ours), GIVE_UP_S), goal]
            table.add_row(*row)
    console.print(table)


@contextmanager
def serving(sync_s: float = SYNC_S) -> Iterator[EtcdServer]:
    """An etcd whose every sync takes so long."""
    before, folder = os.environ.get(BINARY_VARIABLE), Path(tempfile.mkdtemp(prefix="slow-etcd-"))
    slowed = folder / "etcd"
    slowed.write_text(
        f"#!/bin/sh\nexec strace -D -f --seccomp-bpf -qqq -o /dev/null -e trace=fdatasync"
        f' -e inject=fdatasync:delay_exit={sync_s * 1e6:.0f} {find_etcd()} "$@"\n',
        encoding="utf-8",
    )
    slowed.chmod(0o755)
    server = EtcdServer()
    try:
        os.environ[BINARY_VARIABLE] = str(slowed)
        server.start()
        yield server
    finally:
        server.stop()
        os.environ.pop(BINARY_VARIABLE)
        if before is not None:
            os.environ[BINARY_VARIABLE] = before
        shutil.rmtree(folder)
