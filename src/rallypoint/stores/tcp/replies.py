"""How a client reads the answers of torch's TCPStore, sans-IO.

A reader is given a function that takes the next so many bytes, wherever they come from, and returns what they mean.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from rallypoint.stores.tcp.wire import LENGTH, NONCE, NUMBER, READY, ProtocolError

T = TypeVar("T")
Take = Callable[[int], bytes]
Reader = Callable[[Take], T]


def read_nothing(take: Take) -> None:
    """For queries that have no answer."""


def read_number(take: Take) -> int:
    """A signed number."""
    number: int = NUMBER.unpack(take(8))[0]
    return number


def read_nonce(take: Take) -> int:
    """What a ping sends back."""
    nonce: int = NONCE.unpack(take(4))[0]
    return nonce


def read_flag(take: Take) -> bool:
    """True for 0, which means ready or done waiting; False for 1: not ready, or the wait was cancelled."""
    code = take(1)[0]
    if code > 1:
        raise ProtocolError(f"it answered {code} where only 0 and 1 have a meaning")
    return code == READY


def read_value(take: Take) -> bytes:
    """One value."""
    return take(LENGTH.unpack(take(8))[0])


def read_values(count: int) -> Reader[list[bytes]]:
    """As many values as were asked for."""
    return lambda take: [read_value(take) for _ in range(count)]


def read_counted_values(take: Take) -> list[bytes]:
    """A count and as many strings."""
    return read_values(read_number(take))(take)


def read_popped(take: Take) -> bytes | None:
    """An entry of a queue, or None."""
    return read_value(take) if read_number(take) > 0 else None


def if_ready(reader: Reader[T]) -> Reader[T | None]:
    """The answers to a check and to another query sent along with it: None if one of the keys was not there."""

    def read(take: Take) -> T | None:
        ready = read_flag(take)
        answer = reader(take)
        return answer if ready else None

    return read
