"""Messages as bytes and back, in protobuf's encoding, driven by a table of each message's fields.

etcd's messages consist of varints and length-delimited fields only, so this is all of protobuf that is needed, and it never
clashes with the protobuf version of another library in the process.  The decoder skips fields that the table does not list,
and refuses input that is cut short or damaged with an `EtcdMessageError`.  If a field that is not repeated occurs twice, the
last one counts; etcd writes each field once.
"""

from __future__ import annotations

import types
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from rallypoint.etcd_client.errors import EtcdMessageError

# How a field is encoded; the wire itself tells these apart.
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5

_LONGEST_VARINT = 10
_BITS_64 = 1 << 64
_INT64_LEAST, _INT64_MOST = -(1 << 63), (1 << 63) - 1


class Message(msgspec.Struct, frozen=True, gc=False):
    """Base of all messages: a frozen struct whose fields are annotated with their numbers.

    A message refers only to values that are older than itself, so the garbage collector need not look for cycles.
    """


M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class Field:
    """One row of a message's table."""

    name: str
    number: int
    type: type  # int (64 bits, signed), bool, bytes, str or a message
    repeated: bool
    optional: bool  # None means that it is not set; its zero is written
    wire_type: int


@cache
def _table_of(cls: type[Message]) -> dict[int, Field]:
    """The fields in the order of their numbers, by number and wire type: with another type, a number is unknown."""
    hints = get_type_hints(cls, include_extras=True)
    fields = sorted((_field(name, hints[name]) for name in cls.__struct_fields__), key=lambda field: field.number)
    return {field.number << 3 | field.wire_type: field for field in fields}


def _field(name: str, hint: Any) -> Field:
    """The field of a hint such as `Annotated[tuple[KeyValue, ...], 2]`."""
    base, number = get_args(hint)
    repeated, optional = get_origin(base) is tuple, get_origin(base) in (Union, types.UnionType)
    kind = get_args(base)[0] if repeated or optional else base
    return Field(name, number, kind, repeated, optional, _VARINT if kind in (int, bool) else _LENGTH)


def encode(message: Message) -> bytes:
    """A message as bytes: the same bytes that protobuf writes."""
    out = bytearray()
    for field in _table_of(type(message)).values():
        value = getattr(message, field.name)
        if field.repeated:
            for item in value:
                _write(out, field, item)
        elif value is not None if field.optional else value:
            _write(out, field, value)
    return bytes(out)


def _write(out: bytearray, field: Field, value: Any) -> None:
    _write_varint(out, field.number << 3 | field.wire_type)
    if field.wire_type == _VARINT:
        if not isinstance(value, int) or not _INT64_LEAST <= value <= _INT64_MOST:
            raise EtcdMessageError(f"{field.name} is {value!r}, which is no int64")
        _write_varint(out, value)
        return
    if isinstance(value, Message):
        data = encode(value)
    elif field.type is str and isinstance(value, str):
        data = value.encode()
    elif field.type is bytes and isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
    else:
        raise EtcdMessageError(f"{field.name} must be {field.type.__name__}, and is {value!r}")
    _write_varint(out, len(data))
    out += data


def _write_varint(out: bytearray, number: int) -> None:
    """Seven bits a byte, the lowest first, a high bit on all bytes but the last; below 0 as if 2**64 were added."""
    number %= _BITS_64
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def decode(cls: type[M], data: bytes) -> M:
    """The message in these bytes."""
    table, found, position = _table_of(cls), dict[str, Any](), 0
    while position < len(data):
        key, position = _read_varint(cls, data, position)
        value, position = _read_value(cls, data, key, position)
        field = table.get(key)
        if field is not None and field.repeated:
            found.setdefault(field.name, []).append(_typed(cls, field, value))
        elif field is not None:
            found[field.name] = _typed(cls, field, value)
    return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in found.items()})


def _read_value(cls: type[Message], data: bytes, key: int, position: int) -> tuple[int | bytes, int]:
    """The value of a field, known or not, and the position behind it."""
    number, wire_type = key >> 3, key & 7
    if not 0 < number < 1 << 29 or wire_type not in (_VARINT, _FIXED64, _LENGTH, _FIXED32):
        raise EtcdMessageError(
            f"{cls.__name__} is damaged: there is no field number {number} of type {wire_type} (before byte {position})"
        )
    if wire_type == _VARINT:
        return _read_varint(cls, data, position)
    if wire_type == _LENGTH:
        length, position = _read_varint(cls, data, position)
    else:
        length = 8 if wire_type == _FIXED64 else 4
    if length > len(data) - position:
        raise EtcdMessageError(
            f"{cls.__name__} is cut short: field {number} at byte {position} should have {length} bytes, and "
            f"{len(data) - position} are left"
        )
    return data[position : position + length], position + length


def _typed(cls: type[Message], field: Field, value: Any) -> Any:
    if field.type is bytes:
        return value
    if field.type is int:
        return value if value <= _INT64_MOST else value - _BITS_64
    if field.type is bool:
        return value != 0
    if field.type is not str:
        return decode(field.type, value)
    try:
        return value.decode()
    except UnicodeDecodeError as problem:
        raise EtcdMessageError(f"{cls.__name__} is damaged: `{field.name}` is no text ({problem})") from problem


def _read_varint(cls: type[Message], data: bytes, position: int) -> tuple[int, int]:
    """The number at a position, and the position behind it."""
    number = shift = 0
    for place, byte in enumerate(data[position : position + _LONGEST_VARINT], position + 1):
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number % _BITS_64, place
        shift += 7
    if len(data) - position < _LONGEST_VARINT:
        raise EtcdMessageError(f"{cls.__name__} is cut short: it ends in the middle of a number, at byte {position}")
    raise EtcdMessageError(f"{cls.__name__} is damaged: the number at byte {position} is longer than 64 bits")
