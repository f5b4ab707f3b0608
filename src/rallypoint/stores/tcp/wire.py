"""The wire format of torch's TCPStore, sans-IO: requests, written and read.

One byte names the query; then come its fields, little endian; a key or value is an 8-byte length and the bytes.  Requests
are written and read by the same table: the fields of each `Query`.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

MAGIC = 0x3C85F7CE
READY = STOP_WAITING = 0
NOT_READY = WAIT_CANCELED = 1

LENGTH = struct.Struct("<Q")
NUMBER = struct.Struct("<q")
NONCE = struct.Struct("<I")


class ProtocolError(Exception):
    """The other side said something that the wire format does not know; the connection cannot go on."""


class Query(IntEnum):
    """What a client can ask, by its number, and its fields: k is a key, v a value, q a signed and I an unsigned number.

    Where they follow a star, a count comes first, and then as many times the fields.  A number comes last.
    """

    fields: str
    counted: bool
    number: struct.Struct | None

    def __new__(cls, code: int, fields: str) -> Query:
        query = int.__new__(cls, code)
        query._value_ = code
        query.fields, query.counted = fields.strip("*qI"), fields.startswith("*")
        query.number = {"q": NUMBER, "I": NONCE}.get(fields[-1:])
        return query

    VALIDATE = 0, "I"
    SET = 1, "kv"
    COMPARE_SET = 2, "kvv"
    GET = 3, "k"
    ADD = 4, "kq"
    CHECK = 5, "*k"
    WAIT = 6, "*k"
    COUNT_KEYS = 7, ""
    DELETE = 8, "k"
    APPEND = 9, "kv"
    MULTI_GET = 10, "*k"
    MULTI_SET = 11, "*kv"
    CANCEL_WAIT = 12, ""
    PING = 13, "I"
    QUEUE_PUSH = 14, "kv"
    QUEUE_POP = 15, "k"
    QUEUE_LEN = 16, "k"
    LIST_KEYS = 17, ""
    BARRIER = 18, "kq"


_QUERIES = tuple(Query)


@dataclass(frozen=True)
class StoreLimits:
    """What a server takes from a connection before it drops it.  The first three are those of torch's server."""

    key_bytes: int = 8 * 1024
    value_bytes: int = 8 * 1024 * 1024
    keys: int = 128 * 1024
    # One request as a whole, and the answers that the peer has not read yet.
    request_bytes: int = 256 * 1024 * 1024
    unread_bytes: int = 256 * 1024 * 1024
    # What of that may lie unread when the peer asks for still more.  A client reads one answer before its next question.
    piled_bytes: int = 32 * 1024 * 1024


Request = tuple[Query, list[bytes], int]
"""One query as it was read: its keys and values in order, and its number if it has one."""


# Writing --------------------------------------------------------------------------------------------------------------


def text(content: bytes) -> bytes:
    """A key or value with its length."""
    return LENGTH.pack(len(content)) + content


def request(query: Query, texts: Sequence[bytes] = (), number: int = 0) -> bytes:
    """What a client sends."""
    parts = [bytes((query,))]
    if query.counted:
        parts.append(LENGTH.pack(len(texts) // len(query.fields)))
    for content in texts:
        parts += (LENGTH.pack(len(content)), content)
    if query.number is not None:
        parts.append(query.number.pack(number))
    return b"".join(parts)


def why_too_large(query: Query, texts: Sequence[bytes], limits: StoreLimits) -> str | None:
    """Why a server would drop the connection over this request; to be asked before it is sent."""
    fields = query.fields
    for position, content in enumerate(texts):
        what, limit = _limit(fields[position % len(fields)], limits)
        if len(content) > limit:
            return f"a {what} of {len(content)} bytes is over the limit of {limit}"
    if query.counted and len(texts) > limits.keys * len(fields):
        return f"{len(texts) // len(fields)} keys at once are over the limit of {limits.keys}"
    if query.counted and sum(map(len, texts)) + LENGTH.size * len(texts) > limits.request_bytes:
        return f"keys and values are over the limit of {limits.request_bytes} bytes in all"
    return None


def _limit(field: str, limits: StoreLimits) -> tuple[str, int]:
    return ("key", limits.key_bytes) if field == "k" else ("value", limits.value_bytes)


# Reading --------------------------------------------------------------------------------------------------------------


class RequestReader:
    """Makes requests of the bytes of one connection, however they were cut.

    The first one has to be the client's introduction: of any other client not a byte is kept.
    """

    __slots__ = ("_requests",)

    def __init__(self, limits: StoreLimits) -> None:
        self._requests = _requests(limits)
        next(self._requests)

    def read(self, data: bytes) -> Iterator[Request]:
        """The requests that are complete with these bytes."""
        found = self._requests.send(data)
        while found is not None:
            yield found
            found = next(self._requests)


def _requests(limits: StoreLimits) -> Generator[Request | None, bytes, None]:
    """Each request as soon as it is complete; None where bytes are missing, to be sent more."""
    data, at, introduced = b"", 0, False
    while True:
        if at == len(data):
            data, at = b"", 0  # nothing is kept while the peer is silent
            while not data:
                data = yield None
        if data[at] >= len(_QUERIES):
            raise ProtocolError(f"it sent the unknown query {data[at]}")
        query = _QUERIES[data[at]]
        fields = query.fields
        at += 1
        if (query is Query.VALIDATE) == introduced:
            early = f"it sent {query.name.lower()} before it introduced itself"
            raise ProtocolError("it introduced itself twice" if introduced else early)
        introduced = True
        texts: list[bytes] = []
        number = size = 0
        if query.counted:
            if at + 8 > len(data):
                data, at = (yield from _more(data[at:], 8)), 0
            (times,) = LENGTH.unpack_from(data, at)
            at += 8
            if times > limits.keys:
                raise ProtocolError(f"{_said(query)} names {times} keys; the limit is {limits.keys}")
            fields *= times
        for field in fields:
            if at + 8 > len(data):
                data, at = (yield from _more(data[at:], 8)), 0
            (length,) = LENGTH.unpack_from(data, at)
            at += 8
            what, limit = _limit(field, limits)
            if length > limit:
                raise ProtocolError(f"{_said(query)} has a {what} of {length} bytes; the limit is {limit}")
            if size + length > limits.request_bytes:
                raise ProtocolError(f"{_said(query)} is longer than {limits.request_bytes} bytes")
            size += 8 + length
            if at + length > len(data):
                data, at = (yield from _more(data[at:], length)), 0
            texts.append(data[at : at + length])
            at += length
        if query.number is not None:
            if at + query.number.size > len(data):
                data, at = (yield from _more(data[at:], query.number.size)), 0
            (number,) = query.number.unpack_from(data, at)
            at += query.number.size
        yield query, texts, number


def _more(rest: bytes, size: int) -> Generator[None, bytes, bytes]:
    """At least so many bytes, which begin with the rest of those before."""
    buffer = bytearray(rest)
    while len(buffer) < size:
        buffer += yield
    return bytes(buffer)


def _said(query: Query) -> str:
    return f"its {query.name.lower()} request"
