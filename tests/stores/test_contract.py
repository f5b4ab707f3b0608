"""What every store promises, whatever it is made of."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from rallypoint.stores import QueueEmptyError, Store, StoreError, StoreTimeoutError
from tests.support.store_kinds import BRIEFLY, SOON, Handles, needs

LARGEST = 8 * 1024 * 1024
VALUES = [b"", b"plain", bytes(range(256)), "text: ü, 東京".encode(), b"x" * 1_000_000]
KEYS = ["key", "", "a/b/c", "/", "with space", "ü東京", "nul\0inside", "k" * 2048]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{len(value)} bytes")
def test_a_value_comes_back_as_it_went_in(store: Store, value: bytes) -> None:
    store.set("key", value)
    assert store.get("key") == value


@needs("8 MiB")
def test_a_value_of_8_mib_comes_back_as_it_went_in(store: Store) -> None:
    store.set("key", b"x" * LARGEST)
    assert store.get("key") == b"x" * LARGEST


def test_text_is_taken_as_utf8(store: Store) -> None:
    store.set("key", "grün")
    assert store.get("key") == "grün".encode()


@pytest.mark.parametrize("key", KEYS, ids=range(len(KEYS)))
def test_any_text_is_a_key(store: Store, key: str) -> None:
    store.set(key, "v")
    assert store.get(key) == b"v"
    assert store.check([key])
    assert key in store.list_keys()
    assert store.delete_key(key)
    assert not store.check([key])
    assert key not in store.list_keys()


def test_keys_of_any_bytes_are_kept_apart(store: Store) -> None:
    store.multi_set(["\udcff\udc80", "\udcff"], ["two", "one"])
    assert store.multi_get(["\udcff", "\udcff\udc80"]) == [b"one", b"two"]
    assert store.delete_key("\udcff")
    assert not store.check(["\udcff"])


@needs("keys of any bytes")
def test_keys_of_any_bytes_are_listed(store: Store) -> None:
    store.set("\udcff\udc80", "v")
    assert store.list_keys() == ["\udcff\udc80"]


@needs("limits")
def test_a_key_may_have_8192_bytes_with_its_slash_and_not_one_more(handles: Handles) -> None:
    store, other = handles.open(), handles.open()
    store.set("k" * 8191, "v")
    assert store.get("k" * 8191) == b"v"
    with pytest.raises(StoreError):
        exceed(store, lambda: store.set("k" * 8192, "v"))
    assert not other.check(["k" * 8190])
    assert other.num_keys() == 1


@needs("limits")
def test_a_value_may_have_8_mib_and_not_a_byte_more(handles: Handles) -> None:
    store, other = handles.open(), handles.open()
    store.set("k", b"x" * LARGEST)
    assert len(store.get("k")) == LARGEST
    with pytest.raises(StoreError):
        exceed(store, lambda: store.set("k", b"y" * (LARGEST + 1)))
    assert other.get("k")[:1] == b"x"


def exceed(store: Store, ask: Callable[[], None]) -> None:
    """A request that has no answer may fail only with the next one: torch's client does not look before it sends."""
    ask()
    store.num_keys()


@needs("count")
def test_a_new_store_is_empty(store: Store) -> None:
    assert (store.num_keys(), store.list_keys()) == (0, [])


def test_the_last_value_wins(store: Store) -> None:
    before = store.num_keys()
    store.set("key", "one")
    store.set("key", "two")
    assert store.get("key") == b"two"
    assert store.num_keys() == before + 1
    store.multi_set(["key", "key"], ["three", "four"])
    assert store.get("key") == b"four"


def test_handles_share_their_keys(handles: Handles) -> None:
    first, second = handles.open(), handles.open()
    first.set("key", "v")
    assert second.get("key") == b"v"
    assert second.add("n", 2) == 2
    assert first.add("n", 3) == 5


@needs("cloned timeout")
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
    assert store.add("zero", 0) == 0
    assert store.get("zero") == b"0"


@pytest.mark.parametrize("text", ["12", "+12", "0012", " 12", "\t\n\v\f\r12", "12 ", "12\n", "12.5", "12abc", "12\0"])
def test_add_reads_a_number_up_to_where_it_ends(store: Store, text: str) -> None:
    store.set("n", text)
    assert store.add("n", -20) == -8
    assert store.get("n") == b"-8"


@needs("words")
@pytest.mark.parametrize("text", [b"", b"text", b"-", b"+-1", b"\xa012", b"9" * 30, b"x" * 1000])
def test_add_to_what_is_no_number_is_a_clear_error(handles: Handles, text: bytes) -> None:
    store, other = handles.open(), handles.open()
    store.set("n", text)
    with pytest.raises(StoreError, match=r"add to .*n'.* number"):
        store.add("n", 1)
    assert other.get("n") == text


