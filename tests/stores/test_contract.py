"""What every store promises, whatever it is made of."""

from __future__ import annotations

from datetime import timedelta

import pytest

from rallypoint.stores import QueueEmptyError, Store, StoreError, StoreTimeoutError
from tests.stores.conftest import BRIEFLY, SOON, Handles

VALUES = [b"", b"plain", bytes(range(256)), "text: ü, 東京".encode(), b"x" * (8 * 1024 * 1024)]
KEYS = ["key", "", "a/b/c", "with space", "ü東京", "\udcff\udc80", "nul\0inside", "k" * 4096]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{len(value)} bytes")
def test_a_value_comes_back_as_it_went_in(store: Store, value: bytes) -> None:
    store.set("key", value)
    assert store.get("key") == value


def test_text_is_taken_as_utf8(store: Store) -> None:
    store.set("key", "grün")
    assert store.get("key") == "grün".encode()


@pytest.mark.parametrize("key", KEYS, ids=range(len(KEYS)))
def test_any_text_is_a_key(store: Store, key: str) -> None:
    store.set(key, "v")
    assert store.get(key) == b"v"
    assert store.check([key])
    assert store.list_keys() == [key]
    assert store.delete_key(key)
    assert not store.check([key])


def test_the_last_value_wins(store: Store) -> None:
    store.set("key", "one")
    store.set("key", "two")
    assert store.get("key") == b"two"
    assert store.num_keys() == 1


def test_handles_share_their_keys(handles: Handles) -> None:
    first, second = handles.open(), handles.open()
    first.set("key", "v")
    assert second.get("key") == b"v"
    assert second.add("n", 2) == 2
    assert first.add("n", 3) == 5


def test_a_clone_shares_keys_but_not_the_timeout(handles: Handles) -> None:
    store = handles.open()
    clone = store.clone()
    clone.set_timeout(timedelta(seconds=7))
    assert (store.timeout, clone.timeout) == (SOON, timedelta(seconds=7))
    clone.set("key", "v")
    assert store.get("key") == b"v"


def test_add_keeps_decimal_text(store: Store) -> None:
    assert store.add("n", 5) == 5
    assert store.add("n", -12) == -7
    assert store.get("n") == b"-7"
    store.set("n", "40")
    assert store.add("n", 2) == 42
    assert store.add("n", 0) == 42


@pytest.mark.parametrize("text", [b"", b"text", b"1.5", b"12 ", b"1_0", b"0x1", b"9" * 30])
def test_add_to_what_is_no_number_is_a_clear_error(handles: Handles, text: bytes) -> None:
    store, other = handles.open(), handles.open()
    store.set("n", text)
    with pytest.raises(StoreError, match=r"add to .*n'.* number"):
        store.add("n", 1)
    assert other.get("n") == text


def test_add_does_not_overflow(handles: Handles) -> None:
    store, other = handles.open(), handles.open()
    store.set("n", str(2**63 - 1))
    with pytest.raises(StoreError):
        store.add("n", 1)
    assert other.add("n", -1) == 2**63 - 2
    with pytest.raises(ValueError, match="64 bits"):
        other.add("n", 2**63)
    with pytest.raises(TypeError, match="whole number"):
        other.add("n", 1.5)  # type: ignore[arg-type]


def test_compare_set_on_an_absent_key(store: Store) -> None:
    assert store.compare_set("key", "expected", "desired") == b"expected"
    assert not store.check(["key"])
    assert store.compare_set("key", "", "first") == b"first"
    assert store.get("key") == b"first"


def test_compare_set_on_a_value(store: Store) -> None:
    store.set("key", "a")
    assert store.compare_set("key", "wrong", "b") == b"a"
    assert store.compare_set("key", "", "b") == b"a"
    assert store.compare_set("key", "a", "b") == b"b"
    assert store.get("key") == b"b"


def test_compare_set_takes_an_empty_value_for_an_absent_one(store: Store) -> None:
    store.set("key", "")
    assert store.compare_set("key", "", "x") == b"x"


def test_append(store: Store) -> None:
    store.append("log", "a")
    store.append("log", b"\0b")
    store.append("log", "")
    store.append("log", "c")
    assert store.get("log") == b"a\0bc"
    assert store.compare_set("log", b"a\0bc", "1") == b"1"
    store.append("log", "2")
    assert store.add("log", 1) == 13


def test_delete(store: Store) -> None:
    assert not store.delete_key("key")
    store.set("key", "v")
    assert store.delete_key("key")
    assert not store.delete_key("key")
    assert store.num_keys() == 0


