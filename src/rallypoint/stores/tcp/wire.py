"""The wire format of torch's TCPStore, sans-IO: requests, written and read.

One byte names the query; then come its fields, little endian; a key or value is an 8-byte length and the bytes.  The
table below is all there is to it: requests are written and read by the same line.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

MAGIC = 0x3C85F7CE
READY = STOP_WAITING = 0
NOT_READY = WAIT_CANCELED = 1

LENGTH = struct.Struct("<Q")
NUMBER = struct.Struct("<q")
NONCE = struct.Struct("<I")


class ProtocolError(Exception):
    """The other side said something that the wire format does not know; the connection cannot go on."""


class Query(IntEnum):
    """What a client can ask."""

    VALIDATE = 0
    SET = 1
    COMPARE_SET = 2
    GET = 3
    ADD = 4
    CHECK = 5
    WAIT = 6
    COUNT_KEYS = 7
    DELETE = 8
    APPEND = 9
    MULTI_GET = 10
    MULTI_SET = 11
    CANCEL_WAIT = 12
    PING = 13
    QUEUE_PUSH = 14
    QUEUE_POP = 15
    QUEUE_LEN = 16
    LIST_KEYS = 17
    BARRIER = 18


class Shape(NamedTuple):
    """The fields of a query: k is a key, v a value, q a signed and I an unsigned number.

    If it is counted, a count comes first, and then as many times the fields.
    """

    fields: str
    counted: bool = False


SHAPES: dict[Query, Shape] = {
    Query.VALIDATE: Shape("I"),
    Query.SET: Shape("kv"),
    Query.COMPARE_SET: Shape("kvv"),
    Query.GET: Shape("k"),
    Query.ADD: Shape("kq"),
    Query.CHECK: Shape("k", counted=True),
    Query.WAIT: Shape("k", counted=True),
    Query.COUNT_KEYS: Shape(""),
    Query.DELETE: Shape("k"),
    Query.APPEND: Shape("kv"),
    Query.MULTI_GET: Shape("k", counted=True),
    Query.MULTI_SET: Shape("kv", counted=True),
    Query.CANCEL_WAIT: Shape(""),
    Query.PING: Shape("I"),
    Query.QUEUE_PUSH: Shape("kv"),
    Query.QUEUE_POP: Shape("k"),
    Query.QUEUE_LEN: Shape("k"),
    Query.LIST_KEYS: Shape(""),
    Query.BARRIER: Shape("kq"),
}


class _Plan(NamedTuple):
    """How a query is written and read, by its number: what looks at an enumeration takes several times as long."""

    query: Query
    head: bytes
    fields: tuple[struct.Struct | None, ...]  # None for a key or value
    counted: int  # how many fields are counted as one, or 0


_NUMBERS = {"q": NUMBER, "I": NONCE}
_PLANS = tuple(
    _Plan(query, bytes((query,)), tuple(_NUMBERS.get(field) for field in fields), len(fields) if counted else 0)
    for query, (fields, counted) in SHAPES.items()
)
_pack_length, _unpack_length = LENGTH.pack, LENGTH.unpack_from


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
    _, head, fields, counted = _PLANS[query]
    parts = [head]
    if counted:
        parts.append(_pack_length(len(texts) // counted))
    for content in texts:
        parts += (_pack_length(len(content)), content)
    if fields and (last := fields[-1]) is not None:
        parts.append(last.pack(number))
    return b"".join(parts)


_INTRODUCTION = request(Query.VALIDATE, number=MAGIC)


def why_too_large(query: Query, texts: Sequence[bytes], limits: StoreLimits) -> str | None:
    """Why a server would drop the connection over this request; to be asked before it is sent."""
    shape = SHAPES[query]
    for position, content in enumerate(texts):
        is_key = shape.fields[position % len(shape.fields)] == "k"
        what, limit = ("key", limits.key_bytes) if is_key else ("value", limits.value_bytes)
        if len(content) > limit:
            return f"a {what} of {len(content)} bytes is over the limit of {limit}"
    if shape.counted and len(texts) > limits.keys * len(shape.fields):
        return f"{len(texts) // len(shape.fields)} keys at once are over the limit of {limits.keys}"
    if shape.counted and sum(map(len, texts)) + LENGTH.size * len(texts) > limits.request_bytes:
        return f"keys and values are over the limit of {limits.request_bytes} bytes in all"
    return None


# Reading --------------------------------------------------------------------------------------------------------------


class RequestReader:
    """Makes requests of the bytes of one connection, however they were cut.

    A request that is not complete yet is not read again from its start when more of it comes.  The first one has to be
    the client's introduction: from anybody else not a byte is kept.
    """

    __slots__ = (
        "_at",
        "_buffer",
        "_field",
        "_fields",
        "_introduced",
        "_left",
        "_limits",
        "_number",
        "_query",
        "_size",
        "_texts",
    )

    def __init__(self, limits: StoreLimits) -> None:
        self._limits = limits
        self._buffer = bytearray()
        self._at = 0
        self._introduced = False
        self._forget()

    def read(self, data: bytes) -> Iterator[Request]:
        """The requests that are complete with these bytes."""
        at, size = 0, len(data)
        if not self._introduced and not self._buffer and data.startswith(_INTRODUCTION):
            self._introduced, at = True, len(_INTRODUCTION)
            yield Query.VALIDATE, [], MAGIC
        if self._introduced and self._query is None and not self._buffer:
            # Most of what comes is one whole request, or a few.
            while at < size and (whole := _whole_request(data, at, self._limits)) is not None:
                query, texts, number, at = whole
                yield query, texts, number
            if at == size:
                return
        self._buffer += data[at:] if at else data
        while (done := self._next_request()) is not None:
            yield done

    @property
    def unfinished(self) -> Query | None:
        """The query of which a part is still to come."""
        return self._query

    def _next_request(self) -> Request | None:
        """The next complete request, or None until more is fed."""
        if self._query is None:
            if self._at == len(self._buffer):
                self._compact()
                return None
            self._begin(self._buffer[self._at])
            self._at += 1
        assert self._query is not None
        while self._left:
            if not self._read_field():
                self._compact()
                return None
        done = self._query, self._texts, self._number
        self._forget()
        return done

    def _forget(self) -> None:
        self._query: Query | None = None
        self._fields = ""
        self._field = self._left = 0
        self._texts: list[bytes] = []
        self._number = 0
        self._size = 0

    def _begin(self, code: int) -> None:
        if code >= len(SHAPES):
            raise ProtocolError(f"it sent the unknown query {code}")
        query = _PLANS[code].query
        if (query is Query.VALIDATE) == self._introduced:
            early = f"it sent {query.name.lower()} before it introduced itself"
            raise ProtocolError("it introduced itself twice" if self._introduced else early)
        self._introduced = True
        self._query = query
        self._fields, counted = SHAPES[query]
        # A count, too, is read as a field: before the first of the others.
        self._field = -1 if counted else 0
        self._left = 1 if counted else len(self._fields)

    def _read_field(self) -> bool:
        buffer, at = self._buffer, self._at
        kind = "count" if self._field < 0 else self._fields[self._field % len(self._fields)]
        head = 4 if kind == "I" else 8
        if len(buffer) - at < head:
            return False
        if kind in ("k", "v"):
            (length,) = LENGTH.unpack_from(buffer, at)
            self._refuse_length(kind, length)
            end = at + head + length
            if len(buffer) < end:
                return False
            self._size += head + length
            self._texts.append(bytes(buffer[at + head : end]))
            self._at = end
        elif kind == "count":
            (count,) = LENGTH.unpack_from(buffer, at)
            if count > self._limits.keys:
                raise ProtocolError(f"{self._said()} names {count} keys; the limit is {self._limits.keys}")
            self._left = count * len(self._fields) + 1
            self._at = at + head
        else:
            (self._number,) = (NONCE if kind == "I" else NUMBER).unpack_from(buffer, at)
            self._at = at + head
        self._field += 1
        self._left -= 1
        return True

    def _refuse_length(self, kind: str, length: int) -> None:
        what, limit = ("key", self._limits.key_bytes) if kind == "k" else ("value", self._limits.value_bytes)
        if length > limit:
            raise ProtocolError(f"{self._said()} has a {what} of {length} bytes; the limit is {limit}")
        if self._size + length > self._limits.request_bytes:
            raise ProtocolError(f"{self._said()} is longer than {self._limits.request_bytes} bytes")

    def _said(self) -> str:
        assert self._query is not None
        return f"its {self._query.name.lower()} request"

    def _compact(self) -> None:
        del self._buffer[: self._at]
        self._at = 0


def _whole_request(data: bytes, at: int, limits: StoreLimits) -> tuple[Query, list[bytes], int, int] | None:
    """The request that begins there, and where it ends; None where it is not whole, or anything is wrong with it."""
    code, size, longest = data[at], len(data), limits.key_bytes
    if not 0 < code < len(_PLANS):
        return None
    query, _, fields, counted = _PLANS[code]
    at += 1
    texts: list[bytes] = []
    number = 0
    try:
        if counted:
            (times,) = _unpack_length(data, at)
            at += 8
            if times > limits.keys or times > size:
                return None
            fields *= times
        for field in fields:
            if field is None:
                (length,) = _unpack_length(data, at)
                begin = at + 8
                at = begin + length
                if at > size or length > longest:
                    return None
                texts.append(data[begin:at])
            else:
                (number,) = field.unpack_from(data, at)
                at += field.size
    except struct.error:
        return None
    return query, texts, number, at
