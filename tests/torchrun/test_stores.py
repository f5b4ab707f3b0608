"""The store of a round under torch: torch's classes take it from either server, and it ends with its world."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from torch.distributed import DistStoreError, PrefixStore, Store, TCPStore
from torch.distributed.elastic import rendezvous as torch_api
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from tests.support.node_processes import Processes

Pair = tuple[tuple[Any, Any], tuple[Any, Any]]


@pytest.fixture
def endpoint() -> Iterator[str]:
    processes = Processes()
    try:
        yield processes.server().endpoint
    finally:
        processes.end()


def handler(endpoint: str, **options: object) -> Any:
    given = {"is_host": "false", "join_timeout": 20, "last_call_timeout": 20, "close_timeout": 2, **options}
    return get_rendezvous_handler(torch_api.RendezvousParameters("rallypoint", endpoint, "run", 2, 2, **given))


@pytest.fixture(params=["torch", "rallypoint"])
def pair(request: pytest.FixtureRequest, endpoint: str) -> Iterator[Pair]:
    """Two handlers in one world, each with its info; by rank."""
    handlers = [handler(endpoint, store=request.param, rank=rank, node_name=f"n{rank}") for rank in (0, 1)]
    with ThreadPoolExecutor() as pool:
        infos = list(pool.map(lambda one: one.next_rendezvous(), handlers))
    assert [info.rank for info in infos] == [0, 1]
    yield (handlers[0], infos[0]), (handlers[1], infos[1])
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda one: one.shutdown(), handlers))


def test_it_is_a_store_of_torchs_with_the_whole_contract(pair: Pair) -> None:
    (_, zero), (_, one) = pair
    a, b = zero.store, one.store
    assert isinstance(a, Store)
    a.set("k", "v")
    assert b.get("k") == b"v"
    assert (b.add("n", 2), a.add("n", 3)) == (2, 5)
    assert b.compare_set("k", "v", "w") == b"w"
    assert a.check(["k", "n"])
    assert not a.check(["k", "nothing"])
    a.multi_set(["x", "y"], ["1", b"2"])
    assert b.multi_get(["x", "y"]) == [b"1", b"2"]
    b.append("x", "0")
    assert b.get("x") == b"10"
    assert a.delete_key("x")
    assert sorted(a.list_keys()) == ["k", "n", "y"]
    assert a.num_keys() >= 3
    a.queue_push("q", "first")
    assert a.queue_len("q") == 1
    assert b.queue_pop("q") == b"first"
    with pytest.raises(DistStoreError, match="the queue 'q' is empty"):
        b.queue_pop("q", False)
    assert a.has_extended_api()
    a.set_timeout(timedelta(seconds=1))
    assert a.timeout == timedelta(seconds=1)
    with pytest.raises(DistStoreError, match="not within 1 s"):
        a.wait(["nothing"])
    with pytest.raises(DistStoreError):
        a.wait(["nothing"], timedelta(milliseconds=50))
    with ThreadPoolExecutor() as pool:
        met = [pool.submit(store.barrier, "gate", 2, timedelta(seconds=10)) for store in (a.clone(), b)]
        assert [one.result() for one in met] == [None, None]


def test_a_prefix_store_of_torchs_takes_it(pair: Pair) -> None:
    (_, zero), (_, one) = pair
    inside, outside = PrefixStore("part", zero.store), one.store
    inside.set("k", "v")
    assert outside.get("part/k") == b"v"
    assert inside.get("k") == b"v"
    assert inside.add("n", 4) == 4
    assert inside.check(["k"])
    inside.wait(["k"], timedelta(seconds=1))
    assert inside.compare_set("k", "v", "w") == b"w"
    inside.multi_set(["x", "y"], ["1", "2"])
    inside.append("x", "0")
    assert inside.multi_get(["x", "y"]) == [b"10", b"2"]
    assert inside.num_keys() >= 4
    assert inside.delete_key("x")
    assert not inside.delete_key("x")
    assert not outside.check(["part/x"])


def test_what_torch_does_not_pass_on_to_a_store_in_python(pair: Pair) -> None:
    """A prefix store of torch's has no way to ask a store in Python for these, whatever they are called there."""
    (_, zero), _ = pair
    inside = PrefixStore("part", zero.store)
    for call in (inside.list_keys, lambda: inside.queue_push("q", "1"), lambda: inside.queue_len("q")):
        with pytest.raises(NotImplementedError):
            call()


def test_its_server_is_on_the_nodes_address_only_and_clients_of_torchs_reach_it(pair: Pair) -> None:
    (_, zero), (_, one) = pair
    info = one.bootstrap_store_info
    assert isinstance(info, torch_api.RendezvousStoreInfo)
    assert info == zero.bootstrap_store_info
    assert info.master_addr == "127.0.0.1"
    worker = TCPStore(info.master_addr, info.master_port, None, False, timedelta(seconds=10), wait_for_workers=False)
    worker.set("k", "v")
    assert worker.get("k") == b"v"
    assert not one.store.check(["k"]), "agents and workers have keys of their own"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", info.master_port), 5)


def test_the_store_of_a_round_ends_with_it(pair: Pair) -> None:
    (left, zero), (stays, one) = pair
    waiting = threading.Thread(target=lambda: _fails(one.store))
    waiting.start()
    try:
        raise RuntimeError("stopped")
    except RuntimeError:
        left.shutdown()
    waiting.join(10.0)
    assert not waiting.is_alive(), "who waited is told at once"
    with pytest.raises(DistStoreError, match="n0 withdrew: RuntimeError: stopped"):
        one.store.get("k")
    assert stays.num_nodes_waiting() == 1
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((zero.bootstrap_store_info.master_addr, zero.bootstrap_store_info.master_port), 5)


def _fails(store: Any) -> None:
    with suppress(DistStoreError):
        store.get("nothing")


def test_workers_that_are_to_serve_their_own_store_get_a_port_of_its_own(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    handlers = [handler(endpoint, rank=rank) for rank in (0, 1)]
    with ThreadPoolExecutor() as pool:
        infos = list(pool.map(lambda one: one.next_rendezvous(), handlers))
        where = {(info.bootstrap_store_info.master_addr, info.bootstrap_store_info.master_port) for info in infos}
        assert len(where) == 1
        ((host, port),) = where
        assert not handlers[0].use_agent_store
        TCPStore(host, port, None, True, timedelta(seconds=10), wait_for_workers=False)
        list(pool.map(lambda one: one.shutdown(), handlers))
