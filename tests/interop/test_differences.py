"""Where ours does not do as torch does, and what torch does there: each row of the table in docs/stores.md is shown."""

from __future__ import annotations

import logging
import multiprocessing
import socket
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import pytest

from rallypoint.stores import PrefixStore, QueueEmptyError, StoreError, StoreServer, StoreTimeoutError, TcpStore, listen
from tests.stores.test_contract import exceed
from tests.support.remote_stores import RemoteStore, StoreProcess, start_process
from tests.support.store_kinds import BRIEFLY, SOON, SOON_S
from tests.support.store_threads import Threads, result
from tests.support.waiting import until

BRIEFLY_S = BRIEFLY.total_seconds()


@pytest.fixture
def torch_on_torch(guest: StoreProcess, their_port: int, stack: ExitStack) -> RemoteStore:
    store = guest.open_tcp(their_port)
    stack.callback(store.close)
    return store


@pytest.fixture
def torch_on_ours(guest: StoreProcess, our_port: int, stack: ExitStack) -> RemoteStore:
    store = guest.open_tcp(our_port)
    stack.callback(store.close)
    return store


@pytest.fixture
def ours_on_ours(our_port: int, stack: ExitStack) -> TcpStore:
    return stack.enter_context(TcpStore("127.0.0.1", our_port, timeout=SOON))


@pytest.fixture
def ours_on_torch(their_port: int, stack: ExitStack) -> TcpStore:
    return stack.enter_context(TcpStore("127.0.0.1", their_port, timeout=SOON))


def still_waiting(future: Future[Any]) -> bool:
    return not wait([future], 5 * BRIEFLY_S, FIRST_COMPLETED).done


# Servers --------------------------------------------------------------------------------------------------------------


def test_a_sum_beyond_64_bits_wraps_at_torch_and_is_refused_by_ours(
    torch_on_torch: RemoteStore, torch_on_ours: RemoteStore, ours_on_ours: TcpStore, caplog: pytest.LogCaptureFixture
) -> None:
    torch_on_torch.set("n", str(2**63 - 1))
    assert torch_on_torch.add("n", 1) == -(2**63)
    for store in (torch_on_ours, ours_on_ours):
        fresh = store.clone()
        fresh.set("n", str(2**63 - 1))
        with caplog.at_level(logging.WARNING, "rallypoint.stores"), pytest.raises(StoreError):
            fresh.add("n", 1)
        assert store.get("n") == str(2**63 - 1).encode()
    assert ["does not fit into 64 bits" in record.getMessage() for record in caplog.records] == [True, True]


def test_a_write_to_a_barrier_opens_it_at_torch_and_not_at_ours(
    ours_on_torch: TcpStore, ours_on_ours: TcpStore, threads: Threads
) -> None:
    at_torch, at_ours = ours_on_torch.clone(), ours_on_ours.clone()
    opened = threads.start(at_torch.barrier, "b", 2)
    shut = threads.start(at_ours.barrier, "b", 2)
    for store in (ours_on_torch, ours_on_ours):
        # Asked, not waited for: torch's server does not tell those who wait for the key already that somebody arrived.
        until(lambda store=store: store.check(["b"]), "somebody stands at the barrier")  # type: ignore[misc]
        store.set("b", "1")
    result(opened)
    assert still_waiting(shut)
    ours_on_ours.barrier("b", 2)
    result(shut)


def test_an_addition_to_text_ends_the_connection_on_both_and_ours_says_why(
    torch_on_torch: RemoteStore,
    torch_on_ours: RemoteStore,
    ours_on_ours: TcpStore,
    ours_on_torch: TcpStore,
    caplog: pytest.LogCaptureFixture,
) -> None:
    stores = (torch_on_torch, torch_on_ours, ours_on_ours, ours_on_torch)
    errors = []
    for store in stores:
        store.set("t", "text")
        with caplog.at_level(logging.WARNING, "rallypoint.stores"), pytest.raises(StoreError) as caught:
            store.add("t", 1)
        errors.append(str(caught.value))
        with pytest.raises(StoreError):
            store.num_keys()
    # To torch's client the format has no words; to ours, the client adds what it knows; the log says all.
    assert all("DistNetworkError" in error for error in errors[:2])
    assert all("cannot add to 't'" in error and "not a number" in error for error in errors[2:])
    assert ["cannot add to '/t': it holds b'text'" in record.getMessage() for record in caplog.records] == [True, True]


def test_a_comparison_that_fails_wakes_who_waits_at_torch_only(
    ours_on_torch: TcpStore, ours_on_ours: TcpStore, torch_on_torch: RemoteStore, threads: Threads
) -> None:
    for store, woken in ((torch_on_torch, True), (ours_on_torch, True), (ours_on_ours, False)):
        waiting = threads.start(store.clone().wait, ["k"], SOON)
        assert still_waiting(waiting)
        assert store.compare_set("k", "other", "v") == b"other"
        assert not store.check(["k"])
        assert still_waiting(waiting) != woken
        store.set("k", "v")
        result(waiting)
        store.delete_key("k")


def test_an_entry_that_wakes_who_only_looks_is_lost_on_who_pops_at_torch_only(
    torch_on_torch: RemoteStore, torch_on_ours: RemoteStore, threads: Threads
) -> None:
    for store, found in ((torch_on_torch, False), (torch_on_ours, True)):
        looking, popping = store.clone(), store.clone()
        popping.set_timeout(timedelta(seconds=1))
        waiting = threads.start(looking.wait, ["q"])
        assert still_waiting(waiting)
        popped = threads.start(popping.queue_pop, "q")
        assert still_waiting(popped)
        store.queue_push("q", "entry")
        result(waiting)
        looking.num_keys()  # it goes on to do something else
        if found:
            assert result(popped) == b"entry"
        else:
            with pytest.raises(StoreTimeoutError):
                result(popped)
            assert store.queue_len("q") == 1


