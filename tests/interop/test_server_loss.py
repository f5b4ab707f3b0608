"""What a client learns when its server is killed while it waits: at once, and as an error, not by its time-out."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Any

import pytest

from rallypoint.stores import Store, StoreError, StoreServer, TcpStore, listen
from tests.support.remote_stores import RemoteStore, StoreProcess, start_process
from tests.support.store_kinds import BRIEFLY, SOON, SOON_S
from tests.support.store_threads import Threads

# A time-out of the waits themselves is far beyond it.
AT_ONCE_S = 5.0

WAITS: dict[str, Callable[[Store], object]] = {
    "get": lambda store: store.get("absent"),
    "wait": lambda store: store.wait(["absent"], SOON),
    "multi_get": lambda store: store.multi_get(["absent", "too"]),
    "queue_pop": lambda store: store.queue_pop("absent"),
    "barrier": lambda store: store.barrier("b", 99, SOON),
}


def serve(pipe: Connection) -> None:
    """A server of ours in a process of its own."""
    server = StoreServer()
    server.start_in_thread(listen("127.0.0.1"))
    pipe.send(server.port)
    pipe.recv()


@pytest.fixture(params=["ours", "torch's"])
def doomed(request: pytest.FixtureRequest, stack: ExitStack) -> tuple[int, Callable[[], None]]:
    """The port of a server in a process of its own, and what kills it with SIGKILL."""
    if request.param == "torch's":
        store_process = StoreProcess()
        return store_process.open_master().port, store_process.kill
    ours, theirs = multiprocessing.Pipe()
    process = start_process(serve, theirs)
    stack.callback(ours.close)
    assert ours.poll(SOON_S)

    def kill() -> None:
        process.kill()
        process.join(SOON_S)

    port: int = ours.recv()
    return port, kill


@pytest.mark.parametrize("kind", ["ours", "torch"])
def test_who_waits_when_the_server_is_killed_is_told_at_once(
    doomed: tuple[int, Callable[[], None]], guest: StoreProcess, stack: ExitStack, threads: Threads, kind: str
) -> None:
    port, kill = doomed

    def open_store() -> Store:
        if kind == "ours":
            return stack.enter_context(TcpStore("127.0.0.1", port, timeout=SOON))
        store: RemoteStore = guest.open_tcp(port)
        stack.callback(store.close)
        return store

    stores = [open_store() for _ in WAITS]
    idle = open_store()
    idle.set("key", "v")
    waiting: list[Future[Any]] = [threads.start(ask, store) for ask, store in zip(WAITS.values(), stores, strict=True)]
    assert not wait(waiting, BRIEFLY.total_seconds(), FIRST_COMPLETED).done
    killed = time.monotonic()
    kill()
    for future in waiting:
        with pytest.raises(StoreError):
            future.result(SOON_S)
    assert time.monotonic() - killed < AT_ONCE_S
    for store in (*stores, idle):
        with pytest.raises(StoreError):
            store.num_keys()
