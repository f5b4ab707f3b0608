"""Byte for byte: what torch's server answers to each query, ours answers too."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from rallypoint.stores.tcp import wire
from rallypoint.stores.tcp.wire import Query
from tests.support.store_kinds import SOON_S

HELLO = wire.request(Query.VALIDATE, number=wire.MAGIC)


class Caller:
    """A raw connection.  Behind each request goes a ping, whose answer shows where the one before it ended."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), SOON_S)
        self._nonces = itertools.count(0x7A7A0001)
        self.sock.sendall(HELLO)

    def ask(self, query: Query, *texts: bytes, number: int = 0) -> bytes:
        return self.say(wire.request(query, texts, number))

    def say(self, request: bytes) -> bytes:
        nonce = next(self._nonces)
        end = wire.NONCE.pack(nonce)
        self.sock.sendall(request + wire.request(Query.PING, number=nonce))
        received = b""
        while not received.endswith(end):
            more = self.sock.recv(1 << 16)
            assert more, f"closed after {received!r}"
            received += more
        return received.removesuffix(end)


def read_to_end(sock: socket.socket) -> bytes:
    received = b""
    try:
        while more := sock.recv(1 << 16):
            received += more
    except ConnectionResetError:
        pass
    return received


def transcript(port: int) -> Iterator[tuple[str, bytes]]:
    """An exchange with every query in it, and what each was answered."""
    with ExitStack() as stack:
        a, b, c = (Caller(port) for _ in range(3))
        for caller in (a, b, c):
            stack.enter_context(caller.sock)

        yield ("ping", a.say(b""))
        yield ("set", a.ask(Query.SET, b"/k", b"v"))
        yield ("get", a.ask(Query.GET, b"/k"))
        yield ("get of nothing", a.ask(Query.GET, b"/absent"))
        yield ("compare_set that succeeds", a.ask(Query.COMPARE_SET, b"/k", b"v", b"w"))
        yield ("compare_set that fails", a.ask(Query.COMPARE_SET, b"/k", b"v", b"x"))
        yield ("compare_set of nothing", a.ask(Query.COMPARE_SET, b"/new", b"e", b"d"))
        yield ("compare_set that creates", a.ask(Query.COMPARE_SET, b"/new", b"", b"d"))
        yield ("add", a.ask(Query.ADD, b"/n", number=-3))
        yield ("add to text that begins with a number", a.ask(Query.SET, b"/m", b" 7 of 9"))
        yield ("add", a.ask(Query.ADD, b"/m", number=1))
        yield ("check", a.ask(Query.CHECK, b"/k", b"/n"))
        yield ("check for nothing", a.ask(Query.CHECK, b"/k", b"/absent"))
        yield ("check of none", a.ask(Query.CHECK))
        yield ("wait that is over", a.ask(Query.WAIT, b"/k", b"/n"))
        yield ("wait for none", a.ask(Query.WAIT))
        yield ("wait", b.ask(Query.WAIT, b"/late", b"/later", b"/k"))
        yield ("set of a part", a.ask(Query.SET, b"/late", b""))
        yield ("nothing yet", b.say(b""))
        yield ("set of the rest", a.ask(Query.MULTI_SET, b"/later", b"", b"/more", b"2"))
        yield ("woken", b.say(b""))
        yield ("wait in vain", b.ask(Query.WAIT, b"/never"))
        yield ("cancel", b.ask(Query.CANCEL_WAIT))
        yield ("too late", a.ask(Query.SET, b"/never", b"now"))
        yield ("not woken", b.say(b""))
        yield ("cancel of nothing", b.ask(Query.CANCEL_WAIT))
        yield ("count", a.ask(Query.COUNT_KEYS))
        yield ("append", a.ask(Query.APPEND, b"/k", b"\0x"))
        yield ("append to nothing", a.ask(Query.APPEND, b"/log", b""))
        yield ("multi_get", a.ask(Query.MULTI_GET, b"/k", b"/absent", b"/n", b"/k"))
        yield ("multi_get of none", a.ask(Query.MULTI_GET))
        yield ("multi_set of none", a.ask(Query.MULTI_SET))
        yield ("delete", a.ask(Query.DELETE, b"/k"))
        yield ("delete of nothing", a.ask(Query.DELETE, b"/k"))
        yield ("push", a.ask(Query.QUEUE_PUSH, b"/q", b"1"))
        yield ("push of nothing", a.ask(Query.QUEUE_PUSH, b"/q", b""))
        yield ("length", a.ask(Query.QUEUE_LEN, b"/q"))
        yield ("check of a queue", a.ask(Query.CHECK, b"/q"))
        yield ("get of a queue", a.ask(Query.GET, b"/q"))
        yield ("delete of a queue", a.ask(Query.DELETE, b"/q"))
        yield ("pop", a.ask(Query.QUEUE_POP, b"/q"))
        yield ("pop of nothing", a.ask(Query.QUEUE_POP, b"/q"))
        yield ("pop of no queue", a.ask(Query.QUEUE_POP, b"/q"))
        yield ("length of no queue", a.ask(Query.QUEUE_LEN, b"/absent"))
        yield ("wait for a queue", b.ask(Query.WAIT, b"/q"))
        yield ("push", a.ask(Query.QUEUE_PUSH, b"/q", b"entry"))
        yield ("woken", b.ask(Query.QUEUE_POP, b"/q"))
        yield ("barrier", a.ask(Query.BARRIER, b"/b", number=3))
        yield ("barrier", b.ask(Query.BARRIER, b"/b", number=3))
        yield ("cancel", b.ask(Query.CANCEL_WAIT))
        yield ("barrier of which one gave up", b.ask(Query.GET, b"/b"))
        yield ("barrier", c.ask(Query.BARRIER, b"/b", number=3))
        yield ("woken", a.say(b""))
        yield ("not woken", b.say(b""))
        yield ("barrier that is open", b.ask(Query.BARRIER, b"/b", number=3))
        yield ("barrier of none", b.ask(Query.BARRIER, b"/none", number=0))
        yield ("a key without its slash", a.ask(Query.ADD, b"init/", number=1))
        keys = a.ask(Query.LIST_KEYS)
        yield ("count of the list", keys[:8])
        yield ("list", b"".join(sorted(split(keys[8:]))))
        yield ("count", a.ask(Query.COUNT_KEYS))


