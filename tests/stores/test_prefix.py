"""Prefixes keep rounds and runs apart."""

from __future__ import annotations

from rallypoint.stores import MemoryStore, PrefixStore


def test_prefixes_do_not_see_each_other() -> None:
    below = MemoryStore()
    one, ten = PrefixStore("round1", below), PrefixStore("round10", below)
    one.set("key", "one")
    ten.set("key", "ten")
    one.queue_push("q", "entry")
    assert (one.get("key"), ten.get("key")) == (b"one", b"ten")
    assert ten.queue_len("q") == 0
    assert not ten.check(["q"])
    assert one.delete_key("key")
    assert (one.list_keys(), ten.list_keys()) == ([], ["key"])


def test_keys_are_written_as_torch_writes_them() -> None:
    below = MemoryStore()
    PrefixStore("inner", PrefixStore("outer", below)).set("key", "v")
    assert below.list_keys() == ["outer/inner/key"]


def test_what_is_counted_and_timed_is_the_store_below() -> None:
    below = MemoryStore()
    below.set("elsewhere", "v")
    store = PrefixStore("p", below)
    assert store.num_keys() == 1
    assert store.underlying_store is below
    assert store.timeout == below.timeout
