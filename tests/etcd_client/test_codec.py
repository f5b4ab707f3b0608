"""Our codec and protobuf agree on every message; what they do not know is skipped, what is damaged is refused."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.etcd_client.codec import Field, Message, decode, encode
from rallypoint.etcd_client.errors import EtcdMessageError
from rallypoint.etcd_client.messages import KeyValue, LeaseRequest, PutRequest
from tests.etcd_client.protobuf_oracle import MESSAGES, fields_of, read_by_protobuf, written_by_protobuf

_SCALARS: dict[type, st.SearchStrategy[Any]] = {
    bytes: st.binary(max_size=200),
    str: st.text(max_size=20),
    bool: st.booleans(),
    int: st.integers(-(1 << 63), (1 << 63) - 1),
}


def _values(field: Field) -> st.SearchStrategy[Any]:
    one = _SCALARS[field.type] if field.type in _SCALARS else messages(field.type)
    return st.lists(one, max_size=3).map(tuple) if field.repeated else one


@st.composite
def messages(draw: st.DrawFn, kind: type[Message]) -> Message:
    """Any message of a kind."""
    return kind(**{field.name: draw(_values(field)) for field in fields_of(kind) if draw(st.booleans())})


ANY = st.sampled_from(MESSAGES).flatmap(messages)


@given(ANY)
def test_we_write_what_protobuf_writes(message: Message) -> None:
    assert encode(message) == written_by_protobuf(message)


@given(ANY)
def test_we_read_what_protobuf_writes(message: Message) -> None:
    assert decode(type(message), written_by_protobuf(message)) == message


@given(
    ANY, st.sampled_from([b"\xf2\x3f\x03abc", b"\xf8\x3f\xff\xff\x01\xf5\x3f\x01\x02\x03\x04", b"\xf1\x3f" + b"8" * 8])
)
def test_fields_that_are_unknown_are_skipped(message: Message, unknown: bytes) -> None:
    """Before and behind those that are known."""
    data = unknown + encode(message) + unknown
    assert decode(type(message), data) == message == read_by_protobuf(type(message), data)


@given(ANY, st.data())
def test_a_message_cut_short_is_refused_or_ends_where_a_field_does(message: Message, data: st.DataObject) -> None:
    whole = encode(message)
    part = whole[: data.draw(st.integers(0, len(whole)))]
    try:
        theirs = read_by_protobuf(type(message), part)
    except DecodeError:
        with pytest.raises(EtcdMessageError):
            decode(type(message), part)
    else:
        assert decode(type(message), part) == theirs


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"\x0a\x05abc", "PutRequest is cut short: field 1 at byte 2 should have 5 bytes, and 3 are left"),
        (b"\x18\xff\xff", "PutRequest is cut short: it ends in the middle of a number, at byte 1"),
        (b"\x18" + b"\xff" * 11, "PutRequest is damaged: the number at byte 1 is longer than 64 bits"),
        (b"\x00\x00", "PutRequest is damaged: there is no field number 0 of type 0"),
        (b"\x7b\x00", "PutRequest is damaged: there is no field number 15 of type 3"),
        (b"\x79\x00", "field 15 at byte 1 should have 8 bytes, and 1 are left"),
    ],
)
def test_a_refusal_says_what_is_wrong_and_where(data: bytes, sentence: str) -> None:
    with pytest.raises(EtcdMessageError) as refusal:
        decode(PutRequest, data)
    assert sentence in str(refusal.value)


@pytest.mark.parametrize("bits", range(1, 64))
def test_numbers_of_every_length_are_written_and_read_as_protobuf_does(bits: int) -> None:
    for number in {(1 << bits) - 1, -(1 << bits), min(1 << bits, (1 << 63) - 1), -1}:
        message = LeaseRequest(number)
        assert encode(message) == written_by_protobuf(message)
        assert decode(LeaseRequest, encode(message)) == message


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (PutRequest(key="text"), "key must be bytes, and is 'text'"),  # type: ignore[arg-type]
        (PutRequest(lease=1 << 63), "lease is 9223372036854775808, which is no int64"),
        (KeyValue(version=1.5), "version is 1.5, which is no int64"),  # type: ignore[arg-type]
    ],
)
def test_what_does_not_fit_is_not_written(message: Message, sentence: str) -> None:
    with pytest.raises(EtcdMessageError) as refusal:
        encode(message)
    assert str(refusal.value) == sentence
