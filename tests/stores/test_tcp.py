"""The client of a TCP server: connecting, hosting, and what happens when the server goes."""

from __future__ import annotations

import gc
import socket
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest

from rallypoint.stores import StoreError, StoreServer, StoreTimeoutError, TcpStore, listen
from rallypoint.stores.tcp import hosting, wire
from rallypoint.stores.tcp import store as tcp
from rallypoint.stores.tcp.wire import Query
from tests.support.store_kinds import BRIEFLY, SOON, SOON_S
from tests.support.store_threads import Threads, WaitCounter, result


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port


def answer_greeting(peer: socket.socket) -> None:
    hello = wire.request(Query.VALIDATE, number=wire.MAGIC) + wire.request(Query.PING)
    peer.sendall(peer.recv(len(hello), socket.MSG_WAITALL)[-4:])


@pytest.fixture
def store(server: StoreServer) -> TcpStore:
    return TcpStore("127.0.0.1", server.port, timeout=SOON)


# Connecting -----------------------------------------------------------------------------------------------------------


def test_a_client_waits_for_a_server_that_starts_later(threads: Threads) -> None:
    port = free_port()
    connecting = threads.start(lambda: TcpStore("127.0.0.1", port, timeout=SOON))
    with TcpStore("127.0.0.1", port, is_master=True, timeout=SOON) as master, result(connecting) as client:
        master.set("key", "v")
        assert client.get("key") == b"v"


def test_nobody_there_is_a_timeout_that_names_the_place() -> None:
    port = free_port()
    with pytest.raises(StoreTimeoutError, match=rf"127\.0\.0\.1, port {port} within 0\.02 s: .*refused"):
        TcpStore("127.0.0.1", port, timeout=BRIEFLY)


def test_an_unknown_host_is_a_timeout_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(*_: object, **__: object) -> None:
        raise socket.gaierror("Name or service not known")

    with pytest.raises(StoreError, match=r"at no\.\.host, port 1: it is no host name"):
        TcpStore("no..host", 1, timeout=BRIEFLY)
    monkeypatch.setattr(socket, "getaddrinfo", nobody)
    with pytest.raises(StoreTimeoutError, match=r"at unknown, port 1 within .* not known"):
        TcpStore("unknown", 1, timeout=BRIEFLY)


def test_a_server_that_never_answers_is_a_timeout() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(StoreTimeoutError, match="no store server answered at"),
    ):
        TcpStore("127.0.0.1", silent.getsockname()[1], timeout=BRIEFLY)


def test_another_kind_of_server_is_recognised(threads: Threads) -> None:
    def greet(sock: socket.socket) -> None:
        with sock.accept()[0] as peer:
            peer.sendall(b"SSH-2.0-OpenSSH\r\n")
            peer.recv(100)

    with socket.create_server(("127.0.0.1", 0)) as ssh:
        greeting = threads.start(greet, ssh)
        with pytest.raises(StoreError, match=r"cannot use the server at 127\.0\.0\.1.*no store server"):
            TcpStore("127.0.0.1", ssh.getsockname()[1], timeout=SOON)
        result(greeting)


# Hosting --------------------------------------------------------------------------------------------------------------


def test_a_master_hosts_the_server_on_its_address_and_a_port_of_its_choice() -> None:
    with TcpStore("127.0.0.3", 0, is_master=True, timeout=SOON) as master:
        assert master.port > 0
        assert repr(master) == f"TcpStore('127.0.0.3', {master.port})"
        with TcpStore(master.host, master.port, timeout=SOON) as client:
            client.set("key", "v")
            assert master.get("key") == b"v"
        with pytest.raises(StoreTimeoutError):
            TcpStore("127.0.0.1", master.port, timeout=BRIEFLY)
    with pytest.raises(StoreTimeoutError):
        TcpStore("127.0.0.3", master.port, timeout=BRIEFLY)


