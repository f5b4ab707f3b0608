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

    Where they follow a star, a count comes first, and then as many times the fields.
    """

    fields: str
    counted: bool

    def __new__(cls, code: int, fields: str) -> Query:
        query = int.__new__(cls, code)
        query._value_ = code
        query.fields, query.counted = fields.removeprefix("*"), fields.startswith("*")
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


_NUMBERS = {"q": NUMBER, "I": NONCE}
# By the number of a query: its first byte, its fields (None for a key or value), and how many of them are counted as one.
# What looks at an enumeration takes several times as long.
_PLANS = tuple(
    (query, bytes((query,)), tuple(map(_NUMBERS.get, query.fields)), len(query.fields) * query.counted)
    for query in Query
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

    __slots__ = ("_buffer", "_introduced", "_limits", "_slowly", "unfinished")

    def __init__(self, limits: StoreLimits) -> None:
        self._limits = limits
        self._buffer = bytearray()
        self._introduced = False
        self._slowly = _read_slowly(self._buffer, limits)
        # The query of which a part is still to come.
        self.unfinished: Query | None = None

    def read(self, data: bytes) -> Iterator[Request]:
        """The requests that are complete with these bytes."""
        at, size = 0, len(data)
        if self._introduced and self.unfinished is None:
            # Most of what comes is one whole request, or a few.
            while at < size and (whole := _whole_request(data, at, self._limits)) is not None:
                query, texts, number, at = whole
                yield query, texts, number
            if at == size:
                return
        self._buffer += data[at:] if at else data
        while isinstance(done := next(self._slowly), tuple):
            self._introduced = True
            yield done
        self.unfinished = done


def _read_slowly(buffer: bytearray, limits: StoreLimits) -> Iterator[Request | Query | None]:
    """The requests in the buffer, field by field; where more has to come first, the unfinished query, or None."""
    introduced = False
    while True:
        while not buffer:
            yield None
        query = _begun(buffer.pop(0), introduced)
        said = f"its {query.name.lower()} request"
        introduced = True
        texts: list[bytes] = []
        times, number, size = 1, 0, 0
        if query.counted:
            (times,) = LENGTH.unpack((yield from _take(buffer, LENGTH.size, query)))
            if times > limits.keys:
                raise ProtocolError(f"{said} names {times} keys; the limit is {limits.keys}")
        for field in query.fields * times:
            if (form := _NUMBERS.get(field)) is not None:
                (number,) = form.unpack((yield from _take(buffer, form.size, query)))
                continue
            (length,) = LENGTH.unpack((yield from _take(buffer, LENGTH.size, query)))
            what, limit = _limit(field, limits)
            if length > limit:
                raise ProtocolError(f"{said} has a {what} of {length} bytes; the limit is {limit}")
            if size + length > limits.request_bytes:
                raise ProtocolError(f"{said} is longer than {limits.request_bytes} bytes")
            size += LENGTH.size + length
            texts.append((yield from _take(buffer, length, query)))
        yield query, texts, number


def _begun(code: int, introduced: bool) -> Query:
    if code >= len(_PLANS):
        raise ProtocolError(f"it sent the unknown query {code}")
    query = _PLANS[code][0]
    if (query is Query.VALIDATE) == introduced:
        early = f"it sent {query.name.lower()} before it introduced itself"
        raise ProtocolError("it introduced itself twice" if introduced else early)
    return query


def _take(buffer: bytearray, size: int, query: Query) -> Generator[Query, None, bytes]:
    while len(buffer) < size:
        yield query
    taken = bytes(buffer[:size])
    del buffer[:size]
    return taken


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
