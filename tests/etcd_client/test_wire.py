"""Our codec and protobuf agree on every message; what they do not know is skipped, what is damaged is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from rallypoint.etcd_client import straight
from rallypoint.etcd_client.any_order import read_in_any_order
from rallypoint.etcd_client.errors import EtcdMessageError
from rallypoint.etcd_client.messages import (
    KeyValue,
    LeaseKeepAliveRequest,
    LeaseRevokeRequest,
    PutRequest,
    PutResponse,
    RangeResponse,
    Response,
    ResponseHeader,
    ResponseOp,
    WatchCreateRequest,
)
from rallypoint.etcd_client.tables import Table, table_of
from rallypoint.etcd_client.varints import varint
from rallypoint.etcd_client.wire import Field, Message, decode, encode, fields_of
from tests.etcd_client.oracle import MESSAGES, read_by_protobuf, written_by_protobuf

_SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "bytes": st.binary(max_size=200),
    "string": st.text(max_size=20),
    "bool": st.booleans(),
    "int64": st.integers(-(1 << 63), (1 << 63) - 1),
    "uint64": st.integers(0, (1 << 64) - 1),
    "int32": st.integers(-(1 << 31), (1 << 31) - 1),
}


def _values(field: Field) -> st.SearchStrategy[Any]:
    one = _SCALARS[field.kind] if field.message is None else messages(field.message)
    return st.lists(one, max_size=3).map(tuple) if field.repeated else one


@st.composite
def messages(draw: st.DrawFn, kind: type[Message]) -> Message:
    """Any message of a kind, with at most one field of each oneof."""
    found: dict[str, Any] = {}
    for field in fields_of(kind):
        if draw(st.booleans()) and not any(rival in found for rival in field.rivals):
            found[field.name] = draw(_values(field))
    return kind(**found)


ANY = st.sampled_from(MESSAGES).flatmap(messages)


@given(ANY)
def test_we_write_what_protobuf_writes(message: Message) -> None:
    assert encode(message) == written_by_protobuf(message)


@given(ANY)
def test_we_read_what_protobuf_writes(message: Message) -> None:
    assert decode(type(message), written_by_protobuf(message)) == message


@given(st.sampled_from(MESSAGES).flatmap(lambda kind: st.tuples(messages(kind), messages(kind))))
def test_fields_that_occur_twice_are_merged_as_protobuf_merges_them(both: tuple[Message, Message]) -> None:
    data = b"".join(map(encode, both))
    assert decode(type(both[0]), data) == read_by_protobuf(type(both[0]), data)


@given(st.sampled_from(MESSAGES), ANY)
def test_fields_that_are_unknown_or_of_another_type_are_skipped(kind: type[Message], message: Message) -> None:
    data = encode(message)
    try:
        theirs = read_by_protobuf(kind, data)
    except DecodeError:  # bytes that are no text, or no message, where one was expected
        with pytest.raises(EtcdMessageError):
            decode(kind, data)
    else:
        assert decode(kind, data) == theirs


@given(ANY, st.data())
def test_a_message_cut_short_is_refused_or_read_as_protobuf_reads_it(message: Message, data: st.DataObject) -> None:
    whole = encode(message)
    _judge_alike(type(message), whole[: data.draw(st.integers(0, len(whole)))])


@given(ANY, st.data())
def test_damaged_bytes_are_refused_or_read_as_protobuf_reads_them(message: Message, data: st.DataObject) -> None:
    bad = bytearray(encode(message) or b"\x00")
    for _ in range(data.draw(st.integers(1, 3))):
        bad[data.draw(st.integers(0, len(bad) - 1))] = data.draw(st.integers(0, 255))
    _judge_alike(type(message), bytes(bad))


@given(st.sampled_from(MESSAGES), st.binary(max_size=60))
def test_noise_is_refused_or_read_as_protobuf_reads_it(kind: type[Message], noise: bytes) -> None:
    _judge_alike(kind, noise)


@given(ANY, st.data())
def test_what_is_read_in_a_row_is_what_is_read_in_any_order(message: Message, data: st.DataObject) -> None:
    """To the last word of a refusal, however the bytes are damaged."""
    damaged = bytearray(encode(message))
    for _ in range(data.draw(st.integers(0, 2)) if damaged else 0):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    found = bytes(damaged[: data.draw(st.integers(0, len(damaged)))]) if data.draw(st.booleans()) else bytes(damaged)

    def in_any_order(kind: type[Message], part: bytes) -> Message:
        return read_in_any_order(table_of(kind), part)

    def outcome(read: Callable[[type[Message], bytes], Message]) -> Message | str:
        try:
            return read(type(message), found)
        except EtcdMessageError as refusal:
            return str(refusal)

    assert outcome(decode) == outcome(in_any_order)


@pytest.mark.parametrize("kind", [kind for kind in MESSAGES if issubclass(kind, Response)])
def test_whatever_etcd_writes_is_read_in_a_row(kind: type[Message], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(table: Table, data: bytes) -> Message:
        raise AssertionError(f"{table.name} is not read in a row")

    monkeypatch.setattr(straight, "readers", {})
    monkeypatch.setattr(straight, "read_in_any_order", refuse)
    read = straight.reader_of(kind)

    # Newer versions may have more to say: behind what is known, for their fields have higher numbers.
    more = [b"", b"\xf2\x3f\x03abc", b"\xf8\x3f\xff\xff\x01\xf5\x3f\x01\x02\x03\x04"]

    @given(messages(kind), st.sampled_from(more))
    @settings(max_examples=20)
    def reads(message: Message, unknown: bytes) -> None:
        assert read(encode(message) + unknown) == message

    reads()


def _judge_alike(kind: type[Message], data: bytes) -> None:
    """We may be stricter (groups, which etcd never sent); what we do accept must be what protobuf sees."""
    try:
        ours = decode(kind, data)
    except EtcdMessageError:
        return
    assert ours == read_by_protobuf(kind, data)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"\x0a\x05abc", "PutRequest is cut short: `key` should have 5 bytes, and 3 are left"),
        (b"\x18\xff\xff", "PutRequest is cut short: it ends in the middle of a number, at byte 1"),
        (b"\x0a", "PutRequest is cut short: it ends in the middle of a number, at byte 1"),
        (b"\x18" + b"\xff" * 11, "PutRequest is damaged: the number at byte 1 is longer than 64 bits"),
        (b"\x00\x00", "PutRequest is damaged: there is no field number 0 of type 0"),
        (b"\x7b\x00", "PutRequest is damaged: there is no field number 15 of type 3"),
        (b"\x7a\xff\xff\xff\xff\x0f", "field 15 at byte 6 should have 4294967295 bytes, and 0 are left"),
        (b"\x79\x00", "field 15 at byte 1 should have 8 bytes, and 1 are left"),
    ],
)
def test_a_refusal_says_what_is_wrong_and_where(data: bytes, sentence: str) -> None:
    with pytest.raises(EtcdMessageError) as refusal:
        decode(PutRequest, data)
    assert sentence in str(refusal.value)


def test_a_field_repeated_a_hundred_thousand_times_takes_no_longer_than_its_bytes() -> None:
    part = encode(RangeResponse(ResponseHeader(revision=7)))
    assert decode(RangeResponse, part * 100_000) == RangeResponse(ResponseHeader(revision=7))


def test_a_message_with_a_hundred_thousand_parts_is_written_in_the_time_of_its_bytes() -> None:
    """One by one they would take ten thousand times as long."""
    part = KeyValue(b"k" * 200)
    assert encode(RangeResponse(kvs=(part,) * 100_000)) == encode(RangeResponse(kvs=(part,))) * 100_000


def test_a_message_in_a_hundred_thousand_parts_takes_no_longer_than_its_bytes() -> None:
    part = encode(ResponseOp(response_range=RangeResponse(kvs=(KeyValue(b"k"),))))
    assert decode(ResponseOp, part * 100_000) == ResponseOp(
        response_range=RangeResponse(kvs=(KeyValue(b"k"),) * 100_000)
    )


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        # One number in two halves: the bytes of both parts together would be a message.
        (RangeResponse, (b"\x0a\x02\x18\xff", b"\x0a\x01\x01")),
        (RangeResponse, (b"\x0a\x02\x18\x01", b"\x0a\x02\x18\xff", b"\x0a\x01\x01")),
        # What is replaced by another field of its oneof must be a message all the same.
        (ResponseOp, (b"\x0a\x01\xff", encode(ResponseOp(response_put=PutResponse())))),
    ],
)
def test_each_part_of_a_message_must_be_whole(kind: type[Message], parts: tuple[bytes, ...]) -> None:
    with pytest.raises(DecodeError):
        read_by_protobuf(kind, b"".join(parts))
    with pytest.raises(EtcdMessageError):
        decode(kind, b"".join(parts))


def test_what_is_replaced_in_a_oneof_and_comes_again_starts_anew() -> None:
    first = encode(ResponseOp(response_range=RangeResponse(count=1)))
    other = encode(ResponseOp(response_put=PutResponse()))
    again = encode(ResponseOp(response_range=RangeResponse(more=True)))
    assert decode(ResponseOp, first + again + other + again) == ResponseOp(response_range=RangeResponse(more=True))
    assert decode(ResponseOp, other + first + again) == ResponseOp(response_range=RangeResponse(more=True, count=1))


@pytest.mark.parametrize("bits", range(1, 64))
def test_numbers_of_every_length_are_written_and_read_as_protobuf_does(bits: int) -> None:
    for number in {(1 << bits) - 1, -(1 << bits), min(1 << bits, (1 << 63) - 1), -1}:
        message = LeaseRevokeRequest(number)
        assert encode(message) == written_by_protobuf(message)
        assert decode(LeaseRevokeRequest, encode(message)) == message


@pytest.mark.parametrize("size", [0, 1, 127, 128, 1023, 1024, (1 << 14) - 1, 1 << 14, (1 << 21) - 1, 1 << 21])
def test_values_of_every_size_are_written_and_read_as_protobuf_does(size: int) -> None:
    message = PutRequest(b"k", b"v" * size)
    assert encode(message) == written_by_protobuf(message)
    assert decode(PutRequest, encode(message)) == message


@pytest.mark.parametrize("value", [bytearray(b"v"), memoryview(b"v")])
def test_anything_that_is_bytes_is_written(value: Any) -> None:
    assert encode(PutRequest(b"k", value)) == encode(PutRequest(b"k", b"v"))


def test_messages_are_values() -> None:
    message = KeyValue(b"k", version=1)
    assert message == KeyValue(b"k", version=1)
    assert message != KeyValue(b"k")
    assert len({message, KeyValue(b"k", version=1)}) == 1
    others: tuple[Message, Message] = LeaseRevokeRequest(1), LeaseKeepAliveRequest(1)
    assert others[0] != others[1]
    with pytest.raises(AttributeError):
        message.key = b"other"  # type: ignore[misc]


def test_repeated_numbers_are_read_packed_and_unpacked() -> None:
    packed = encode(WatchCreateRequest(filters=(0, 1)))
    assert packed == b"\x2a\x02\x00\x01"
    assert decode(WatchCreateRequest, b"\x28\x00\x28\x01") == decode(WatchCreateRequest, packed)


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (PutRequest(key="text"), "key must be bytes, and is 'text'"),  # type: ignore[arg-type]
        (PutRequest(lease=1 << 63), "lease is 9223372036854775808, which is no int64"),
        (ResponseHeader(member_id=-1), "member_id is -1, which is no uint64"),
        (KeyValue(version=1.5), "version is 1.5, which is no int64"),  # type: ignore[arg-type]
    ],
)
def test_what_does_not_fit_is_not_written(message: Message, sentence: str) -> None:
    with pytest.raises(EtcdMessageError) as refusal:
        encode(message)
    assert str(refusal.value) == sentence


def test_a_header_that_comes_again_is_remembered_and_others_are_read() -> None:
    answers = [encode(PutResponse(ResponseHeader(1 << 60, 2, revision))) for revision in range(1, 1000)]
    headers = [decode(PutResponse, answer).header for answer in answers]
    assert [header.revision for header in headers if header is not None] == list(range(1, 1000))
    assert decode(PutResponse, answers[-1]).header is headers[-1], "it has not changed, and nobody can change it"
    assert decode(PutResponse, answers[0]).header == headers[0]


def test_a_header_is_not_remembered_whatever_its_size() -> None:
    unknown = b"\xf2\x3f" + varint(1000) + b"x" * 1000
    header = encode(ResponseHeader(revision=7)) + unknown
    answer = b"\x0a" + varint(len(header)) + header
    first, second = (decode(PutResponse, answer).header for _ in range(2))
    assert first == second == ResponseHeader(revision=7)
    assert first is not second
