"""The wire format, byte for byte, and what is made of bytes that do not belong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import given

from rallypoint.stores.tcp import replies, wire
from rallypoint.stores.tcp.replies import Reader, T
from rallypoint.stores.tcp.wire import ProtocolError, Query, Request, RequestReader, StoreLimits

HELLO = bytes.fromhex("00 cef7853c")
K, V = "0300000000000000 2f6b31", "0200000000000000 7631"  # "/k1" and "v1"
TEXTS = {"k": b"/k1", "v": b"v1"}

# As torch's client sends them.
GOLDEN = {
    Query.SET: f"01 {K} {V}",
    Query.COMPARE_SET: f"02 {K} {V} {V}",
    Query.GET: f"03 {K}",
    Query.ADD: f"04 {K} feffffffffffffff",
    Query.CHECK: f"05 0200000000000000 {K} {K}",
    Query.WAIT: f"06 0200000000000000 {K} {K}",
    Query.COUNT_KEYS: "07",
    Query.DELETE: f"08 {K}",
    Query.APPEND: f"09 {K} {V}",
    Query.MULTI_GET: f"0a 0200000000000000 {K} {K}",
    Query.MULTI_SET: f"0b 0200000000000000 {K} {V} {K} {V}",
    Query.CANCEL_WAIT: "0c",
    Query.PING: "0d feffffff",
    Query.QUEUE_PUSH: f"0e {K} {V}",
    Query.QUEUE_POP: f"0f {K}",
    Query.QUEUE_LEN: f"10 {K}",
    Query.LIST_KEYS: "11",
    Query.BARRIER: f"12 {K} feffffffffffffff",
}


def example(query: Query) -> Request:
    texts = [TEXTS[field] for field in query.fields] * (2 if query.counted else 1)
    number = {wire.NUMBER: -2, wire.NONCE: 0xFFFFFFFE, None: 0}[query.number]
    return query, texts, number


def read_all(data: bytes, cuts: Sequence[int] = (), limits: StoreLimits | None = None) -> list[Request]:
    """What is read of bytes that come in pieces."""
    reader = RequestReader(limits or StoreLimits())
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    requests: list[Request] = []
    for start, end in pairwise(edges):
        requests += reader.read(data[start:end])
    return requests


def answer(reader: Reader[T], data: bytes) -> T:
    left = data

    def take(size: int) -> bytes:
        nonlocal left
        assert size <= len(left), "it wants more than there is"
        piece, left = left[:size], left[size:]
        return piece

    result = reader(take)
    assert left == b"", "it left something"
    return result


def test_there_are_nineteen_queries() -> None:
    assert [query.value for query in Query] == list(range(19))
    assert set(GOLDEN) == set(Query) - {Query.VALIDATE}


def test_a_client_introduces_itself() -> None:
    assert wire.request(Query.VALIDATE, number=wire.MAGIC) == HELLO
    assert read_all(HELLO) == [(Query.VALIDATE, [], wire.MAGIC)]


@pytest.mark.parametrize("query", GOLDEN, ids=lambda query: query.name)
def test_requests_are_written_and_read_byte_for_byte(query: Query) -> None:
    golden = bytes.fromhex(GOLDEN[query])
    request = example(query)
    assert wire.request(*request) == golden
    assert read_all(HELLO + golden + golden)[1:] == [request, request]


@given(queries=st.lists(st.sampled_from(list(GOLDEN)), max_size=8), cuts=st.lists(st.integers(0, 10_000), max_size=20))
def test_requests_may_come_in_any_pieces(queries: list[Query], cuts: list[int]) -> None:
    requests = [example(query) for query in queries]
    data = HELLO + b"".join(wire.request(*request) for request in requests)
    assert read_all(data, cuts)[1:] == requests


SMALL = StoreLimits(key_bytes=10, value_bytes=20, keys=3, request_bytes=40)


def read_until_refused(pieces: Iterable[bytes]) -> tuple[list[Request], str]:
    reader = RequestReader(SMALL)
    requests: list[Request] = []
    try:
        for piece in pieces:
            for request in reader.read(piece):
                requests.append(request)  # noqa: PERF402 - those before a refusal count
    except ProtocolError as exc:
        return requests, str(exc)
    return requests, ""


@given(data=st.binary(max_size=200), introduced=st.booleans())
def test_garbage_is_read_or_refused_however_it_is_cut(data: bytes, introduced: bool) -> None:
    hello = [HELLO] * introduced
    assert read_until_refused([*hello, data]) == read_until_refused([*hello, *(bytes((byte,)) for byte in data)])


@given(st.lists(st.sampled_from([b"\x01", b"\x06", b"\x0a", b"k", *(wire.LENGTH.pack(n) for n in range(12))])))
def test_what_is_nearly_a_request_is_read_or_refused_however_it_is_cut(parts: list[bytes]) -> None:
    data = b"".join(parts)
    assert read_until_refused([HELLO, data]) == read_until_refused([HELLO, *(bytes((byte,)) for byte in data)])


REFUSED = {
    "unknown query 19": b"\x13",
    "unknown query 255": b"\xff",
    "introduced itself twice": HELLO,
    "key of 11 bytes; the limit is 10": b"\x03" + wire.text(b"k" * 11),
    "value of 21 bytes; the limit is 20": b"\x01" + wire.text(b"k") + wire.LENGTH.pack(21),
    f"key of {2**64 - 1} bytes": b"\x08" + b"\xff" * 8,
    "names 4 keys; the limit is 3": b"\x06" + wire.LENGTH.pack(4),
    f"names {2**63} keys": b"\x0b" + wire.LENGTH.pack(2**63),
    "longer than 40 bytes": wire.request(Query.MULTI_SET, [b"k" * 10, b"v" * 20] * 2),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_refused_has_its_reason(why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        read_all(HELLO + REFUSED[why], limits=SMALL)


def test_what_is_just_within_the_limits_is_taken() -> None:
    read_all(HELLO + wire.request(Query.SET, [b"k" * 10, b"v" * 20]), limits=SMALL)
    read_all(HELLO + wire.request(Query.WAIT, [b"k"] * 3), limits=SMALL)


@pytest.mark.parametrize("query", set(Query) - {Query.VALIDATE})
def test_nothing_is_kept_of_who_has_not_introduced_itself(query: Query) -> None:
    with pytest.raises(ProtocolError, match=f"sent {query.name.lower()} before it introduced itself"):
        read_all(bytes([query]))


def test_a_client_knows_what_a_server_would_refuse() -> None:
    too_large = [
        (Query.SET, [b"k" * 11, b""]),
        (Query.SET, [b"k", b"v" * 21]),
        (Query.COMPARE_SET, [b"k", b"", b"v" * 21]),
        (Query.WAIT, [b"k"] * 4),
        (Query.MULTI_SET, [b"k" * 10, b"v" * 20] * 2),
    ]
    for query, texts in too_large:
        assert wire.why_too_large(query, texts, SMALL)
        with pytest.raises(ProtocolError):
            read_all(HELLO + wire.request(query, texts), limits=SMALL)
    assert wire.why_too_large(Query.COMPARE_SET, [b"k" * 10, b"v" * 20, b"v" * 20], StoreLimits()) is None


def test_answers_are_read() -> None:
    two = wire.text(b"one") + wire.text(b"")
    assert answer(replies.read_nothing, b"") is None
    assert answer(replies.read_number, wire.NUMBER.pack(-5)) == -5
    assert answer(replies.read_nonce, wire.NONCE.pack(7)) == 7
    assert answer(replies.read_flag, b"\0") is True
    assert answer(replies.read_flag, b"\1") is False
    assert answer(replies.read_value, wire.text(b"one")) == b"one"
    assert answer(replies.read_values(2), two) == [b"one", b""]
    assert answer(replies.read_counted_values, wire.NUMBER.pack(2) + two) == [b"one", b""]
    assert answer(replies.read_popped, wire.NUMBER.pack(3) + wire.text(b"one")) == b"one"
    assert answer(replies.read_popped, wire.NUMBER.pack(0)) is None
    assert answer(replies.if_ready(replies.read_values(2)), b"\0" + two) == [b"one", b""]
    assert answer(replies.if_ready(replies.read_values(1)), b"\1" + wire.text(b"")) is None
    assert answer(replies.if_ready(replies.read_value), b"\0" + wire.text(b"one")) == b"one"
    assert answer(replies.if_ready(replies.read_value), b"\0" + wire.text(b"")) == b""
    assert answer(replies.if_ready(replies.read_value), b"\1" + wire.text(b"")) is None
    with pytest.raises(ProtocolError, match="answered 2"):
        answer(replies.read_flag, b"\2")
    with pytest.raises(ProtocolError, match="answered 2"):
        answer(replies.if_ready(replies.read_value), b"\2" + wire.text(b""))
