"""Servers and stores to test, and a way to know that somebody is waiting without sleeping for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from rallypoint.stores import Store, StoreServer, listen
from rallypoint.stores.data import KeyValues, Waiter
from tests.support.etcd_v2_store_kinds import ETCD_KINDS
from tests.support.store_kinds import ETCD_V3, FILE, MEMORY, TCP, Handles, Kind, etcd_v3, under
from tests.support.store_threads import WaitChecks, WaitCounter, threads
from tests.support.torch_store_kinds import TORCH_KINDS

__all__ = ["threads"]


@pytest.fixture
def wait_counter(monkeypatch: pytest.MonkeyPatch) -> WaitCounter:
    wait_counter = WaitCounter()
    enlist, stand_at = KeyValues._enlist, KeyValues.stand_at

    def watched_enlist(self: KeyValues[Waiter], waiter: Waiter, missing: set[bytes]) -> bool:
        done = enlist(self, waiter, missing)
        if not done:
            wait_counter.came()
        return done

    def watched_stand_at(self: KeyValues[Waiter], waiter: Waiter, key: bytes) -> None:
        stand_at(self, waiter, key)
        wait_counter.came()

    monkeypatch.setattr(KeyValues, "_enlist", watched_enlist)
    monkeypatch.setattr(KeyValues, "stand_at", watched_stand_at)
    return wait_counter


@pytest.fixture
def all_wait(handles: Handles, wait_counter: WaitCounter) -> WaitChecks:
    return WaitChecks(handles.watched, wait_counter)


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