def split(texts: bytes) -> Iterator[bytes]:
    while texts:
        end = wire.LENGTH.size + wire.LENGTH.unpack_from(texts)[0]
        yield texts[:end]
        texts = texts[end:]


def test_both_servers_answer_with_the_same_bytes(our_port: int, their_port: int) -> None:
    assert list(transcript(our_port)) == list(transcript(their_port))


def test_the_conversation_has_every_query_in_it(our_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {Query.VALIDATE, Query.PING}
    write = wire.request

    def watched(query: Query, *args: object, **kwargs: object) -> bytes:
        asked.add(query)
        return write(query, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(wire, "request", watched)
    for _ in transcript(our_port):
        pass
    assert asked == set(Query)


OFFENCES = {
    "an unknown query": HELLO + b"\x63",
    "a key of 8,193 bytes": HELLO + wire.request(Query.GET, [b"k" * 8193]),
    "a value of 8 MiB and a byte": HELLO + b"\x01" + wire.text(b"/k") + wire.LENGTH.pack(8 * 1024 * 1024 + 1),
    "a value of 2^63 bytes": HELLO + b"\x01" + wire.text(b"/k") + wire.LENGTH.pack(1 << 63),
    "2^40 keys": HELLO + b"\x06" + wire.LENGTH.pack(1 << 40),
    "one key more than 128 Ki": HELLO + b"\x06" + wire.LENGTH.pack(128 * 1024 + 1),
    "an addition to text": HELLO + wire.request(Query.SET, [b"/t", b"text"]) + wire.request(Query.ADD, [b"/t"], 1),
    "a barrier at a text": HELLO + wire.request(Query.SET, [b"/t", b"text"]) + wire.request(Query.BARRIER, [b"/t"], 1),
}


@pytest.mark.parametrize("offence", OFFENCES)
def test_both_servers_hang_up_on_the_same_offences(port: int, offence: str) -> None:
    bystander = Caller(port)
    with socket.create_connection(("127.0.0.1", port), SOON_S) as bad, bystander.sock:
        bad.sendall(OFFENCES[offence])
        assert read_to_end(bad) == b""
        assert bystander.ask(Query.GET, b"/absent") == wire.text(b"")


def test_both_servers_take_what_is_just_within_the_limits(port: int) -> None:
    caller = Caller(port)
    with caller.sock:
        key, value = b"k" * 8192, b"v" * (8 * 1024 * 1024)
        caller.ask(Query.SET, key, value)
        assert caller.ask(Query.GET, key) == wire.text(value)
        assert caller.ask(Query.CHECK, *[b"k" * 8] * (128 * 1024)) == b"\1"
