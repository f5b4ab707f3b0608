"""Counting together on a cluster whose leaders fail: what every store on etcd has to come through."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from tests.support.etcd_servers import Cluster, wait_until

SOON_S = 60.0


class Counting(Protocol):
    """A store, of whatever kind."""

    def add(self, key: str, amount: int) -> int: ...

    def get(self, key: str) -> bytes: ...


def count_while_leaders_fail(cluster: Cluster, stores: Sequence[Counting]) -> None:
    """A thread a store counts, while the leader is killed, comes back, and the next one is paused.

    No count is lost, and none is made twice.
    """
    stop = threading.Event()
    counted: list[int] = []
    threads: list[Future[None]] = []

    def count(store: Counting) -> None:
        while not stop.is_set():
            counted.append(store.add("n", 1))

    def go_on_counting(more: int) -> None:
        wanted = len(counted) + more
        wait_until(lambda: len(counted) >= wanted or any(thread.done() for thread in threads))

    with ThreadPoolExecutor(len(stores)) as pool:
        threads += [pool.submit(count, store) for store in stores]
        try:
            go_on_counting(20)
            leader = cluster.leader()
            leader.kill()
            go_on_counting(20)
            leader.start()
            leader.wait()
            second = cluster.leader()
            second.pause()
            go_on_counting(20)
            second.go_on()
            go_on_counting(20)
        finally:
            stop.set()
        for thread in threads:
            thread.result(SOON_S)
    assert sorted(counted) == list(range(1, len(counted) + 1))
    assert stores[0].get("n") == str(len(counted)).encode()