def test_many_at_once(store: Store) -> None:
    keys = [f"key{i}" for i in range(1000)]
    values = [f"value{i}".encode() for i in range(1000)]
    store.multi_set(keys, values)
    assert store.multi_get(list(reversed(keys))) == list(reversed(values))
    assert sorted(store.list_keys()) == sorted(keys)
    assert store.num_keys() == 1000
    assert store.check(keys)
    store.wait(keys)


def test_none_at_once(store: Store) -> None:
    store.multi_set([], [])
    assert store.multi_get([]) == []
    assert store.check([])
    store.wait([])


def test_what_does_not_fit_together_is_refused(store: Store) -> None:
    with pytest.raises(ValueError, match="2 keys do not go with 1 values"):
        store.multi_set(["a", "b"], ["1"])
    for ask in (store.check, store.wait, store.multi_get):
        with pytest.raises(TypeError, match="list of keys"):
            ask("key")
    with pytest.raises(TypeError, match="bytes or text"):
        store.set("key", 5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="UTF-8"):
        store.set("\ud800", "v")
    with pytest.raises(TypeError, match="timedelta"):
        store.set_timeout(5)  # type: ignore[arg-type]
    assert store.num_keys() == 0


def test_check_wants_all_keys(store: Store) -> None:
    store.set("a", "1")
    assert store.check(["a"])
    assert not store.check(["a", "b"])


def test_waiting_in_vain_says_for_what(store: Store) -> None:
    store.set("here", "v")
    with pytest.raises(StoreTimeoutError, match=r"wait for .*here'.*0\.02 s; still missing: '[^']*gone'$"):
        store.wait(["here", "gone"], BRIEFLY)
    store.set_timeout(BRIEFLY)
    for ask in (
        lambda: store.get("gone"),
        lambda: store.multi_get(["here", "gone"]),
        lambda: store.queue_pop("gone"),
        lambda: store.wait(["gone"]),
    ):
        with pytest.raises(TimeoutError, match="gone"):
            ask()
    assert store.get("here") == b"v"


def test_no_time_at_all_is_a_timeout_too(store: Store) -> None:
    for timeout in (timedelta(0), timedelta(seconds=-5)):
        with pytest.raises(StoreTimeoutError):
            store.wait(["gone"], timeout)
    store.set("key", "v")
    store.wait(["key"], timedelta(0))


def test_a_wait_may_be_told_to_last_for_ever(store: Store) -> None:
    store.set("key", "v")
    store.wait(["key"], timedelta.max)
    store.set_timeout(timedelta.max)
    assert store.get("key") == b"v"


def test_queues_give_in_order(store: Store) -> None:
    for entry in (b"one", b"", b"three"):
        store.queue_push("q", entry)
    assert store.queue_len("q") == 3
    assert [store.queue_pop("q") for _ in range(3)] == [b"one", b"", b"three"]
    assert store.queue_len("q") == 0


def test_an_empty_queue(store: Store) -> None:
    assert store.queue_len("q") == 0
    with pytest.raises(QueueEmptyError, match=r"q'.*is empty"):
        store.queue_pop("q", block=False)


def test_a_queue_is_there_while_it_holds_something_but_is_no_value(store: Store) -> None:
    assert not store.check(["q"])
    store.queue_push("q", "entry")
    assert store.check(["q"])
    store.wait(["q"])
    assert store.get("q") == b""
    assert (store.num_keys(), store.list_keys()) == (0, [])
    assert not store.delete_key("q")
    assert store.queue_pop("q") == b"entry"
    assert not store.check(["q"])


def test_a_queue_and_a_value_under_one_key_do_not_touch(store: Store) -> None:
    store.set("k", "value")
    store.queue_push("k", "entry")
    assert store.queue_pop("k") == b"entry"
    assert store.get("k") == b"value"
    store.set_timeout(BRIEFLY)
    with pytest.raises(StoreTimeoutError, match="queue"):
        store.queue_pop("k")


def test_a_barrier_of_one_is_open(store: Store) -> None:
    store.barrier("b", 1)
    assert store.get("b") == b"1"


def test_a_barrier_in_vain_counts_all_the_same(store: Store) -> None:
    with pytest.raises(StoreTimeoutError, match=r"barrier"):
        store.barrier("b", 2, BRIEFLY)
    assert store.get("b") == b"1"
    store.barrier("b", 2, BRIEFLY)


def test_everything_is_offered(store: Store) -> None:
    assert store.has_extended_api()
