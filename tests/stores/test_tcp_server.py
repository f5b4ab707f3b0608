"""The server on real sockets: where it listens, how it starts and stops, and who cannot harm it."""

from __future__ import annotations

import errno
import gc
import logging
import selectors
import socket
import subprocess
import sys
import weakref
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest

import rallypoint
from rallypoint.stores import (
    StoreError,
    StoreLimits,
    StoreServer,
    StoreServerCore,
    TcpStore,
    listen,
)
from rallypoint.stores.tcp import server as tcp_server
from rallypoint.stores.tcp import wire
from rallypoint.stores.tcp.wire import Query
from tests.support.store_kinds import SOON, SOON_S
from tests.support.store_threads import Threads, WaitCounter, result

HELLO = wire.request(Query.VALIDATE, number=wire.MAGIC)
PING = wire.request(Query.PING, number=1)


def dial(server: StoreServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), SOON_S)


def read_to_end(sock: socket.socket) -> bytes:
    """All that comes until the server closes the connection, which it is to do."""
    data = b""
    try:
        while received := sock.recv(1 << 16):
            data += received
    except ConnectionResetError:
        pass
    return data


class CrowdedSocket(socket.socket):
    """A listening socket on a system that has no room for connections, at first."""

    def __init__(self, *, refuses: int, fileno: int) -> None:
        super().__init__(fileno=fileno)
        self._refuses = refuses

    def accept(self) -> tuple[socket.socket, Any]:
        self._refuses -= 1
        if self._refuses >= 0:
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def test_importing_the_stores_is_cheap() -> None:
    # Without the package's own __init__, which is for users and may import more.
    code = f"""
import sys, types
package = sys.modules["rallypoint"] = types.ModuleType("rallypoint")
package.__path__ = {list(rallypoint.__path__)!r}
import rallypoint.stores
print([name for name in ("asyncio", "torch", "msgspec") if name in sys.modules])
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_it_serves_a_socket_that_was_bound_before(threads: Threads) -> None:
    sock = listen("127.0.0.1", 0)
    port = sock.getsockname()[1]  # published here
    early = threads.start(lambda: TcpStore("127.0.0.1", port, timeout=SOON))
    server = StoreServer()
    server.start_in_thread(sock)
    assert (server.host, server.port) == ("127.0.0.1", port)
    with result(early) as store:
        store.set("key", "v")
        assert store.get("key") == b"v"
    server.stop()
    server.stop()
    assert sock.fileno() == -1


def test_a_server_starts_once(server: StoreServer) -> None:
    with listen("127.0.0.1") as sock, pytest.raises(StoreError, match="started before"):
        server.start_in_thread(sock)


def test_before_it_starts_a_server_is_nowhere() -> None:
    server = StoreServer()
    with pytest.raises(StoreError, match="not been started"):
        _ = server.port
    server.stop()


def test_two_servers_do_not_share_keys(server: StoreServer) -> None:
    other = StoreServer()
    other.start_in_thread(listen("127.0.0.1"))
    with TcpStore("127.0.0.1", server.port) as first, TcpStore("127.0.0.1", other.port) as second:
        first.set("key", "v")
        assert first.check(["key"])
        assert not second.check(["key"])
    other.stop()


def test_a_thread_ends_with_its_server(server: StoreServer) -> None:
    thread = server._thread
    assert thread is not None
    server.stop()
    assert not thread.is_alive()
    with pytest.raises(ConnectionRefusedError):
        dial(server)


def test_a_server_may_end_in_the_middle_of_its_own_turn() -> None:
    """A store that hosts it may be collected at any moment, in any thread."""

    def stop_and_answer(*_: object) -> bytes:
        server.stop()
        return wire.NONCE.pack(1)

    server = StoreServer()
    server.core._answers = (*server.core._answers[: Query.PING], stop_and_answer, *server.core._answers[14:])
    sock = listen("127.0.0.1")
    server.start_in_thread(sock)
    with dial(server) as line:
        line.sendall(HELLO + PING)
        assert read_to_end(line) == wire.NONCE.pack(1)
    assert server._thread is not None
    server._thread.join(SOON_S)
    assert sock.fileno() == -1


def test_a_server_may_be_told_to_stop_at_any_moment() -> None:
    """Also when it is just about to notice by itself that it is over."""
    for _ in range(200):
        server = StoreServer()
        server.start_in_thread(listen("127.0.0.1"))
        with dial(server) as line:
            line.sendall(HELLO + PING)
            server.stop()
            assert read_to_end(line) in (b"", wire.NONCE.pack(1))


def test_a_fault_of_ours_costs_one_connection(server: StoreServer, caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: object) -> bytes:
        raise ZeroDivisionError

    server.core._answers = (*server.core._answers[: Query.PING], fail, *server.core._answers[14:])
    with dial(server) as good, dial(server) as bad:
        bad.sendall(HELLO + PING)
        assert read_to_end(bad) == b""
        assert "ZeroDivisionError" in caplog.text
        good.sendall(HELLO + wire.request(Query.COUNT_KEYS))
        assert good.recv(8, socket.MSG_WAITALL) == wire.NUMBER.pack(0)


@pytest.mark.parametrize("kind", [selectors.DefaultSelector, selectors.PollSelector])
def test_a_server_needs_no_epoll(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selectors, "DefaultSelector", kind)
    server = StoreServer()
    server.start_in_thread(listen("127.0.0.1"))
    with TcpStore("127.0.0.1", server.port, timeout=SOON) as store, dial(server) as slow:
        store.set("large", b"x" * (8 * 1024 * 1024))
        assert len(store.get("large")) == 8 * 1024 * 1024
        slow.sendall(HELLO + wire.request(Query.GET, [b"/large"]))
        slow.shutdown(socket.SHUT_WR)
        assert store.add("n", 1) == 1  # while most of the other answer waits
        assert len(read_to_end(slow)) == 8 + 8 * 1024 * 1024
    server.stop()


def test_who_finds_no_room_is_accepted_when_there_is_some(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The system refuses the first connection a few times; one that was there before is served meanwhile."""
    monkeypatch.setattr(tcp_server, "_PAUSE_S", 0.05)
    server = StoreServer()
    sock = CrowdedSocket(refuses=3, fileno=listen("127.0.0.1").detach())
    server.start_in_thread(sock)
    with TcpStore("127.0.0.1", server.port, timeout=SOON) as store:
        assert store.add("n", 1) == 1
    server.stop()
    assert caplog.text.count("Too many open files") == 3