@pytest.mark.parametrize("text", [b"text", b"-", b"9" * 30])
def test_add_to_what_is_no_number_changes_nothing(handles: Handles, text: bytes) -> None:
    store, other = handles.open(), handles.open()
    store.set("n", text)
    with pytest.raises(StoreError):
        store.add("n", 1)
    assert other.get("n") == text


def test_add_goes_to_the_ends_of_64_bits(store: Store) -> None:
    assert store.add("n", 2**63 - 1) == 2**63 - 1
    assert store.get("n") == str(2**63 - 1).encode()
    assert store.add("m", -(2**63)) == -(2**63)
    assert store.add("m", 2**63 - 1) == -1


@needs("overflow")
def test_add_does_not_overflow(handles: Handles) -> None:
    store, other = handles.open(), handles.open()
    store.set("n", str(2**63 - 1))
    with pytest.raises(StoreError):
        store.add("n", 1)
    assert other.add("n", -1) == 2**63 - 2


@needs("checked arguments")
def test_add_takes_whole_numbers_of_64_bits(store: Store) -> None:
    with pytest.raises(ValueError, match="64 bits"):
        store.add("n", 2**63)
    with pytest.raises(TypeError, match="whole number"):
        store.add("n", 1.5)  # type: ignore[arg-type]
    assert not store.check(["n"])


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
    assert store.compare_set("key", "other", "x") == b""
    assert store.compare_set("key", "", "x") == b"x"
    assert store.compare_set("key", "x", "") == b""
    assert store.check(["key"])


def test_compare_set_compares_all_bytes(store: Store) -> None:
    store.set("key", b"\0\xff\0")
    assert store.compare_set("key", b"\0\xff", b"no") == b"\0\xff\0"
    assert store.compare_set("key", b"\0\xff\0", b"\xfe\0") == b"\xfe\0"


def test_append(store: Store) -> None:
    store.append("log", "a")
    store.append("log", b"\0b")
    store.append("log", "")
    store.append("log", "c")
    assert store.get("log") == b"a\0bc"
    assert store.compare_set("log", b"a\0bc", "1") == b"1"
    store.append("log", "2")
    assert store.add("log", 1) == 13
    store.append("empty", "")
    assert store.check(["empty"])


@needs("long appends")
def test_appending_goes_beyond_the_largest_value(store: Store) -> None:
    store.append("log", b"a" * LARGEST)
    store.append("log", b"b" * LARGEST)
    value = store.get("log")
    assert (len(value), value[:1], value[-1:]) == (2 * LARGEST, b"a", b"b")


@needs("delete")
def test_delete_says_whether_there_was_something(store: Store) -> None:
    assert store.delete_key("key") is False
    store.set("key", "v")
    assert store.delete_key("key") is True
    assert store.delete_key("key") is False
    assert store.num_keys() == 0
    store.set("key", "")
    assert store.delete_key("key") is True


@needs("delete", "queues")
def test_delete_does_not_take_a_queue_for_a_value(store: Store) -> None:
    store.queue_push("q", "entry")
    assert store.delete_key("q") is False


def test_many_at_once(store: Store) -> None:
    keys = [f"key{i}" for i in range(1000)]
    values = [f"value{i}".encode() for i in range(1000)]
    store.multi_set(keys, values)
    assert store.multi_get(list(reversed(keys))) == list(reversed(values))
    assert set(store.list_keys()) >= set(keys)
    assert store.num_keys() >= 1000
    assert store.check(keys)
    store.wait(keys)


def test_none_at_once(store: Store) -> None:
    store.multi_set([], [])
    assert store.multi_get([]) == []
    assert store.check([])
    store.wait([])


@needs("checked arguments")
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


@needs("words")
def test_waiting_in_vain_says_for_what(store: Store) -> None:
    store.set("here", "v")
    with pytest.raises(StoreTimeoutError, match=r"wait for .*here'.*0\.02 s; still missing: '[^']*gone'$"):
        store.wait(["here", "gone"], BRIEFLY)


WAITING: dict[str, Callable[[Store], object]] = {
    "get": lambda store: store.get("gone"),
    "multi_get": lambda store: store.multi_get(["here", "gone"]),
    "wait": lambda store: store.wait(["here", "gone"]),
}


def wait_in_vain(store: Store, ask: Callable[[Store], object]) -> None:
    store.set("here", "v")
    for _ in range(2):
        assert store.timeout == SOON
        store.set_timeout(BRIEFLY)
        assert store.timeout == BRIEFLY
        with pytest.raises(TimeoutError):
            ask(store)
        store.set_timeout(SOON)
        assert store.get("here") == b"v"  # the connection goes on
    store.set("gone", "came")
    ask(store)