def test_a_master_waits_for_its_workers(threads: Threads) -> None:
    port = free_port()
    master = threads.start(lambda: TcpStore("127.0.0.1", port, 3, is_master=True, timeout=SOON))
    workers = [TcpStore("127.0.0.1", port, 3, timeout=SOON)]
    assert not master.done()
    workers.append(TcpStore("127.0.0.1", port, 3, timeout=SOON))
    workers.append(result(master))
    # Counted under a key without the slash that all others have: it is not listed.
    assert workers[0].num_keys() == 1
    assert workers[0].list_keys() == []
    for store in workers:
        store.close()


def test_a_master_says_how_many_workers_came() -> None:
    with pytest.raises(StoreTimeoutError, match=r"wait for 2 workers at .*: 1 came within 0\.02 s"):
        TcpStore("127.0.0.1", 0, 2, is_master=True, timeout=BRIEFLY)


def test_a_master_may_start_without_its_workers() -> None:
    for world_size, wait in ((2, False), (None, True), (0, True), (-1, True)):
        TcpStore("127.0.0.1", 0, world_size, is_master=True, timeout=SOON, wait_for_workers=wait).close()


def test_masters_of_one_port_share_a_server_if_they_both_wish() -> None:
    first = TcpStore("127.0.0.1", 0, is_master=True, timeout=SOON, multi_tenant=True)
    second = TcpStore("127.0.0.1", first.port, is_master=True, timeout=SOON, multi_tenant=True)
    with pytest.raises(StoreError, match="in use"):
        TcpStore("127.0.0.1", first.port, is_master=True, timeout=SOON)
    first.set("key", "v")
    assert second.get("key") == b"v"
    first.close()
    assert second.get("key") == b"v"
    second.close()
    assert not hosting._shared


def test_a_store_that_is_forgotten_gives_everything_back() -> None:
    store = TcpStore("127.0.0.1", 0, is_master=True, timeout=SOON)
    port, gone = store.port, weakref.ref(store)
    del store
    gc.collect()
    assert gone() is None
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), SOON_S)


# Losing the server ----------------------------------------------------------------------------------------------------


def test_who_waits_when_the_server_goes_is_told_at_once(
    server: StoreServer, wait_counter: WaitCounter, threads: Threads
) -> None:
    stores = [TcpStore("127.0.0.1", server.port, timeout=SOON) for _ in range(3)]
    waiting: list[Future[Any]] = [
        threads.start(stores[0].get, "key"),
        threads.start(stores[1].queue_pop, "q"),
        threads.start(stores[2].barrier, "b", 2),
    ]
    wait_counter.expect(3)
    server.stop()
    for future, what in zip(waiting, ("get 'key'", "pop from the queue 'q'", "barrier of 2 'b'"), strict=True):
        with pytest.raises(StoreError, match=f"{what} at 127.0.0.1, port {server.port}: "):
            result(future)
    for store in stores:
        store.close()


def test_a_lost_connection_is_not_replaced(server: StoreServer, store: TcpStore) -> None:
    port = server.port
    server.stop()
    for _ in range(2):  # the first set may still find room in the socket
        with pytest.raises(StoreError, match=f"port {port}"):
            store.num_keys()
    other = StoreServer()
    other.start_in_thread(listen("127.0.0.1", port))
    with pytest.raises(StoreError, match="the connection is no more, because"):
        store.set("key", "v")
    with store.clone() as fresh:
        assert fresh.num_keys() == 0
    store.close()
    other.stop()


def test_add_to_text_ends_this_connection_only(store: TcpStore) -> None:
    other = store.clone()
    store.set("n", "text")
    with pytest.raises(StoreError, match=r"add to 'n' at .* number"):
        store.add("n", 1)
    with pytest.raises(StoreError, match="no more"):
        store.get("n")
    assert other.get("n") == b"text"
    store.close()
    other.close()


def test_closing_ends_a_wait_of_another_thread(store: TcpStore, wait_counter: WaitCounter, threads: Threads) -> None:
    waiting = threads.start(store.get, "key")
    wait_counter.expect()
    store.close()
    with pytest.raises(StoreError, match="closed here"):
        result(waiting)
    with pytest.raises(StoreError, match="closed here"):
        store.set("key", "v")


