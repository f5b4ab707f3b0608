"""Peers that mean harm, on a server in a process of its own: what they cost it, and what the others notice."""

from __future__ import annotations

import gc
import queue
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rallypoint.stores import TcpStore
from rallypoint.stores.data import KeyValues, Waiter
from rallypoint.stores.tcp import wire
from rallypoint.stores.tcp.wire import Query, StoreLimits
from tests.stores.test_tcp_server import read_to_end
from tests.support.store_kinds import SOON, SOON_S

ROOT = Path(__file__).parents[2]
HELLO = wire.request(Query.VALIDATE, number=wire.MAGIC)
PING = wire.request(Query.PING, number=1)
MIB = 1024 * 1024


class Victim:
    """A server in a process of its own, with an honest client."""

    def __init__(self, process: subprocess.Popen[str], client: TcpStore) -> None:
        self._process = process
        self.client = client
        self._base = self.peak_mib()
        self._log: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._log.put(line)

    def peak_mib(self) -> int:
        """The most memory that it has ever had."""
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="utf-8")
        peak = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert peak is not None
        return int(peak[1]) // 1024

    def cost_mib(self) -> int:
        return self.peak_mib() - self._base

    def dial(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.client.port), SOON_S)
        sock.sendall(HELLO)
        return sock

    def reason(self) -> str:
        """The next line of its log."""
        return self._log.get(timeout=SOON_S)

    def is_well(self) -> bool:
        return self.client.add("honest", 1) > 0


@contextmanager
def victim(*args: str) -> Iterator[Victim]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.stores.tcp_server_program", *args],
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            assert process.stdout is not None
            with TcpStore("127.0.0.1", int(process.stdout.readline()), timeout=SOON) as client:
                yield Victim(process, client)
        finally:
            process.kill()


def send_until_refused(sock: socket.socket, parts: Iterator[bytes]) -> int:
    """How many parts went out before the server hung up."""
    sent = 0
    try:
        for part in parts:
            sock.sendall(part)
            sent += 1
    except (BrokenPipeError, ConnectionResetError):
        return sent
    return sent


def test_who_never_reads_costs_no_more_than_the_limit() -> None:
    """It asks for 8 MiB again and again, 8 GB in all, and reads none of it."""
    with victim() as server, server.dial() as greedy:
        server.client.set("large", b"x" * (8 * MIB))
        assert server.is_well()
        before = server.cost_mib()
        greedy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        send_until_refused(greedy, (wire.request(Query.GET, [b"/large"]) for _ in range(1000)))
        assert "bytes of answers" in server.reason()
        assert server.cost_mib() - before < 2 * StoreLimits().piled_bytes // MIB + 64
        assert server.is_well()
        assert len(server.client.get("large")) == 8 * MIB


def test_large_values_that_nobody_reads_are_not_copied() -> None:
    with victim() as server, server.dial() as one, server.dial() as two, server.dial() as three:
        server.client.append("large", b"x" * (4 * MIB))
        server.client.append("large", b"x" * (4 * MIB))
        before = server.cost_mib()
        for greedy in (one, two, three):
            greedy.sendall(wire.request(Query.MULTI_GET, [b"/large"] * 31))
        for _ in range(3):
            assert len(server.client.get("large")) == 8 * MIB
        assert server.cost_mib() - before < 64, "they asked for 744 MiB"


def test_waits_for_very_many_keys_hold_nobody_up() -> None:
    with victim() as server, server.dial() as greedy:
        greedy.sendall(wire.request(Query.WAIT, [b"/absent-%d" % number for number in range(StoreLimits().keys)]))
        assert server.is_well()
        assert server.cost_mib() < 150


def test_who_never_reads_is_dropped_while_others_read() -> None:
    with victim(str(32 * MIB)) as server, server.dial() as greedy:
        server.client.set("large", b"x" * (8 * MIB))
        assert server.is_well()
        greedy.sendall(wire.request(Query.MULTI_GET, [b"/large"] * 3))
        for _ in range(3):
            assert len(server.client.get("large")) == 8 * MIB
        send_until_refused(greedy, (wire.request(Query.GET, [b"/large"]) for _ in range(10)))
        assert re.search(r"closed the connection from 127\.0\.0\.1:\d+: it .* bytes of answers", server.reason())
        assert len(read_to_end(greedy)) <= 32 * MIB
        assert server.is_well()
        assert server.cost_mib() < 4 * 32 + 64


