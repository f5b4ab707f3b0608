"""The pure part: who is woken by what, and that nothing of them is left."""

from __future__ import annotations

import pytest

from rallypoint.stores.data import KeyValues, Waiter
from rallypoint.stores.errors import StoreError


def empty(data: KeyValues[Waiter]) -> bool:
    return not (data._waiting or data._gates or data._promised or data.woken)


@pytest.fixture
def data() -> KeyValues[Waiter]:
    return KeyValues[Waiter]()


def barrier(data: KeyValues[Waiter], waiter: Waiter, key: bytes, world_size: int) -> bool:
    is_open = data.arrive(key, world_size)
    if not is_open:
        data.stand_at(waiter, key)
    return is_open


def test_a_thousand_waiters_on_one_key_are_woken_in_one_pass(data: KeyValues[Waiter]) -> None:
    waiters = [Waiter() for _ in range(1000)]
    assert not any(data.wait(waiter, [b"key"]) for waiter in waiters)
    data.put(b"other", b"")
    assert data.take_woken() == []
    data.put(b"key", b"")
    assert data.take_woken() == waiters
    assert data.take_woken() == []
    assert empty(data)


def test_a_waiter_for_several_keys_is_woken_once(data: KeyValues[Waiter]) -> None:
    waiter = Waiter()
    data.push(b"queue", b"entry")
    assert not data.wait(waiter, [b"a", b"b", b"a", b"queue"])
    assert waiter.missing == {b"a", b"b"}
    data.put(b"a", b"")
    data.put(b"a", b"")
    assert data.take_woken() == []
    data.put(b"b", b"")
    assert data.take_woken() == [waiter]
    assert not waiter.waiting
    assert empty(data)


def test_who_cancels_is_forgotten(data: KeyValues[Waiter]) -> None:
    waiter, other, at_gate = Waiter(), Waiter(), Waiter()
    data.wait(waiter, [b"a", b"b"])
    data.wait(other, [b"a"])
    barrier(data, at_gate, b"gate", 2)
    for gone in (waiter, at_gate, waiter):
        data.cancel(gone)
    data.put(b"a", b"")
    assert barrier(data, at_gate, b"gate", 2)
    assert data.take_woken() == [other]
    assert empty(data)


def test_a_barrier_wakes_those_who_wait_at_it(data: KeyValues[Waiter]) -> None:
    first, second, last, looking = Waiter(), Waiter(), Waiter(), Waiter()
    data.wait(looking, [b"gate"])
    assert not barrier(data, first, b"gate", 3)
    assert data.take_woken() == [looking]
    assert not barrier(data, second, b"gate", 3)
    assert barrier(data, last, b"gate", 3)
    assert data.take_woken() == [first, second]
    assert empty(data)


def test_an_entry_wakes_the_first_in_line_only(data: KeyValues[Waiter]) -> None:
    first, second = Waiter(), Waiter()
    data.wait(first, [b"q"])
    data.wait(second, [b"q"])
    data.push(b"q", b"1")
    assert data.take_woken() == [first]
    assert data.pop(b"q") == b"1"
    data.settle(first)
    assert data.take_woken() == []
    data.push(b"q", b"2")
    assert data.take_woken() == [second]
    data.settle(second)
    assert empty(data)


def test_an_entry_that_was_not_fetched_wakes_the_next(data: KeyValues[Waiter]) -> None:
    first, second, third = Waiter(), Waiter(), Waiter()
    for waiter in (first, second, third):
        data.wait(waiter, [b"q"])
    data.push(b"q", b"1")
    data.push(b"q", b"2")
    assert data.take_woken() == [first, second]
    assert data.pop(b"q") == b"1"
    data.settle(first)
    assert data.take_woken() == []  # what is left is promised to the second
    data.settle(second)
    assert data.take_woken() == [third]
    assert data.pop(b"q") == b"2"
    data.settle(third)
    data.settle(third)
    assert empty(data)


def test_an_entry_that_was_taken_by_another_does_not_strand_who_was_promised_it(data: KeyValues[Waiter]) -> None:
    promised, later = Waiter(), Waiter()
    data.wait(promised, [b"q"])
    data.push(b"q", b"1")
    assert data.take_woken() == [promised]
    assert data.pop(b"q") == b"1"
    assert data.pop(b"q") is None
    data.settle(promised)
    data.wait(later, [b"q"])
    data.push(b"q", b"2")
    assert data.take_woken() == [later]


def test_a_value_does_not_pass_for_an_entry(data: KeyValues[Waiter]) -> None:
    waiter = Waiter()
    data.put(b"k", b"value")
    assert not data.wait_for_push(waiter, b"k")
    data.push(b"k", b"entry")
    assert data.take_woken() == [waiter]


def test_a_long_value_is_not_shown_in_full(data: KeyValues[Waiter]) -> None:
    data.put(b"n", b"x" * 1000)
    with pytest.raises(StoreError) as caught:
        data.add(b"n", 1)
    assert len(str(caught.value)) < 200


def test_what_was_read_does_not_change_with_what_is_appended(data: KeyValues[Waiter]) -> None:
    data.append(b"log", b"a")
    data.append(b"log", b"b")
    before = data.get(b"log")
    data.append(b"log", b"c")
    assert (before, data.get(b"log"), data.size(b"log")) == (b"ab", b"abc", 3)
