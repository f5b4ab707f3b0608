"""The checker of histories itself: what it accepts, and what it does not let pass."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from rallypoint.stores import MemoryStore
from tests.support.linearizability import Call, explain
from tests.support.store_threads import Threads, result


def call(began: int, ended: int, verb: str, *args: bytes | int, answer: bytes | int, key: str = "k") -> Call:
    return Call(began, ended, verb, key, args, answer)


LEGAL = {
    "none": [],
    "one after the other": [
        call(0, 1, "add", 5, answer=5),
        call(2, 3, "add", -7, answer=-2),
        call(4, 5, "get", answer=b"-2"),
    ],
    "all at once, in the order that their answers tell": [
        call(0, 9, "add", 1, answer=3),
        call(0, 9, "add", 1, answer=1),
        call(0, 9, "add", 1, answer=2),
    ],
    "one that lasts is somewhere within": [
        call(0, 99, "compare_set", b"2", b"won", answer=b"won"),
        call(1, 2, "add", 1, answer=1),
        call(3, 4, "add", 1, answer=2),
        call(5, 6, "get", answer=b"won"),
    ],
    "one winner": [
        call(0, 9, "compare_set", b"", b"a", answer=b"a"),
        call(0, 9, "compare_set", b"", b"b", answer=b"a"),
        call(0, 9, "compare_set", b"x", b"c", answer=b"x"),  # before there was anything
    ],
    "an order that is found only after a wrong turn": [
        call(0, 9, "compare_set", b"", b"a", answer=b"a"),
        call(0, 9, "compare_set", b"a", b"", answer=b""),
        call(0, 9, "compare_set", b"", b"a", answer=b"a"),
        call(0, 9, "compare_set", b"b", b"c", answer=b"a"),
        call(10, 11, "get", answer=b"a"),
    ],
    "keys do not touch": [
        call(0, 1, "add", 1, answer=1, key="a"),
        call(2, 3, "add", 1, answer=1, key="b"),
    ],
}
ILLEGAL = {
    "a lost update": [call(0, 9, "add", 1, answer=1), call(0, 9, "add", 1, answer=1)],
    "an answer from nowhere": [call(0, 9, "add", 1, answer=1), call(0, 9, "add", 1, answer=3)],
    "two winners": [
        call(0, 9, "compare_set", b"", b"a", answer=b"a"),
        call(0, 9, "compare_set", b"", b"b", answer=b"b"),
    ],
    "a stale read": [
        call(0, 1, "add", 1, answer=1),
        call(2, 3, "add", 1, answer=2),
        call(4, 5, "get", answer=b"1"),
    ],
    "the future": [call(0, 1, "add", 1, answer=2), call(2, 3, "add", 1, answer=1)],
    "a failure that changed something": [
        call(0, 1, "compare_set", b"", b"a", answer=b"a"),
        call(2, 3, "compare_set", b"x", b"b", answer=b"a"),
        call(4, 5, "get", answer=b"b"),
    ],
    "a read of what is not there": [call(0, 1, "get", answer=b"1"), call(2, 3, "add", 1, answer=1)],
}


@pytest.mark.parametrize("history", LEGAL)
def test_what_some_order_explains_is_accepted(history: str) -> None:
    assert explain(LEGAL[history]) is None
    assert explain(reversed(LEGAL[history])) is None


@pytest.mark.parametrize("history", ILLEGAL)
def test_what_no_order_explains_is_rejected(history: str) -> None:
    assert "no order explains the calls on 'k'" in (explain(ILLEGAL[history]) or "")


def test_it_agrees_with_a_history_that_is_known_to_be_legal() -> None:
    """Calls in a known order, each given a stretch of time around its moment; any wrong answer is found."""
    dice = random.Random(7)
    total, calls = 0, []
    for moment in range(300):
        total += (amount := dice.randrange(1, 9))
        began, ended = moment * 10 - dice.randrange(60), moment * 10 + 1 + dice.randrange(60)
        calls.append(call(began, ended, "add", amount, answer=total))
    assert explain(calls) is None
    spoiled = calls[150]._replace(answer=int(calls[150].answer) + 1)
    assert explain([*calls[:150], spoiled, *calls[151:]]) is not None


def test_a_store_that_reads_and_then_writes_is_found_out(threads: Threads) -> None:
    """Two threads that add by reading and writing, each held between the two until the other has read as well."""
    store = MemoryStore()
    store.set("k", "0")
    seen = MemoryStore()
    calls: list[Call] = []

    def add(began: int) -> None:
        value = int(store.get("k")) + 1
        seen.barrier("both have read", 2)
        store.set("k", str(value))
        calls.append(call(began, 9, "add", 1, answer=value))

    adding: list[Callable[[], None]] = [lambda: add(0), lambda: add(1)]
    for future in [threads.start(task) for task in adding]:
        result(future)
    assert explain(calls) is not None