def test_who_introduces_itself_wrongly_is_left_standing_by_torch(our_port: int, their_port: int) -> None:
    for port, closed in ((our_port, True), (their_port, False)):
        with socket.create_connection(("127.0.0.1", port), SOON_S if closed else 5 * BRIEFLY_S) as stranger:
            stranger.sendall(b"\0\1\2\3\4")
            if closed:
                assert stranger.recv(1) == b""
            else:
                with pytest.raises(TimeoutError):
                    stranger.recv(1)


# Clients --------------------------------------------------------------------------------------------------------------


def test_a_pop_beside_a_value_ends_at_once_with_torch_and_waits_with_ours(
    torch_on_torch: RemoteStore, ours_on_torch: TcpStore, threads: Threads
) -> None:
    torch_on_torch.set("k", "value")
    with pytest.raises(QueueEmptyError):
        torch_on_torch.queue_pop("k")
    popping = threads.start(ours_on_torch.clone().queue_pop, "k")
    assert still_waiting(popping)
    ours_on_torch.queue_push("k", "entry")
    assert result(popping) == b"entry"


def test_a_negative_timeout_is_none_at_all_with_torch(torch_on_torch: RemoteStore, ours_on_torch: TcpStore) -> None:
    waiting = torch_on_torch.clone().begin("wait", ["k"], timedelta(seconds=-5))
    assert still_waiting(waiting)
    with pytest.raises(StoreTimeoutError):
        ours_on_torch.wait(["k"], timedelta(seconds=-5))
    torch_on_torch.set("k", "v")
    result(waiting)


def test_a_barrier_under_a_prefix_has_another_timeout_with_torch(torch_on_torch: RemoteStore) -> None:
    store = torch_on_torch.clone()
    store.set_timeout(BRIEFLY)
    prefixed = store.under("p")
    assert prefixed.timeout == BRIEFLY
    waiting = prefixed.begin("barrier", "b", 2)
    assert still_waiting(waiting)
    torch_on_torch.set("p/b/last_member", "1")
    result(waiting)


def test_a_barrier_of_none_under_a_prefix_never_opens_with_torch(
    torch_on_torch: RemoteStore, ours_on_torch: TcpStore
) -> None:
    with pytest.raises(StoreTimeoutError):
        torch_on_torch.under("p").barrier("b", 0, BRIEFLY)
    PrefixStore("q", ours_on_torch).barrier("b", 0, BRIEFLY)


def test_what_is_too_large_breaks_the_connection_with_torch_and_is_refused_by_ours(
    torch_on_torch: RemoteStore, ours_on_torch: TcpStore
) -> None:
    for key, value in (("k" * 8192, b""), ("k", b"x" * (8 * 1024 * 1024 + 1))):
        store = torch_on_torch.clone()
        with pytest.raises(StoreError, match="DistNetworkError"):
            exceed(store, lambda store=store, key=key, value=value: store.set(key, value))  # type: ignore[misc]
        with pytest.raises(StoreError, match="over the limit of"):
            ours_on_torch.set(key, value)
        assert ours_on_torch.num_keys() == 0


def test_torch_listens_on_all_addresses_and_ours_on_the_one_that_it_was_given(our_port: int, their_port: int) -> None:
    socket.create_connection(("127.0.0.2", their_port), SOON_S).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", our_port), SOON_S)


def test_keys_that_are_no_text_cannot_be_listed_by_torch(torch_on_torch: RemoteStore, ours_on_torch: TcpStore) -> None:
    ours_on_torch.set("\udcff", "v")
    assert ours_on_torch.list_keys() == ["\udcff"]
    with pytest.raises(StoreError, match="UnicodeDecodeError"):
        torch_on_torch.list_keys()


def test_an_addition_wakes_nobody_in_the_hash_store_of_torch(guest: StoreProcess, stack: ExitStack) -> None:
    store = guest.open("open_hash")
    stack.callback(store.close)
    waiting = store.begin("wait", ["n"], SOON)
    assert still_waiting(waiting)
    store.add("n", 1)
    assert store.check(["n"])
    assert still_waiting(waiting)
    store.set("other", "v")
    result(waiting)


# The trap -------------------------------------------------------------------------------------------------------------


def fall_into_the_trap(verb: str, pipe: Connection) -> None:
    """A client of torch's in the process whose thread serves it."""
    import torch.distributed as dist

    server = StoreServer()
    server.start_in_thread(listen("127.0.0.1"))
    store = dist.TCPStore("127.0.0.1", server.port, timeout=SOON)
    store.set("k", "v")
    assert store.get("k") == b"v"
    assert store.add("n", 1) == 1
    pipe.send("so far, so good")
    store.queue_len("q") if verb == "queue_len" else store.list_keys()
    pipe.send("it came back")


@pytest.mark.parametrize("verb", ["queue_len", "list_keys"])
def test_two_calls_of_torch_keep_the_gil_from_a_server_in_the_same_process(verb: str) -> None:
    ours, theirs = multiprocessing.Pipe()
    process = start_process(fall_into_the_trap, verb, theirs)
    theirs.close()
    assert ours.poll(SOON_S)
    assert ours.recv() == "so far, so good"
    assert not ours.poll(10 * BRIEFLY_S)
    process.kill()
    process.join(SOON_S)
    ours.close()