def test_a_huge_count_that_comes_slowly_costs_no_more_than_what_has_come() -> None:
    """Of the most keys that may be declared it sends a few, piece by piece; at the limit it is dropped."""
    count = StoreLimits().keys
    with victim(str(32 * MIB)) as server, server.dial() as slow:
        slow.sendall(b"\x06" + wire.LENGTH.pack(count))
        key = wire.text(b"k" * 8192)
        for _ in range(1000):
            slow.sendall(key[:5])
            slow.sendall(key[5:])
        assert server.is_well()
        assert server.cost_mib() < 8 + 32
        sent = send_until_refused(slow, (key for _ in range(count)))
        assert "longer than 33554432 bytes" in server.reason()
        assert sent < 32 * 1024
        assert server.cost_mib() < 3 * 32 + 64
        assert server.is_well()


def test_counts_and_lengths_beyond_the_limit_cost_nothing() -> None:
    huge = {
        "1099511627776 keys": b"\x06" + wire.LENGTH.pack(1 << 40),
        "18446744073709551615 keys": b"\x0b" + wire.LENGTH.pack((1 << 64) - 1),
        "9223372036854775808 bytes": b"\x01" + wire.LENGTH.pack(1 << 63),
        "value of 9223372036854775808": b"\x01" + wire.text(b"/k") + wire.LENGTH.pack(1 << 63),
        "value of 9223372036854775809": b"\x02" + wire.text(b"/k") + wire.text(b"") + wire.LENGTH.pack((1 << 63) + 1),
    }
    with victim() as server:
        for reason, request in huge.items():
            with server.dial() as bad:
                bad.sendall(request)
                assert read_to_end(bad) == b""
            assert reason in server.reason()
        assert server.is_well()
        assert server.cost_mib() < 8


def test_many_halves_of_requests_hold_nobody_up() -> None:
    half = (PING + wire.request(Query.SET, [b"/k", b"v" * 1000]))[:-1]
    with victim() as server:
        sockets = [server.dial() for _ in range(300)]
        for sock in sockets:
            sock.sendall(half)
            assert sock.recv(4, socket.MSG_WAITALL) == wire.NONCE.pack(1)
        assert server.is_well()
        assert not server.client.check(["k"])
        for sock in sockets:
            sock.close()
        assert server.is_well()
        assert not server.client.check(["k"])
        assert server.cost_mib() < 32


def test_a_thousand_connections_that_wait_for_one_key_are_woken_by_one_write() -> None:
    with victim() as server:
        sockets = [server.dial() for _ in range(1000)]
        for sock in sockets:
            sock.sendall(PING + wire.request(Query.WAIT, [b"/key"]) + PING)
        for sock in sockets:
            assert sock.recv(8, socket.MSG_WAITALL) == 2 * wire.NONCE.pack(1)  # it stands in line
        server.client.set("key", "v")
        assert [sock.recv(2) for sock in sockets] == [b"\0"] * len(sockets)
        for sock in sockets:
            sock.close()


# What a wake-up costs -------------------------------------------------------------------------------------------------


def cost(act: Callable[..., object], *args: object) -> int:
    """How many functions were called; unlike a time, it is the same on every machine."""
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    gc.collect()
    gc.disable()  # what others left behind would be counted
    sys.setprofile(count)
    try:
        act(*args)
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


def waiting_for(key: bytes, waiters: int) -> KeyValues[Waiter]:
    data = KeyValues[Waiter]()
    for _ in range(waiters):
        data.wait(Waiter(), [key])
    return data


def test_a_wake_up_costs_the_same_however_many_wait() -> None:
    for waiters in (1, 1000, 100_000):
        data = waiting_for(b"k", waiters)
        assert cost(data.put, b"other", b"") < 20
        assert cost(data.put, b"k", b"") < 10 * waiters + 20
        assert len(data.take_woken()) == waiters
        assert cost(data.put, b"k", b"") < 20


def test_coming_to_wait_costs_the_same_however_many_wait() -> None:
    costs = [cost(waiting_for(b"k", waiters).wait, Waiter(), [b"k"]) for waiters in (1, 1000, 100_000)]
    assert costs[0] == costs[1] == costs[2]