ASKING: list[Callable[[TcpStore], object]] = [lambda store: store.add("n", 1), lambda store: store.wait(["key"])]


@pytest.mark.parametrize("ask", ASKING, ids=["add", "wait"])
def test_a_server_that_falls_silent_is_a_timeout(
    monkeypatch: pytest.MonkeyPatch, threads: Threads, ask: Callable[[TcpStore], object]
) -> None:
    def greet_only(sock: socket.socket, done: threading.Event) -> None:
        with sock.accept()[0] as peer:
            answer_greeting(peer)
            assert done.wait(SOON_S)

    monkeypatch.setattr(tcp, "_ANSWER_TIMEOUT_S", 0.02)
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        greeting = threads.start(greet_only, silent, done)
        with TcpStore("127.0.0.1", silent.getsockname()[1], timeout=SOON) as store:
            store.set_timeout(BRIEFLY)
            with pytest.raises(StoreTimeoutError, match=r"cannot .* the server did not answer for"):
                ask(store)
            with pytest.raises(StoreError, match="no more, because the server did not answer"):
                store.set("key", "v")
        done.set()
        result(greeting)


def test_a_thread_that_waits_in_the_way_of_others_is_blamed(
    store: TcpStore, wait_counter: WaitCounter, threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = threads.start(store.wait, ["key"], SOON)
    wait_counter.expect()
    monkeypatch.setattr(tcp, "_ANSWER_TIMEOUT_S", 0.02)
    store.set_timeout(BRIEFLY)
    with pytest.raises(StoreTimeoutError, match="another thread has been waiting"):
        store.set("key", "v")
    store.set_timeout(SOON)
    with store.clone() as other:
        other.set("key", "v")
    result(waiting)
    store.close()


def test_an_interrupted_call_ends_the_connection(
    store: TcpStore, server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store._connection, "_take", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.num_keys()
    with pytest.raises(StoreError, match="a call was interrupted: count the keys"):
        store.num_keys()
    store.close()


def test_the_end_of_a_wait_may_cross_its_cancellation(threads: Threads) -> None:
    """The server answers in the very moment in which the client gives up: the answer counts."""

    def serve(sock: socket.socket) -> None:
        with sock.accept()[0] as peer:
            answer_greeting(peer)
            wait = wire.request(Query.WAIT, [b"/key"])
            assert peer.recv(len(wait), socket.MSG_WAITALL) == wait
            assert peer.recv(1) == wire.request(Query.CANCEL_WAIT)
            peer.sendall(b"\0\1")
            assert peer.recv(1) == wire.request(Query.COUNT_KEYS)
            peer.sendall(wire.NUMBER.pack(7))

    with socket.create_server(("127.0.0.1", 0)) as sock:
        serving = threads.start(serve, sock)
        with TcpStore("127.0.0.1", sock.getsockname()[1], timeout=SOON) as store:
            store.wait(["key"], BRIEFLY)
            assert store.num_keys() == 7
        result(serving)


# Limits ---------------------------------------------------------------------------------------------------------------


def test_what_is_too_large_is_refused_before_it_is_sent(store: TcpStore) -> None:
    with pytest.raises(StoreError, match="a key of 8193 bytes is over the limit of 8192") as caught:
        store.set("k" * 8192, "v")
    assert len(str(caught.value)) < 300
    with pytest.raises(StoreError, match=r"set 'key' at .* a value of 8388609 bytes is over the limit"):
        store.set("key", b"x" * (8 * 1024 * 1024 + 1))
    with pytest.raises(StoreError, match="131073 keys at once"):
        store.check(["k"] * (128 * 1024 + 1))
    store.set("k" * 8191, "v")  # with the slash, 8192
    assert store.get("k" * 8191) == b"v"
    store.close()


def test_a_time_limit_beyond_all_others_is_taken(server: StoreServer) -> None:
    with TcpStore("127.0.0.1", server.port, timeout=timedelta.max) as store:
        assert store.add("n", 1) == 1
