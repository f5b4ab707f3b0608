"""Masters and workers of both kinds on one server: how they find and count each other, and what they see."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta

import pytest

from rallypoint.stores import PrefixStore, Store, StoreServer, StoreTimeoutError, TcpStore, listen
from tests.stores.test_tcp import free_port
from tests.support.remote_stores import RemoteStore, StoreProcess
from tests.support.store_kinds import BRIEFLY, SOON
from tests.support.store_threads import Threads, result

# Who works for whom: the master first.
WORLDS = [("ours", "torch", "torch"), ("torch", "ours", "ours"), ("ours", "torch", "ours"), ("torch", "torch", "ours")]


class Hiring:
    """Opens stores of both kinds, all at once if need be."""

    def __init__(self, host: StoreProcess, guest: StoreProcess, threads: Threads, stack: ExitStack) -> None:
        self._store_processes = {True: host, False: guest}
        self._crew = threads
        self._stack = stack

    def begin(
        self, kind: str, port: int, is_master: bool = False, host: str = "127.0.0.1", **how: object
    ) -> Callable[[], Store]:
        """What returns the store when it is open."""
        how = {"is_master": is_master, "timeout": SOON, **how}
        if kind == "ours":
            opening = self._crew.start(lambda: self._stack.enter_context(TcpStore(host, port, **how)))  # type: ignore[arg-type]
            return lambda: result(opening)
        remote = self._store_processes[is_master].begin_to_open("open_tcp", host, port, how)

        def finish() -> RemoteStore:
            store = result(remote)
            self._stack.callback(store.close)
            return store

        return finish

    def open(self, kind: str, port: int, is_master: bool = False, **how: object) -> Store:
        return self.begin(kind, port, is_master, **how)()  # type: ignore[arg-type]


@pytest.fixture
def hiring(host: StoreProcess, guest: StoreProcess, threads: Threads, stack: ExitStack) -> Hiring:
    return Hiring(host, guest, threads, stack)


@pytest.mark.parametrize("world", WORLDS, ids="-".join)
def test_a_master_waits_for_workers_of_both_kinds(hiring: Hiring, world: tuple[str, ...]) -> None:
    port = free_port()
    master = hiring.begin(world[0], port, is_master=True, world_size=3)
    workers = [hiring.open(kind, port, world_size=3) for kind in world[1:]]
    stores = [master(), *workers]
    # They are counted under a key that counts as one, and is not listed.
    assert [(store.num_keys(), store.list_keys()) for store in stores] == [(1, [])] * 3
    for rank, store in enumerate(stores):
        store.set(f"rank{rank}", str(rank))
    for store in stores:
        assert store.multi_get(["rank0", "rank1", "rank2"]) == [b"0", b"1", b"2"]
    assert stores[0].num_keys() == 4


@pytest.mark.parametrize("kinds", [("ours", "torch"), ("torch", "ours")], ids="-".join)
def test_a_master_without_enough_workers_gives_up(hiring: Hiring, kinds: tuple[str, str]) -> None:
    port = free_port()
    master = hiring.begin(kinds[0], port, is_master=True, world_size=3, timeout=timedelta(seconds=1))
    hiring.open(kinds[1], port, world_size=3)
    with pytest.raises(StoreTimeoutError):
        master()


@pytest.mark.parametrize("kind", ["ours", "torch"])
def test_a_client_that_comes_before_its_server_waits_for_it(hiring: Hiring, kind: str) -> None:
    other = {"ours": "torch", "torch": "ours"}[kind]
    port = free_port()
    early = hiring.begin(kind, port)
    master = hiring.open(other, port, is_master=True, wait_for_workers=False)
    master.set("key", "v")
    assert early().get("key") == b"v"


@pytest.mark.parametrize("kinds", [("ours", "torch"), ("torch", "ours")], ids="-".join)
def test_a_master_chooses_a_port_and_shares_its_server_with_another(hiring: Hiring, kinds: tuple[str, str]) -> None:
    how = {"is_master": True, "wait_for_workers": False, "multi_tenant": True}
    first = hiring.open(kinds[0], 0, **how)
    assert isinstance(first, (TcpStore, RemoteStore))
    assert first.port > 0
    second = hiring.open(kinds[0], first.port, **how)
    client = hiring.open(kinds[1], first.port)
    PrefixStore("one", first).set("key", "1")
    PrefixStore("two", second).set("key", "2")
    assert client.multi_get(["one/key", "two/key"]) == [b"1", b"2"]
    first.close()
    assert client.get("two/key") == b"2"
    assert second.get("one/key") == b"1"


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "localhost"])
def test_a_server_on_both_families_is_found_by_either(hiring: Hiring, stack: ExitStack, address: str) -> None:
    server = StoreServer()
    server.start_in_thread(listen("::"))
    stack.callback(server.stop)
    theirs = hiring.open("torch", 0, is_master=True, wait_for_workers=False)
    assert isinstance(theirs, RemoteStore)
    for client in (
        hiring.open("torch", server.port, host=address),
        hiring.open("ours", server.port, host=address),
        hiring.open("ours", theirs.port, host=address),
    ):
        assert client.add("n", 1) > 0


@pytest.mark.parametrize("kind", ["ours", "torch"])
def test_stores_of_one_process_have_connections_of_their_own(
    hiring: Hiring, port: int, kind: str, threads: Threads
) -> None:
    first, second = hiring.open(kind, port), hiring.open(kind, port)
    waiting = threads.start(first.get, "key")
    second.set("key", "v")
    assert result(waiting) == b"v"
    third = second.clone()
    third.set_timeout(BRIEFLY)
    with pytest.raises(StoreTimeoutError):
        third.get("absent")
    assert second.timeout == SOON


# On one server ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "round 7"], ids=["plain", "prefix"])
def test_both_kinds_meet_at_a_barrier(hiring: Hiring, port: int, threads: Threads, prefix: str) -> None:
    def dressed(kind: str) -> Store:
        store = hiring.open(kind, port)
        if not prefix:
            return store
        return store.under(prefix) if isinstance(store, RemoteStore) else PrefixStore(prefix, store)

    stores = [dressed(kind) for kind in ("ours", "torch", "ours", "torch")]
    for turn in ("first", "second"):
        passing = [threads.start(store.barrier, turn, 4, SOON) for store in stores[:3]]
        with pytest.raises(TimeoutError):
            passing[0].result(BRIEFLY.total_seconds())
        stores[3].barrier(turn, 4, SOON)
        for future in passing:
            result(future)


def test_prefixes_and_keys_are_the_same_to_both(hiring: Hiring, port: int) -> None:
    ours, theirs = hiring.open("ours", port), hiring.open("torch", port)
    assert isinstance(theirs, RemoteStore)
    PrefixStore("inner", PrefixStore("outer", ours)).set("ü", b"\0\xff")
    assert theirs.under("outer").under("inner").get("ü") == b"\0\xff"
    theirs.under("outer").under("inner").set("back", "x")
    assert PrefixStore("inner", PrefixStore("outer", ours)).get("back") == b"x"
    assert sorted(ours.list_keys()) == sorted(theirs.list_keys()) == ["outer/inner/back", "outer/inner/ü"]
    for under in (PrefixStore("outer", ours), theirs.under("outer")):
        assert sorted(under.list_keys()) == ["inner/back", "inner/ü"]
        assert under.num_keys() == 2


def test_what_one_kind_waits_for_the_other_brings(hiring: Hiring, port: int, threads: Threads) -> None:
    for waiter, writer in (
        (hiring.open("ours", port), hiring.open("torch", port)),
        (hiring.open("torch", port), hiring.open("ours", port)),
    ):
        name = type(waiter).__name__
        getting = threads.start(waiter.multi_get, [f"{name}/a", f"{name}/b"])
        writer.set(f"{name}/a", "1")
        writer.add(f"{name}/b", 2)
        assert result(getting) == [b"1", b"2"]
        popping = threads.start(waiter.queue_pop, f"{name}/q")
        writer.queue_push(f"{name}/q", "entry")
        assert result(popping) == b"entry"
