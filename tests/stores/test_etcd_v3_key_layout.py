"""Names and values of the store on etcd v3: whatever they are, no two things lie at one key, and all are read as written."""

from __future__ import annotations

from contextlib import suppress

import hypothesis.strategies as st
import pytest
from hypothesis import given

from rallypoint.stores import StoreError
from rallypoint.stores.etcd_v3.key_layout import (
    KeyLayout,
    Queue,
    SplitValue,
    read_queue,
    read_value,
    written,
    written_queue,
)

# Letters that could be taken for something of ours, and any others.
NAMES = st.one_of(
    st.binary(max_size=6), st.text(alphabet="=>?~/k0", max_size=6).map(str.encode), st.just(b"/~keys/"), st.just(b"")
)
PREFIXES = st.lists(st.text(alphabet="ab0=>", min_size=1, max_size=2), min_size=1, max_size=3).map("/".join)
COUNTS = st.integers(0, 2**40)


def places(prefix: str, name: bytes, number: int) -> list[bytes]:
    names = KeyLayout(prefix)
    return [names.value(name), names.queue(name), names.entry(name, number), names.parts(names.value(name))]


@given(one=st.tuples(PREFIXES, NAMES, COUNTS), other=st.tuples(PREFIXES, NAMES, COUNTS))
def test_no_two_things_lie_at_one_key(one: tuple[str, bytes, int], other: tuple[str, bytes, int]) -> None:
    mine, theirs = places(*one), places(*other)
    assert len(set(mine)) == len(mine)
    for position, place in enumerate(mine):
        assert all(place != there for index, there in enumerate(theirs) if index != position)
    if one[:2] != other[:2]:
        assert not set(mine) & set(theirs)


@given(prefix=PREFIXES, other=PREFIXES, name=NAMES)
def test_what_a_store_lists_is_its_own(prefix: str, other: str, name: bytes) -> None:
    names, others = KeyLayout(prefix), KeyLayout(other)
    assert names.of_value(names.value(name)) == name
    assert names.of_value(names.queue(name)) is None
    if prefix != other:
        assert not any(place.startswith(names.keys) for place in places(other, name, 0))
        assert not others.receipt("token").startswith(names.keys)


@given(names=st.lists(NAMES, min_size=1), prefix=PREFIXES)
def test_one_range_holds_all_that_is_awaited(names: list[bytes], prefix: str) -> None:
    layout = KeyLayout(prefix)
    start, end = min(map(layout.value, names)), max(map(layout.behind, names))
    for name in names:
        assert start <= layout.value(name) < layout.queue(name) < end


@given(value=st.one_of(st.binary(), st.builds(SplitValue, st.binary(min_size=1), COUNTS, COUNTS)))
def test_a_value_is_read_as_it_was_written(value: bytes | SplitValue) -> None:
    assert read_value(written(value), b"key") == value


@given(first=COUNTS, more=st.integers(1, 2**40))
def test_a_queue_is_read_as_it_was_written(first: int, more: int) -> None:
    queue = Queue(first, first + more)
    assert read_queue(written_queue(queue), b"key") == queue


@given(raw=st.one_of(st.binary(), st.text(alphabet="+= 0123", max_size=8).map(str.encode)))
def test_strange_bytes_are_read_or_refused_in_words(raw: bytes) -> None:
    with suppress(StoreError):
        read_value(raw, b"place")
    with suppress(StoreError):
        read_queue(raw, b"place")


@pytest.mark.parametrize("raw", [b"", b"x", b"+", b"+1", b"+1 2", b"+1 2 ", b"+a 2 folder", b"+1 b folder"])
def test_what_is_no_value_is_refused(raw: bytes) -> None:
    with pytest.raises(StoreError, match="something else uses this store's prefix"):
        read_value(raw, b"place")


@pytest.mark.parametrize("raw", [b"", b"1", b"1 1", b"2 1", b"a 1", b"1 2 3", b"-1 2"])
def test_what_is_no_queue_is_refused(raw: bytes) -> None:
    with pytest.raises(StoreError, match="something else uses this store's prefix"):
        read_queue(raw, b"place")
