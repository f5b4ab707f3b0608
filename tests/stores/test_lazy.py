"""A store that is opened when it is first used."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from rallypoint.stores import MemoryStore, PrefixStore, Store, StoreError
from rallypoint.stores.prefix import LazyPrefixStore
from tests.support.store_threads import Threads, result

USES: dict[str, Callable[[Store], object]] = {
    "set": lambda store: store.set("key", "v"),
    "get": lambda store: store.get("here"),
    "add": lambda store: store.add("n", 1),
    "compare_set": lambda store: store.compare_set("key", "", "v"),
    "wait": lambda store: store.wait(["here"]),
    "check": lambda store: store.check(["here"]),
    "delete_key": lambda store: store.delete_key("here"),
    "num_keys": lambda store: store.num_keys(),
    "list_keys": lambda store: store.list_keys(),
    "append": lambda store: store.append("here", "more"),
    "multi_get": lambda store: store.multi_get(["here"]),
    "multi_set": lambda store: store.multi_set(["a", "b"], ["1", "2"]),
    "queue_push": lambda store: store.queue_push("q", "entry"),
    "queue_pop": lambda store: store.queue_pop("waiting"),
    "queue_len": lambda store: store.queue_len("waiting"),
    "barrier": lambda store: store.barrier("b", 1),
    "timeout": lambda store: store.timeout,
    "set_timeout": lambda store: store.set_timeout(timedelta(seconds=7)),
    "clone": lambda store: store.clone().list_keys(),
}


def filled() -> MemoryStore:
    store = MemoryStore(timedelta(seconds=5))
    store.set("late/here", "value")
    store.queue_push("late/waiting", "entry")
    return store


def image(store: Store) -> tuple[object, ...]:
    """All that can be seen of a small store."""
    values = {key: store.get(key) for key in store.list_keys()}
    return values, store.queue_len("late/q"), store.queue_len("late/waiting"), store.timeout


def test_all_of_the_contract_is_tried() -> None:
    contract = {name for name in vars(Store) if not name.startswith("_")} - {"has_extended_api"}
    assert set(USES) == contract


@pytest.mark.parametrize("use", USES)
def test_each_use_opens_it_once_and_does_there_what_was_asked(use: str) -> None:
    opened: list[MemoryStore] = []

    def open_store() -> MemoryStore:
        opened.append(filled())
        return opened[-1]

    late, plain = LazyPrefixStore("late", open_store), filled()
    assert opened == []
    assert USES[use](late) == USES[use](PrefixStore("late", plain))
    assert len(opened) == 1
    assert image(opened[0]) == image(plain)
    assert late.underlying_store is opened[0]
    assert len(opened) == 1


def test_what_is_never_used_is_never_opened() -> None:
    def refuse() -> Store:
        raise AssertionError("it was opened")

    assert LazyPrefixStore("late", refuse).has_extended_api()


def test_many_threads_open_it_once(threads: Threads) -> None:
    opened: list[Store] = []

    def open_store() -> Store:
        opened.append(MemoryStore())
        return opened[-1]

    late = LazyPrefixStore("late", open_store)
    assert sorted(result(future) for future in [threads.start(late.add, "n", 1) for _ in range(16)]) == list(
        range(1, 17)
    )
    assert len(opened) == 1


def test_an_opening_that_failed_is_tried_again() -> None:
    attempts = iter([StoreError("not yet"), None])

    def open_store() -> Store:
        if (failure := next(attempts)) is not None:
            raise failure
        return MemoryStore()

    late = LazyPrefixStore("late", open_store)
    with pytest.raises(StoreError, match="not yet"):
        late.num_keys()
    assert late.num_keys() == 0
