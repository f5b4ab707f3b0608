"""The bytes of a store file: what is written is read back, and what was not written is not."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from rallypoint.stores.data import KeyValues, Operation, Verb, Waiter
from rallypoint.stores.file import record_format
from rallypoint.stores.file.record_format import (
    LOG_START,
    DamagedFileError,
    Head,
    StoreFileError,
    first_head,
    head_bytes,
    opened_head,
)

RUN = b"r" * 16
OPERATIONS = st.builds(
    Operation,
    st.sampled_from([verb for verb in Verb if verb is not Verb.ARRIVE]),
    st.sampled_from([b"", b"a", b"b"]) | st.binary(max_size=20),
    st.binary(max_size=40),
)
HEAD = first_head(RUN)


@given(st.lists(st.lists(OPERATIONS, min_size=1), max_size=5), st.integers(0, 2**32 - 1))
def test_records_are_read_as_they_were_written(batches: list[list[Operation]], seed: int) -> None:
    log = b"".join(record_format.record(batch, seed) for batch in batches)
    assert record_format.read_log(log, LOG_START, seed) == [operation for batch in batches for operation in batch]


@given(st.lists(OPERATIONS, min_size=1, max_size=3), st.data())
def test_a_record_with_any_other_bytes_is_damaged(operations: list[Operation], data: st.DataObject) -> None:
    log = bytearray(record_format.record(operations, 7) + record_format.record(operations, 7))
    log[data.draw(st.integers(0, len(log) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DamagedFileError, match=r"record at byte (256|\d+) is damaged"):
        record_format.read_log(bytes(log), LOG_START, 7)


def test_a_record_of_another_run_or_generation_is_none_of_this() -> None:
    record = record_format.record([Operation(Verb.PUT, b"k", b"v")], record_format.seed(HEAD))
    for other in (HEAD._replace(generation=1), first_head(b"s" * 16)):
        with pytest.raises(DamagedFileError):
            record_format.read_log(record, LOG_START, record_format.seed(other))


@given(st.lists(OPERATIONS, max_size=60))
def test_a_snapshot_is_the_whole_of_the_data(operations: list[Operation]) -> None:
    data, copy = KeyValues[Waiter](), KeyValues[Waiter]()
    for operation in operations:
        data.apply(operation)
    for operation in record_format.read_log(record_format.snapshot(data, 1), LOG_START, 1):
        copy.apply(operation)
    assert {key: data.get(key) for key in data.values} == {key: copy.get(key) for key in copy.values}
    assert data.queues == copy.queues


def test_a_large_snapshot_is_several_records() -> None:
    data = KeyValues[Waiter]()
    for number in range(5):
        data.put(b"%d" % number, bytes(1 << 20))
    log = record_format.snapshot(data, 1)
    assert record_format.read_log(log[: (1 << 20) + 18], LOG_START, 1) == [Operation(Verb.PUT, b"0", bytes(1 << 20))]
    assert len(record_format.read_log(log, LOG_START, 1)) == 5


def test_an_arrival_opens_the_barrier_for_who_waits_elsewhere() -> None:
    data, waiter = KeyValues[Waiter](), Waiter()
    assert not data.arrive(b"b", 2)
    data.stand_at(waiter, b"b")
    data.apply(Operation(Verb.ARRIVE, b"b", b"2"))
    assert data.take_woken() == [waiter]


def test_the_whole_copy_of_the_head_counts_and_the_newer_of_two() -> None:
    old, new = HEAD._replace(commits=4, end=300), HEAD._replace(commits=5, end=400)
    both = head_bytes(new)
    assert record_format.read_head(both) == new
    for torn in range(record_format.FIRST_COPY, record_format.SECOND_COPY):
        raw = both[:torn] + head_bytes(old)[torn:]
        assert record_format.read_head(raw) in (old, new)
        assert record_format.read_copy(raw, record_format.SECOND_COPY) == old
    for torn in range(record_format.SECOND_COPY, len(both)):
        raw = both[:torn] + head_bytes(old)[torn:]
        assert record_format.read_head(raw) == new
    assert record_format.read_head(bytes(LOG_START)) is None


def test_a_beginning_that_was_cut_off_is_a_new_file_and_all_else_is_not_touched() -> None:
    whole = head_bytes(HEAD)
    for size in range(record_format.SECOND_COPY):
        assert opened_head(whole[:size], size, in_use=False) is None
    with pytest.raises(DamagedFileError):
        opened_head(whole[:50], 50, in_use=True)
    with pytest.raises(DamagedFileError):
        opened_head(whole[:40] + bytes(216), 1000, in_use=False)
    with pytest.raises(StoreFileError, match="begins with b'something else'"):
        opened_head(b"something else", 14, in_use=False)


def compacted(head: Head, size: int) -> Head:
    return record_format.placed(record_format.next_generation(head), size)


def test_a_snapshot_goes_behind_the_log_and_then_in_front_where_it_overwrites_nothing_that_counts() -> None:
    first = HEAD._replace(end=LOG_START + 1000)
    second = compacted(first, 100)
    assert (second.start, second.resume, second.end, second.previous_end) == (1256, 1356, 1356, 1256)
    third = compacted(second._replace(end=5000), 1000)
    assert (third.start, third.resume, third.end, third.previous_end) == (256, 1256, 1256, 5000)
    assert third.kept_to == 5000
    assert compacted(second, 1001).start == second.end, "it does not fit in front"
    assert [head.generation for head in (first, second, third)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("start", "end", "offset", "kept"),
    [(256, 400, 400, True), (256, 401, 400, False), (900, 950, 400, True), (800, 950, 400, False)],
)
def test_the_last_records_of_the_generation_before_are_there_until_overwritten(
    start: int, end: int, offset: int, kept: bool
) -> None:
    head = HEAD._replace(start=start, end=end, previous_end=900)
    assert record_format.is_kept(head, offset) is kept


def test_a_log_is_long_when_it_has_outgrown_its_data_and_a_megabyte() -> None:
    assert not record_format.is_long(HEAD._replace(end=LOG_START + (1 << 20)))
    assert record_format.is_long(HEAD._replace(end=LOG_START + (1 << 20) + 1))
    large = HEAD._replace(resume=LOG_START + (1 << 22))
    assert not record_format.is_long(large._replace(end=large.resume + (1 << 23)))
    assert record_format.is_long(large._replace(end=large.resume + (1 << 23) + 1))
