"""Numbers as protobuf writes them: seven bits a byte, the lowest first, and a high bit on all bytes but the last.

There are short ones, which most are; revisions, which seldom come again; and the long ids of the cluster, its members
and leases, of which the same few come again and again, so that they are remembered.
"""

from __future__ import annotations

from functools import lru_cache

from rallypoint.etcd_client.errors import EtcdMessageError

__all__ = ["LONGEST", "SIZE", "SIZES", "read_long_varint", "read_varint", "varint"]

LONGEST = 10
"""So many bytes has a number at most."""

_MASK_64 = (1 << 64) - 1
_REMEMBERED = 1024


def varint(number: int) -> bytes:
    """A number of at most 64 bits as bytes; one below 0 is written as if 2**64 were added."""
    if number < 0:
        number += 1 << 64
    if number < SIZES:
        return SIZE[number]
    if number < 1 << 14:
        return bytes((number & 0x7F | 0x80, number >> 7))
    if number < 1 << 21:
        return bytes((number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14))
    return _long_varint(number)


@lru_cache(maxsize=_REMEMBERED)
def _long_varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


SIZES = 1024
SIZE = tuple(map(_long_varint.__wrapped__, range(SIZES)))
"""Small numbers as bytes, for those who cannot wait: most values and messages have fewer bytes than `SIZES`."""


def read_varint(name: str, data: bytes, position: int) -> tuple[int, int]:
    """The number at a position, and the position behind it; `name` is what the bytes are, for a refusal."""
    try:
        first = data[position]
        if first < 0x80:
            return first, position + 1
        second = data[position + 1]
        if second < 0x80:
            return first + (second << 7) - 0x80, position + 2
        third = data[position + 2]
        if third < 0x80:
            return first + (second << 7) + (third << 14) - 0x4080, position + 3
    except IndexError:
        raise _cut_short(name, position) from None
    number, size = read_long_varint(data[position : position + LONGEST])
    if size:
        return number, position + size
    if len(data) - position < LONGEST:
        raise _cut_short(name, position)
    raise EtcdMessageError(f"{name} is damaged: the number at byte {position} is longer than 64 bits")


def _cut_short(name: str, position: int) -> EtcdMessageError:
    return EtcdMessageError(f"{name} is cut short: it ends in the middle of a number, at byte {position}")


@lru_cache(maxsize=_REMEMBERED)
def read_long_varint(data: bytes) -> tuple[int, int]:
    """The number that these bytes begin with, and how many of them it has: 0 if it does not end."""
    number = shift = 0
    for size, byte in enumerate(data, 1):
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & _MASK_64, size
        shift += 7
    return 0, 0
