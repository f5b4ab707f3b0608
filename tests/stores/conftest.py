"""Servers and stores to test, and a way to know that somebody is waiting without sleeping for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from typing import Any, TypeVar

import pytest

from rallypoint.stores import Store, StoreServer, listen
from rallypoint.stores.data import KeyValues, Waiter
from tests.support.etcd_v2_store_kinds import ETCD_KINDS
from tests.support.store_kinds import BRIEFLY, ETCD_V3, FILE, MEMORY, SOON, SOON_S, TCP, Kind, Open, etcd_v3, under
from tests.support.torch_store_kinds import TORCH_KINDS

__all__ = ["BRIEFLY", "SOON", "SOON_S", "Crew", "Handles", "Parked", "Parking", "result"]

T = TypeVar("T")


class Parking:
    """Counts who has come to wait, in whichever store of this process."""

    def __init__(self) -> None:
        self._arrived = threading.Semaphore(0)

    def came(self) -> None:
        self._arrived.release()

    def expect(self, waiters: int = 1) -> None:
        """Returns when as many more have begun to wait."""
        for _ in range(waiters):
            assert self._arrived.acquire(timeout=SOON_S), "nobody came to wait"


class Crew:
    """Threads whose failures are the test's."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool

    def start(self, task: Callable[..., T], *args: Any) -> Future[T]:
        return self._pool.submit(task, *args)


def result(future: Future[T]) -> T:
    return future.result(timeout=SOON_S)


@pytest.fixture
def parking(monkeypatch: pytest.MonkeyPatch) -> Parking:
    parking = Parking()
    enlist, barrier = KeyValues._enlist, KeyValues.barrier

    def watched_enlist(self: KeyValues[Waiter], waiter: Waiter, missing: set[bytes]) -> bool:
        done = enlist(self, waiter, missing)
        if not done:
            parking.came()
        return done

    def watched_barrier(self: KeyValues[Waiter], waiter: Waiter, key: bytes, world_size: int) -> bool:
        done = barrier(self, waiter, key, world_size)
        if not done:
            parking.came()
        return done

    monkeypatch.setattr(KeyValues, "_enlist", watched_enlist)
    monkeypatch.setattr(KeyValues, "barrier", watched_barrier)
    return parking


class Parked:
    """Sees that others wait, on any kind of store."""

    def __init__(self, watched: bool, parking: Parking) -> None:
        self._watched = watched
        self._parking = parking

    def __call__(self, *futures: Future[Any]) -> None:
        """Returns when all of them wait; on a store that nobody can look into, when none has come back for a while."""
        if self._watched:
            self._parking.expect(len(futures))
        done, _ = wait(futures, 0 if self._watched else BRIEFLY.total_seconds(), FIRST_COMPLETED)
        assert not done, "it did not wait"

    def gave_up(self) -> None:
        """Someone waited and does so no more."""
        if self._watched:
            self._parking.expect()


@pytest.fixture
def parked(handles: Handles, parking: Parking) -> Parked:
    return Parked(handles.watched, parking)


@pytest.fixture
def crew() -> Iterator[Crew]:
    with ThreadPoolExecutor(16) as pool:
        yield Crew(pool)


@pytest.fixture
def server() -> Iterator[StoreServer]:
    server = StoreServer()
    server.start_in_thread(listen("127.0.0.1"))
    yield server
    server.stop()


KINDS: dict[str, Kind] = {
    "memory": MEMORY,
    "file": FILE,
    "tcp": TCP,
    "prefix-memory": under(MEMORY, "prefix"),
    "prefix-file": under(FILE, "prefix"),
    "prefix-tcp": under(TCP, "prefix"),
    "inner-outer-tcp": under(TCP, "outer", "inner"),
    "etcd-v3 3.5, three members": etcd_v3("3.5", 3),
    "etcd-v3 3.4": ETCD_V3,
    "prefix-etcd-v3 3.4": under(ETCD_V3, "prefix"),
    **ETCD_KINDS,
    **TORCH_KINDS,
}


class Handles:
    """Opens handles on one store, as many as a test needs, and closes them."""

    def __init__(self, kind: Kind, stack: ExitStack) -> None:
        self.watched = kind.watched
        self.open: Open = kind.make(stack)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "handles" in metafunc.fixturenames:
        needed: frozenset[str] = getattr(metafunc.function, "needs", frozenset())
        names = [name for name, kind in KINDS.items() if not kind.lacks & needed]
        metafunc.parametrize("handles", names, indirect=True)


@pytest.fixture
def handles(request: pytest.FixtureRequest) -> Iterator[Handles]:
    with ExitStack() as stack:
        yield Handles(KINDS[request.param], stack)


@pytest.fixture
def store(handles: Handles) -> Store:
    return handles.open()
