"""Ranks that meet and exchange values on a store, whichever it is."""

from __future__ import annotations

import pytest

from rallypoint.stores import MemoryStore, StoreTimeoutError, all_gather, barrier
from tests.support.store_kinds import BRIEFLY, SOON, Handles
from tests.support.store_threads import Threads, result

SIZE = 3


def test_nobody_passes_a_barrier_before_everybody_came(handles: Handles, threads: Threads) -> None:
    stores = [handles.open() for _ in range(SIZE)]
    early = [threads.start(_meet, store, rank) for rank, store in enumerate(stores[1:])]
    assert not any(arrival.done() for arrival in early)
    barrier(stores[0], SIZE, timeout=SOON)
    for arrival in early:
        result(arrival)


def _meet(store: object, rank: int) -> None:
    barrier(store, SIZE, timeout=SOON, rank=rank)


def test_a_barrier_can_be_met_at_again_and_again(handles: Handles, threads: Threads) -> None:
    stores = [handles.open() for _ in range(SIZE)]
    counter = handles.open()

    def walk(store: object, rank: int) -> list[int]:
        seen = []
        for lap in range(4):
            seen.append(int(store.add("steps", 1)))  # type: ignore[attr-defined]
            barrier(store, SIZE, "lap", SOON, rank=rank)
            assert counter.add("steps", 0) >= SIZE * (lap + 1)
            barrier(store, SIZE, "judged", SOON)
        return seen

    walks = [result(walk) for walk in [threads.start(walk, store, rank) for rank, store in enumerate(stores)]]
    assert [sorted(steps) for steps in zip(*walks, strict=True)] == [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 12]]


def test_a_barrier_names_who_did_not_come(threads: Threads) -> None:
    store = MemoryStore(SOON)
    other = threads.start(lambda: barrier(store.clone(), 4, "start", SOON, rank=2))
    store.wait(["start/0/2"])
    with pytest.raises(
        StoreTimeoutError, match=r"2 of 4 came to the barrier 'start' within 0.02 s; missing are the ranks 0, 3$"
    ):
        barrier(store, 4, "start", BRIEFLY, rank=1)
    with pytest.raises(StoreTimeoutError, match=r"3 of 4 came to the barrier 'start' within 0.02 s$"):
        barrier(store, 4, "start", BRIEFLY)
    barrier(store, 4, "start", BRIEFLY, rank=3)
    result(other)


def test_of_many_who_did_not_come_the_first_are_named() -> None:
    with pytest.raises(StoreTimeoutError, match=r"missing are the ranks 1, 2, 3, 4, 5, 6, 7, 8 and 91 more$"):
        barrier(MemoryStore(SOON), 100, "start", BRIEFLY, rank=0)


def test_everybody_gets_everybodys_value_in_the_order_of_ranks(handles: Handles, threads: Threads) -> None:
    values = [b"zero", b"", b"\x00\xff two"]
    given = [
        threads.start(all_gather, handles.open(), rank, SIZE, value, "gather", SOON)
        for rank, value in enumerate(values)
    ]
    assert [result(gathered) for gathered in given] == [values] * SIZE


def test_a_gathering_names_who_gave_nothing(handles: Handles) -> None:
    store = handles.open()
    store.set("gather/0", b"zero")
    with pytest.raises(
        StoreTimeoutError, match=r"2 of 3 gave their values to 'gather' within 0.02 s; missing is rank 1$"
    ):
        all_gather(store, 2, 3, b"two", "gather", BRIEFLY)


@pytest.mark.parametrize(("world_size", "rank"), [(0, None), (-1, None), (2, 2), (2, -1)])
def test_a_world_that_cannot_be_is_refused_before_anybody_is_counted(world_size: int, rank: int | None) -> None:
    store = MemoryStore(SOON)
    with pytest.raises(ValueError, match=r"but should be"):
        barrier(store, world_size, rank=rank)
    assert store.num_keys() == 0
