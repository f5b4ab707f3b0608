"""The server without sockets: what each query is answered, who is woken, who is refused."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rallypoint.stores.tcp import wire
from rallypoint.stores.tcp.server_core import StoreServerCore, StoreSession
from rallypoint.stores.tcp.wire import Query, StoreLimits

HELLO = wire.request(Query.VALIDATE, number=wire.MAGIC)
STOP, CANCELED = b"\0", b"\1"


class Hall:
    """A server and its clients, by name; keeps what each was sent."""

    def __init__(self, limits: StoreLimits | None = None) -> None:
        self.core = StoreServerCore(limits)
        self.sessions: dict[str, StoreSession] = {}
        self.received: dict[str, bytes] = {}

    def say(self, name: str, data: bytes, unread: int = 0) -> bytes:
        """What the client has been sent by the end of it, since it was last asked."""
        if name not in self.sessions:
            self.sessions[name] = self.core.connect(name)
            self.say(name, HELLO)
        pieces, woken = self.core.receive(self.sessions[name], data, unread)
        answer = b"".join(pieces)
        self.received[name] = self.received.get(name, b"") + answer
        self.wake(woken)
        return self.take(name)

    def ask(self, name: str, query: Query, *texts: bytes, number: int = 0) -> bytes:
        return self.say(name, wire.request(query, texts, number))

    def take(self, name: str) -> bytes:
        return self.received.pop(name, b"")

    def leave(self, name: str) -> None:
        self.wake(self.core.disconnect(self.sessions[name]))

    def wake(self, sessions: Sequence[StoreSession]) -> None:
        for session in sessions:
            self.received[session.name] = self.received.get(session.name, b"") + STOP

    def refusal(self, name: str) -> str | None:
        return self.sessions[name].refusal


@pytest.fixture
def hall() -> Hall:
    return Hall()


def number(n: int) -> bytes:
    return wire.NUMBER.pack(n)


def test_every_query_is_answered_as_torch_answers_it(hall: Hall) -> None:
    assert hall.ask("a", Query.PING, number=0xDEADBEEF) == wire.NONCE.pack(0xDEADBEEF)
    assert hall.ask("a", Query.SET, b"k", b"v") == b""
    assert hall.ask("a", Query.GET, b"k") == wire.text(b"v")
    assert hall.ask("a", Query.GET, b"absent") == wire.text(b"")
    assert hall.ask("a", Query.COMPARE_SET, b"k", b"v", b"w") == wire.text(b"w")
    assert hall.ask("a", Query.COMPARE_SET, b"absent", b"v", b"w") == wire.text(b"v")
    assert hall.ask("a", Query.ADD, b"n", number=-3) == number(-3)
    assert hall.ask("a", Query.CHECK, b"k", b"n") == b"\0"
    assert hall.ask("a", Query.CHECK, b"k", b"absent") == b"\1"
    assert hall.ask("a", Query.WAIT, b"k", b"n") == STOP
    assert hall.ask("a", Query.COUNT_KEYS) == number(2)
    assert hall.ask("a", Query.APPEND, b"k", b"x") == b""
    assert hall.ask("a", Query.MULTI_GET, b"k", b"absent", b"n") == wire.text(b"wx") + wire.text(b"") + wire.text(b"-3")
    assert hall.ask("a", Query.MULTI_SET, b"k", b"1", b"m", b"2") == b""
    assert hall.ask("a", Query.LIST_KEYS) == number(3) + wire.text(b"k") + wire.text(b"n") + wire.text(b"m")
    assert hall.ask("a", Query.DELETE, b"k") == number(1)
    assert hall.ask("a", Query.DELETE, b"k") == number(0)
    assert hall.ask("a", Query.CANCEL_WAIT) == CANCELED
    assert hall.ask("a", Query.QUEUE_PUSH, b"q", b"1") == b""
    assert hall.ask("a", Query.QUEUE_PUSH, b"q", b"2") == b""
    assert hall.ask("a", Query.QUEUE_LEN, b"q") == number(2)
    assert hall.ask("a", Query.QUEUE_POP, b"q") == number(2) + wire.text(b"1")
    assert hall.ask("a", Query.QUEUE_POP, b"q") == number(1) + wire.text(b"2")
    assert hall.ask("a", Query.QUEUE_POP, b"q") == number(0)
    assert hall.ask("a", Query.BARRIER, b"b", number=1) == STOP
    assert hall.refusal("a") is None


def test_a_wait_is_answered_when_the_last_key_comes(hall: Hall) -> None:
    assert hall.ask("a", Query.WAIT, b"x", b"y") == b""
    hall.ask("b", Query.SET, b"x", b"")
    assert hall.take("a") == b""
    hall.ask("b", Query.SET, b"y", b"")
    assert hall.take("a") == STOP


def test_a_cancelled_wait_is_answered_once(hall: Hall) -> None:
    hall.ask("a", Query.WAIT, b"x")
    assert hall.ask("a", Query.CANCEL_WAIT) == CANCELED
    hall.ask("b", Query.SET, b"x", b"")
    assert hall.take("a") == b""
    assert hall.ask("a", Query.WAIT, b"x") == STOP


def test_a_cancel_that_crosses_the_answer_comes_behind_it(hall: Hall) -> None:
    hall.ask("a", Query.WAIT, b"x")
    hall.ask("b", Query.SET, b"x", b"")
    hall.say("a", b"")
    hall.received["a"] = STOP
    assert hall.ask("a", Query.CANCEL_WAIT) == STOP + CANCELED


def test_answers_keep_the_order_of_the_questions(hall: Hall) -> None:
    batch = [
        wire.request(Query.ADD, [b"n"], 1),
        wire.request(Query.WAIT, [b"x"]),
        wire.request(Query.SET, [b"x", b"v"]),
        wire.request(Query.GET, [b"x"]),
    ]
    assert hall.say("a", b"".join(batch)) == number(1) + STOP + wire.text(b"v")


def test_a_barrier_wakes_all_when_it_is_full(hall: Hall) -> None:
    assert hall.ask("a", Query.BARRIER, b"b", number=3) == b""
    assert hall.ask("b", Query.BARRIER, b"b", number=3) == b""
    assert hall.ask("c", Query.BARRIER, b"b", number=3) == STOP
    assert (hall.take("a"), hall.take("b")) == (STOP, STOP)


def test_who_died_before_it_fetched_an_entry_does_not_keep_it(hall: Hall) -> None:
    for name in "abc":
        hall.ask(name, Query.WAIT, b"q")
    hall.ask("d", Query.QUEUE_PUSH, b"q", b"entry")
    assert [hall.take(name) for name in "abc"] == [STOP, b"", b""]
    hall.leave("a")
    assert [hall.take(name) for name in "abc"] == [b"", STOP, b""]
    hall.ask("b", Query.PING)
    assert hall.take("c") == STOP
    assert hall.ask("c", Query.QUEUE_POP, b"q") == number(1) + wire.text(b"entry")


def test_who_leaves_waits_no_more(hall: Hall) -> None:
    hall.ask("a", Query.WAIT, b"x")
    hall.ask("b", Query.BARRIER, b"g", number=2)
    hall.leave("a")
    hall.leave("b")
    hall.ask("c", Query.SET, b"x", b"")
    assert hall.ask("c", Query.BARRIER, b"g", number=2) == STOP
    assert (hall.take("a"), hall.take("b")) == (b"", b"")
    assert not hall.core._data._waiting
    assert not hall.core._data._gates


SMALL = StoreLimits(key_bytes=10, value_bytes=100, keys=1000, unread_bytes=1000, piled_bytes=900)
WRONG = {
    "not a number of 64 bits": wire.request(Query.ADD, [b"text"], 1),
    "not fit into 64 bits": wire.request(Query.ADD, [b"big"], 2**63 - 1) + wire.request(Query.ADD, [b"big"], 1),
    "unknown query 77": b"\x4d",
    "key of 11 bytes": wire.request(Query.GET, [b"k" * 11]),
    "began to wait while it was waiting": wire.request(Query.WAIT, [b"x"]) + wire.request(Query.BARRIER, [b"y"], 2),
    "asked for more than 1000 bytes": wire.request(Query.MULTI_GET, [b"text"] * 900),
    "more while 902 bytes of answers lay unread": wire.request(Query.MULTI_GET, [b"text"] * 82)
    + wire.request(Query.PING) * 100,
    "appended to a value beyond 500 bytes": wire.request(Query.APPEND, [b"log", b"x" * 100]) * 6,
}


@pytest.mark.parametrize("why", WRONG)
def test_who_breaks_the_rules_is_refused_and_nobody_else(why: str) -> None:
    hall = Hall(SMALL)
    hall.ask("good", Query.SET, b"text", b"abc")
    hall.ask("waiting", Query.WAIT, b"x")
    hall.say("bad", WRONG[why])
    assert why in (hall.refusal("bad") or "")
    assert hall.say("bad", wire.request(Query.PING)) == b""
    assert hall.ask("good", Query.GET, b"text") == wire.text(b"abc")
    hall.ask("good", Query.SET, b"x", b"")
    assert hall.take("waiting") == STOP
    assert hall.refusal("good") is None


def test_a_wrong_magic_is_refused() -> None:
    core = StoreServerCore()
    session = core.connect("stranger")
    assert core.receive(session, b"\0abcd") == ([], [])
    assert session.refusal == "it is no store client: it began with 0x64636261, not 0x3c85f7ce"


def test_what_was_not_read_before_counts() -> None:
    hall = Hall(SMALL)
    hall.say("a", wire.request(Query.PING), unread=900)
    assert hall.refusal("a") is None
    hall.say("a", wire.request(Query.PING), unread=901)
    assert "asked for more while 901 bytes" in (hall.refusal("a") or "")


def test_an_answer_may_not_be_larger_than_what_may_be_unread() -> None:
    hall = Hall(SMALL)
    for number in range(60):
        hall.ask("a", Query.SET, b"%010d" % number, b"")
    assert hall.ask("a", Query.LIST_KEYS) == b""
    assert "more than 1000 bytes of answers" in (hall.refusal("a") or "")


def test_what_came_before_the_offence_is_answered(hall: Hall) -> None:
    assert hall.say("a", wire.request(Query.ADD, [b"n"], 1) + b"\xff") == number(1)
    assert hall.refusal("a") == "it sent the unknown query 255"
