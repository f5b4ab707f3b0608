"""Threads that wait, and what wakes them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

import pytest

from rallypoint.stores import MemoryStore, Store, StoreTimeoutError
from tests.support.store_kinds import BRIEFLY, SOON_S, Handles, needs
from tests.support.store_threads import Threads, WaitChecks, WaitCounter, result

WRITES: dict[str, Callable[[Store], object]] = {
    "set": lambda store: store.set("key", "1"),
    "append": lambda store: store.append("key", "1"),
    "compare_set": lambda store: store.compare_set("key", "", "1"),
    "multi_set": lambda store: store.multi_set(["key"], ["1"]),
}


@pytest.mark.parametrize("write", WRITES)
def test_every_write_wakes_who_waits_for_the_key(
    handles: Handles, all_wait: WaitChecks, threads: Threads, write: str
) -> None:
    waiting = threads.start(handles.open().get, "key")
    all_wait(waiting)
    WRITES[write](handles.open())
    assert result(waiting) == b"1"


@needs("add wakes")
def test_adding_wakes_who_waits_for_the_key(handles: Handles, all_wait: WaitChecks, threads: Threads) -> None:
    waiting = threads.start(handles.open().get, "key")
    all_wait(waiting)
    handles.open().add("key", 1)
    assert result(waiting) == b"1"


@needs("barrier key")
def test_a_barrier_wakes_who_waits_for_its_key(handles: Handles, all_wait: WaitChecks, threads: Threads) -> None:
    waiting = threads.start(handles.open().get, "key")
    all_wait(waiting)
    handles.open().barrier("key", 1)
    assert result(waiting) == b"1"


@needs("wakes for values only")
def test_a_comparison_that_fails_wakes_nobody(handles: Handles, all_wait: WaitChecks, threads: Threads) -> None:
    store = handles.open()
    waiting = threads.start(handles.open().get, "key")
    all_wait(waiting)
    assert store.compare_set("key", "other", "value") == b"other"
    assert not store.check(["key"])
    assert not waiting.done()
    store.set("key", "v")
    assert result(waiting) == b"v"


@needs("came and went")
def test_what_came_and_went_was_there(handles: Handles, all_wait: WaitChecks, threads: Threads) -> None:
    store = handles.open()
    waiting = threads.start(handles.open().wait, ["a", "b", "c", "b"])
    all_wait(waiting)
    store.multi_set(["a", "c"], ["", ""])
    assert store.delete_key("a")
    assert not waiting.done()
    store.set("b", "")
    result(waiting)


@needs("queues")
def test_a_push_wakes_a_pop_and_a_wait(handles: Handles, all_wait: WaitChecks, threads: Threads) -> None:
    store = handles.open()
    popping = threads.start(handles.open().queue_pop, "q")
    all_wait(popping)
    store.queue_push("q", "one")
    assert result(popping) == b"one"
    waiting = threads.start(handles.open().wait, ["q"])
    all_wait(waiting)
    store.queue_push("q", "two")
    result(waiting)
    assert store.queue_len("q") == 1


def test_all_who_wait_for_a_key_are_woken(handles: Handles, all_wait: WaitChecks, threads: Threads) -> None:
    waiting = [threads.start(handles.open().get, "key") for _ in range(10)]
    all_wait(*waiting)
    handles.open().set("key", "v")
    assert [result(future) for future in waiting] == [b"v"] * 10


def test_other_keys_wake_nobody(handles: Handles, all_wait: WaitChecks, threads: Threads) -> None:
    store = handles.open()
    waiting = threads.start(handles.open().multi_get, ["a", "b"])
    all_wait(waiting)
    store.set("c", "1")
    store.set("a", "2")
    assert not waiting.done()
    store.set("b", "3")
    assert result(waiting) == [b"2", b"3"]


@needs("queues")
def test_each_entry_goes_to_one_who_waits(handles: Handles, all_wait: WaitChecks, threads: Threads) -> None:
    store = handles.open()
    popping = [threads.start(handles.open().queue_pop, "q") for _ in range(8)]
    all_wait(*popping)
    for entry in range(8):
        store.queue_push("q", str(entry))
    assert sorted(int(result(future)) for future in popping) == list(range(8))
    assert store.queue_len("q") == 0


@needs("queues", "wakes the next")
def test_who_waits_for_a_queue_does_not_keep_its_entry_from_who_pops(
    handles: Handles, all_wait: WaitChecks, threads: Threads
) -> None:
    looking = handles.open()
    waiting = threads.start(looking.wait, ["q"])
    all_wait(waiting)
    popping = threads.start(handles.open().queue_pop, "q")
    all_wait(popping)
    handles.open().queue_push("q", "entry")
    result(waiting)
    looking.num_keys()  # it goes on to do something else
    assert result(popping) == b"entry"


def test_a_barrier_opens_for_the_last(handles: Handles, all_wait: WaitChecks, threads: Threads) -> None:
    waiting = [threads.start(handles.open().barrier, "b", 5) for _ in range(4)]
    all_wait(*waiting)
    assert not any(future.done() for future in waiting)
    handles.open().barrier("b", 5)
    for future in waiting:
        result(future)


@needs("barrier key", "firm barriers")
def test_writing_to_a_barrier_does_not_open_it(handles: Handles, all_wait: WaitChecks, threads: Threads) -> None:
    store = handles.open()
    waiting = threads.start(handles.open().barrier, "b", 2)
    all_wait(waiting)
    store.set("other", "x")
    assert store.get("b") == b"1"
    store.set("b", "1")
    assert not waiting.done()
    store.barrier("b", 2)
    result(waiting)


def test_who_gave_up_is_not_woken_and_the_store_goes_on(
    handles: Handles, all_wait: WaitChecks, threads: Threads
) -> None:
    store, other = handles.open(), handles.open()
    with pytest.raises(StoreTimeoutError):
        store.wait(["key", "more"], BRIEFLY)
    all_wait.gave_up()
    other.set("key", "v")
    other.set("more", "v")
    assert store.get("key") == b"v"
    waiting = threads.start(store.get, "late")
    all_wait(waiting)
    other.set("late", "v")
    assert result(waiting) == b"v"


@needs("queues", "cloned timeout")
def test_giving_up_a_pop_loses_no_entry(handles: Handles, all_wait: WaitChecks, threads: Threads) -> None:
    store = handles.open()
    store.set_timeout(BRIEFLY)
    with pytest.raises(StoreTimeoutError):
        store.queue_pop("q")
    all_wait.gave_up()
    popping = threads.start(handles.open().queue_pop, "q")
    all_wait(popping)
    handles.open().queue_push("q", "entry")
    assert result(popping) == b"entry"


def test_adding_from_many_threads_counts_each(handles: Handles, threads: Threads) -> None:
    stores = [handles.open() for _ in range(8)]
    done = [threads.start(lambda store: [store.add("n", 1) for _ in range(50)], store) for store in stores]
    sums = [total for future in done for total in result(future)]
    assert sorted(sums) == list(range(1, 401))


def test_one_handle_may_be_shared_by_threads(store: Store, threads: Threads) -> None:
    def work(worker: int) -> None:
        for turn in range(50):
            store.set(f"{worker}/{turn}", f"{worker} {turn}")
            assert store.get(f"{worker}/{turn}") == f"{worker} {turn}".encode()

    for future in [threads.start(work, worker) for worker in range(8)]:
        result(future)
    assert len({key for key in store.list_keys() if key[:1].isdigit()}) == 400


def test_compare_set_has_one_winner(handles: Handles, threads: Threads) -> None:
    stores = [handles.open() for _ in range(8)]
    start = threading.Barrier(8)

    def claim(number: int) -> bytes:
        start.wait(SOON_S)
        return stores[number].compare_set("leader", "", str(number))

    answers = {result(future) for future in [threads.start(claim, number) for number in range(8)]}
    assert answers == {handles.open().get("leader")}


def test_a_thread_in_memory_does_not_stand_in_the_way_of_others(wait_counter: WaitCounter, threads: Threads) -> None:
    store = MemoryStore(timedelta(seconds=SOON_S))
    waiting = threads.start(store.get, "key")
    wait_counter.expect()
    store.set("key", "v")
    assert result(waiting) == b"v"