# Where ----------------------------------------------------------------------------------------------------------------


def test_it_listens_on_the_address_that_it_was_given_and_no_other() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # nobody else of this machine can listen there meanwhile
        port = silent.getsockname()[1]
        with listen("127.0.0.2", port):
            socket.create_connection(("127.0.0.2", port), SOON_S).close()
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port), SOON_S)


def test_connections_of_machines_that_lost_their_power_are_given_up_by_the_kernel() -> None:
    with (
        listen("127.0.0.1") as listener,
        socket.create_connection(listener.getsockname(), SOON_S),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1


def test_a_second_message_is_sent_although_the_first_is_not_confirmed_yet() -> None:
    with (
        listen("127.0.0.1") as listener,
        socket.create_connection(listener.getsockname(), SOON_S),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_name_is_an_address_too() -> None:
    server = StoreServer()
    server.start_in_thread(listen("localhost"))
    with TcpStore("localhost", server.port, timeout=SOON) as store:
        assert store.add("n", 1) == 1
    server.stop()


@pytest.mark.parametrize("host", ["", "192.0.2.1", "no..host", "unknown"])
def test_where_it_cannot_listen_it_says_so(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(*_: object, **__: object) -> None:
        raise socket.gaierror("Name or service not known")

    if host == "unknown":
        monkeypatch.setattr(socket, "getaddrinfo", nobody)
    with pytest.raises(StoreError, match="listen on"):
        listen(host)


def test_a_port_in_use_is_named(server: StoreServer) -> None:
    with pytest.raises(StoreError, match=f"port {server.port}: .*in use"):
        listen("127.0.0.1", server.port)


# Who cannot harm it ---------------------------------------------------------------------------------------------------

BAD = {
    "unknown query 71": b"GET / HTTP/1.1\r\n\r\n",
    "no store client": b"\0\0\0\0\0",
    "before it introduced itself": PING,
    "unknown query 99": HELLO + b"\x63",
    "key of 1152921504606846976 bytes": HELLO + b"\x03" + wire.LENGTH.pack(1 << 60),
    "value of 8388609 bytes": HELLO + b"\x01" + wire.text(b"/k") + wire.LENGTH.pack(8 * 1024 * 1024 + 1),
    "key of 8193 bytes": HELLO + wire.request(Query.GET, [b"k" * 8193]),
    "names 131073 keys": HELLO + b"\x06" + wire.LENGTH.pack(128 * 1024 + 1),
}


@pytest.mark.parametrize("why", BAD)
def test_who_talks_nonsense_is_hung_up_on_with_a_reason_in_the_log(
    server: StoreServer, caplog: pytest.LogCaptureFixture, wait_counter: WaitCounter, threads: Threads, why: str
) -> None:
    with TcpStore("127.0.0.1", server.port, timeout=SOON) as good, good.clone() as waiting_store:
        waiting = threads.start(waiting_store.get, "late")
        wait_counter.expect()
        with caplog.at_level(logging.WARNING, "rallypoint.stores"), dial(server) as bad:
            bad.sendall(BAD[why])
            assert read_to_end(bad) == b""
        assert [why in record.getMessage() for record in caplog.records] == [True]
        good.set("late", "v")
        assert result(waiting) == b"v"


def test_a_caller_over_ipv6_stands_in_brackets_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    server = StoreServer()
    server.start_in_thread(listen("::1"))
    try:
        with socket.create_connection(("::1", server.port), SOON_S) as bad:
            port = bad.getsockname()[1]
            bad.sendall(BAD["no store client"])
            assert read_to_end(bad) == b""
        assert f"[::1]:{port}" in caplog.text
    finally:
        server.stop()


def test_half_a_request_holds_nobody_up(server: StoreServer) -> None:
    with dial(server) as half, dial(server) as other_half, TcpStore("127.0.0.1", server.port, timeout=SOON) as good:
        half.sendall(HELLO[:3])
        other_half.sendall(HELLO + PING + wire.request(Query.SET, [b"/k", b"value"])[:-1])
        assert other_half.recv(4, socket.MSG_WAITALL) == wire.NONCE.pack(1)
        assert not good.check(["k"])
        half.sendall(HELLO[3:] + PING)
        assert half.recv(4, socket.MSG_WAITALL) == wire.NONCE.pack(1)
        other_half.sendall(b"e" + PING)
        assert other_half.recv(4, socket.MSG_WAITALL) == wire.NONCE.pack(1)
        assert good.get("k") == b"value"


def test_who_leaves_in_the_middle_leaves_nothing(server: StoreServer) -> None:
    with TcpStore("127.0.0.1", server.port, timeout=SOON) as good:
        with dial(server) as gone:
            gone.sendall(HELLO + wire.request(Query.SET, [b"/k", b"value"])[:-1])
            gone.shutdown(socket.SHUT_WR)
            assert read_to_end(gone) == b""
        assert not good.check(["k"])


def test_who_never_reads_is_dropped() -> None:
    server = StoreServer(StoreServerCore(StoreLimits(piled_bytes=4 * 1024 * 1024)))
    server.start_in_thread(listen("127.0.0.1"))
    with TcpStore("127.0.0.1", server.port, timeout=SOON) as good, dial(server) as greedy:
        good.set("large", b"x" * (1024 * 1024))
        assert good.check(["large"])
        greedy.sendall(HELLO)
        greedy.sendall(wire.request(Query.GET, [b"/large"]) * 100)
        assert len(read_to_end(greedy)) < 100 * 1024 * 1024
        assert len(good.get("large")) == 1024 * 1024
    server.stop()


def test_many_connections_wait_for_one_key(server: StoreServer, wait_counter: WaitCounter) -> None:
    with ExitStack() as stack, TcpStore("127.0.0.1", server.port, timeout=SOON) as good:
        waiting = [stack.enter_context(dial(server)) for _ in range(200)]
        for sock in waiting:
            sock.sendall(HELLO + wire.request(Query.WAIT, [b"/key"]))
        wait_counter.expect(len(waiting))
        good.set("key", "v")
        assert [sock.recv(2) for sock in waiting] == [b"\0"] * len(waiting)


def test_limits_may_be_set_higher() -> None:
    limits = StoreLimits(value_bytes=9 * 1024 * 1024)
    server = StoreServer(StoreServerCore(limits))
    server.start_in_thread(listen("127.0.0.1"))
    with TcpStore("127.0.0.1", server.port, timeout=timedelta(seconds=SOON_S), limits=limits) as store:
        store.set("key", b"x" * limits.value_bytes)
        assert len(store.get("key")) == limits.value_bytes
    server.stop()


def test_a_server_that_nobody_holds_serves_on_and_its_thread_rests() -> None:
    server = StoreServer()
    server.start_in_thread(listen("127.0.0.1"))
    port, held = server.port, weakref.ref(server)
    del server
    gc.collect()
    kept = held()
    assert kept is not None, "its alarm would be closed with it, and never be quiet again"
    with TcpStore("127.0.0.1", port, timeout=SOON) as store:
        store.set("k", "v")
        assert store.get("k") == b"v"
    kept.stop()