@needs("brief timeouts")
@pytest.mark.parametrize("ask", WAITING)
def test_waiting_in_vain_ends_with_the_timeout(store: Store, ask: str) -> None:
    wait_in_vain(store, WAITING[ask])


@needs("queues")
def test_popping_in_vain_ends_with_the_timeout(store: Store) -> None:
    def pop_what_comes(store: Store) -> None:
        if store.check(["gone"]):
            store.queue_push("gone", "entry")
        store.queue_pop("gone")

    wait_in_vain(store, pop_what_comes)


def test_a_wait_has_a_timeout_of_its_own(store: Store) -> None:
    with pytest.raises(StoreTimeoutError):
        store.wait(["gone"], BRIEFLY)
    assert store.timeout == SOON
    store.set_timeout(BRIEFLY)
    store.set("gone", "v")
    store.wait(["gone"], SOON)
    store.wait(["gone", "gone"], SOON)


@needs("no time at all")
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


@needs("queues")
def test_queues_give_in_order(store: Store) -> None:
    for entry in (b"one", b"", b"three"):
        store.queue_push("q", entry)
    assert store.queue_len("q") == 3
    assert [store.queue_pop("q") for _ in range(3)] == [b"one", b"", b"three"]
    assert store.queue_len("q") == 0


@needs("queues")
def test_an_empty_queue(store: Store) -> None:
    assert store.queue_len("q") == 0
    for _ in range(2):
        with pytest.raises(QueueEmptyError, match=r"is empty"):
            store.queue_pop("q", block=False)
    assert not store.check(["q"])
    store.queue_push("q", "entry")
    assert store.queue_pop("q", block=False) == b"entry"


@needs("words")
def test_an_empty_queue_is_named(store: Store) -> None:
    with pytest.raises(QueueEmptyError, match=r"q'.*is empty"):
        store.queue_pop("q", block=False)


@needs("queues")
def test_a_queue_is_there_while_it_holds_something_but_is_no_value(store: Store) -> None:
    assert not store.check(["q"])
    store.queue_push("q", "entry")
    assert store.check(["q"])
    store.wait(["q"])
    assert (store.num_keys(), store.list_keys()) == (0, [])
    store.delete_key("q")
    assert store.queue_pop("q") == b"entry"
    assert not store.check(["q"])


@needs("queues", "get of a queue")
def test_the_value_of_a_queue_is_empty(store: Store) -> None:
    store.queue_push("q", "entry")
    assert store.get("q") == b""
    assert store.multi_get(["q"]) == [b""]
    assert store.compare_set("q", "", "value") == b"value"
    assert store.queue_pop("q") == b"entry"
    assert store.get("q") == b"value"


@needs("queues")
def test_a_queue_and_a_value_under_one_key_do_not_touch(store: Store) -> None:
    store.set("k", "value")
    store.queue_push("k", "entry")
    assert store.num_keys() == 1
    assert store.delete_key("k")
    assert store.queue_len("k") == 1
    store.set("k", "value")
    assert store.queue_pop("k") == b"entry"
    assert store.get("k") == b"value"


@needs("queues", "pop waits on")
def test_a_pop_does_not_take_a_value_for_an_entry(store: Store) -> None:
    store.set("k", "value")
    store.set_timeout(BRIEFLY)
    with pytest.raises(StoreTimeoutError, match="queue"):
        store.queue_pop("k")


def test_a_barrier_of_one_is_open(store: Store) -> None:
    store.barrier("b", 1)
    store.barrier("b", 1)
    store.barrier("b", 2)
    store.barrier("c", 1)


@needs("barrier of none")
def test_a_barrier_of_none_is_open(store: Store) -> None:
    store.barrier("b", 0)
    store.barrier("b", -1)


@needs("barrier key")
def test_a_barrier_counts_under_its_key(store: Store) -> None:
    store.barrier("b", 1)
    assert store.get("b") == b"1"
    assert (store.num_keys(), store.list_keys()) == (1, ["b"])


@needs("brief timeouts")
def test_a_barrier_in_vain_counts_all_the_same(store: Store) -> None:
    for _ in range(2):
        with pytest.raises(StoreTimeoutError, match=r"barrier|(?i:timeout)"):
            store.barrier("b", 3, BRIEFLY)
    store.barrier("b", 3, SOON)


@needs("barrier timeout", "brief timeouts")
def test_a_barrier_has_the_timeout_of_the_store(store: Store) -> None:
    store.set_timeout(BRIEFLY)
    with pytest.raises(StoreTimeoutError):
        store.barrier("b", 2)


@needs("extended")
def test_everything_is_offered(store: Store) -> None:
    assert store.has_extended_api()
