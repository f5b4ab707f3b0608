"""Messages as bytes and back, in protobuf's encoding, driven by the tags on the fields of structs.

etcd's messages consist of varints and length-delimited fields only, so this is all of protobuf that is needed, and
it never clashes with the protobuf version of anybody else in the process.  Fields that the table does not know are
skipped; input that is cut short or damaged is refused with an `EtcdMessageError`.
"""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from rallypoint.etcd_client.errors import EtcdMessageError

__all__ = ["Field", "Message", "Tag", "decode", "encode", "fields_of"]

_VARINT = 0
_FIXED64 = 1
_LENGTH = 2
_FIXED32 = 5
_LONGEST_VARINT = 10
_MASK_64 = (1 << 64) - 1
_RANGES = {
    "int64": (-(1 << 63), (1 << 63) - 1),
    "uint64": (0, (1 << 64) - 1),
    "int32": (-(1 << 31), (1 << 31) - 1),
    "bool": (0, 1),
}


@dataclass(frozen=True)
class Tag:
    """What the wire needs to know of a field besides its type.

    An `int` is signed and has 64 bits unless `kind` says otherwise; of the fields with one `oneof`, the last one on
    the wire counts.
    """

    number: int
    kind: str = "int64"
    oneof: str = ""


class Message(msgspec.Struct, frozen=True, gc=False):
    """Base of all messages: a frozen struct whose fields are annotated with a `Tag`.

    A message holds numbers, bytes, text and older messages: there are no cycles that the collector would have to find.
    """


M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class Field:
    """One line of a message's table."""

    name: str
    number: int
    kind: str  # one of the ranges above, "bytes", "string" or "message"
    repeated: bool
    optional: bool
    oneof: str
    message: type[Message] | None
    rivals: tuple[str, ...]  # the other fields of its oneof
    key: bytes  # as it stands on the wire before the value
    is_varint: bool
    is_gathered: bool  # collected while reading, and put together at the end


@dataclass(frozen=True)
class _Table:
    """All that is known of a message."""

    fields: tuple[Field, ...]  # in the order of the wire
    gathered: tuple[Field, ...]
    # By number and wire type together: a known number with another type is as good as unknown.
    by_key: dict[int, Field]


_tables: dict[type[Message], _Table] = {}


def fields_of(cls: type[Message]) -> tuple[Field, ...]:
    """The fields of a message, in the order of the wire."""
    return _table(cls).fields


def _table(cls: type[Message]) -> _Table:
    """The table of a message, made when it is first needed; two threads that both make it make the same."""
    table = _tables.get(cls)
    if table is None:
        table = _tables[cls] = _make_table(cls)
    return table


def _make_table(cls: type[Message]) -> _Table:
    hints = get_type_hints(cls, include_extras=True)
    tagged = [(field.name, *_unwrap(hints[field.name])) for field in msgspec.structs.fields(cls)]
    lines = []
    for name, tag, base, repeated, optional in tagged:
        kind = {bytes: "bytes", str: "string", bool: "bool", int: tag.kind}.get(base, "message")
        rivals = tuple(other for other, its, *_ in tagged if tag.oneof and its.oneof == tag.oneof and other != name)
        is_varint, is_gathered = kind in _RANGES, repeated or kind == "message"
        key = _varint(tag.number << 3 | (_VARINT if is_varint and not repeated else _LENGTH))
        message = base if kind == "message" else None
        lines.append(
            Field(name, tag.number, kind, repeated, optional, tag.oneof, message, rivals, key, is_varint, is_gathered)
        )
    lines.sort(key=lambda field: field.number)
    varints = {field.number << 3 | _VARINT: field for field in lines if field.is_varint}
    others = {field.number << 3 | _LENGTH: field for field in lines if field.repeated or not field.is_varint}
    return _Table(tuple(lines), tuple(field for field in lines if field.is_gathered), varints | others)


def _unwrap(hint: Any) -> tuple[Tag, Any, bool, bool]:
    """A hint such as `Annotated[tuple[KeyValue, ...], Tag(2)]` as its tag, its type, and whether many or none are fine."""
    assert get_origin(hint) is Annotated, hint
    base, tag = get_args(hint)
    if get_origin(base) is tuple:
        return tag, get_args(base)[0], True, False
    if get_origin(base) in (Union, types.UnionType):
        return tag, get_args(base)[0], False, True
    return tag, base, False, False


# Writing --------------------------------------------------------------------------------------------------------------


def encode(message: Message) -> bytes:
    """A message as bytes: the same bytes that protobuf writes."""
    out = bytearray()
    for field in fields_of(type(message)):
        value = getattr(message, field.name)
        if field.repeated:
            _write_many(out, field, value)
        elif value is not None if field.optional else value:
            out += field.key
            _write(out, field, value)
    return bytes(out)


def _write_many(out: bytearray, field: Field, values: Any) -> None:
    if values and field.is_varint:
        packed = bytearray()
        for value in values:
            _write(packed, field, value)
        out += field.key + _varint(len(packed)) + packed
        return
    for value in values:
        out += field.key
        _write(out, field, value)


def _write(out: bytearray, field: Field, value: Any) -> None:
    if field.is_varint:
        least, most = _RANGES[field.kind]
        if not isinstance(value, int) or not least <= value <= most:
            raise EtcdMessageError(f"{field.name} is {value!r}, which is no {field.kind}")
        out += _varint(value & _MASK_64)
        return
    if field.kind == "message":
        value = encode(value)
    elif field.kind == "string":
        value = value.encode()
    elif not isinstance(value, (bytes, bytearray, memoryview)):
        raise EtcdMessageError(f"{field.name} must be bytes, and is {value!r}")
    out += _varint(len(value))
    out += value


def _varint(number: int) -> bytes:
    if number < 0x80:
        return _SHORT[number]
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


_SHORT = [bytes([number]) for number in range(0x80)]


# Reading --------------------------------------------------------------------------------------------------------------


def decode(cls: type[M], data: bytes) -> M:
    """The message in these bytes; a field that occurs twice is merged as protobuf does it."""
    table = _table(cls)
    by_key = table.by_key
    found: dict[str, Any] = {}
    position, end = 0, len(data)
    while position < end:
        # Most numbers have one byte: a call for each would double the time.
        key = data[position]
        if key < 0x80:
            position += 1
        else:
            key, position = _read_varint(cls, data, position)
        field = by_key.get(key)
        if field is None:
            position = _skip(cls, data, key, position)
            continue
        if position < end and data[position] < 0x80:
            number = data[position]
            position += 1
        else:
            number, position = _read_varint(cls, data, position)
        value: Any
        if key & 7 == _VARINT:
            value = number if field.kind == "uint64" else _signed(field.kind, number)
        else:
            value = data[position : position + number]
            position += number
            if position > end:
                raise EtcdMessageError(
                    f"{cls.__name__} is cut short: `{field.name}` should have {number} bytes, and {len(value)} are left"
                )
            if field.is_varint:
                found.setdefault(field.name, []).extend(_unpack(cls, field, value))
                continue
            if field.kind == "string":
                value = _text(cls, field, value)
        if field.is_gathered:
            found.setdefault(field.name, []).append(value)
        else:
            found[field.name] = value
        for rival in field.rivals:
            found.pop(rival, None)
    for field in table.gathered:
        if field.name in found:
            found[field.name] = _compose(field, found[field.name])
    return cls(**found)


def _compose(field: Field, values: list[Any]) -> Any:
    if field.message is None:
        return tuple(values)
    if field.repeated:
        return tuple([decode(field.message, value) for value in values])
    # Bytes one after the other are the messages merged.
    return decode(field.message, values[0] if len(values) == 1 else b"".join(values))


def _read_varint(cls: type[Message], data: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    for index in range(position, min(position + _LONGEST_VARINT, len(data))):
        byte = data[index]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & _MASK_64, index + 1
        shift += 7
    if len(data) - position < _LONGEST_VARINT:
        raise EtcdMessageError(f"{cls.__name__} is cut short: it ends in the middle of a number, at byte {position}")
    raise EtcdMessageError(f"{cls.__name__} is damaged: the number at byte {position} is longer than 64 bits")


def _skip(cls: type[Message], data: bytes, key: int, position: int) -> int:
    number, wire_type = key >> 3, key & 7
    if not 0 < number < 1 << 29 or wire_type not in (_VARINT, _FIXED64, _LENGTH, _FIXED32):
        raise EtcdMessageError(
            f"{cls.__name__} is damaged: there is no field number {number} of type {wire_type} (before byte {position})"
        )
    if wire_type == _VARINT:
        return _read_varint(cls, data, position)[1]
    if wire_type == _LENGTH:
        length, position = _read_varint(cls, data, position)
    else:
        length = 8 if wire_type == _FIXED64 else 4
    if length > len(data) - position:
        raise EtcdMessageError(
            f"{cls.__name__} is cut short: field {number} at byte {position} should have {length} bytes, and "
            f"{len(data) - position} are left"
        )
    return position + length


def _unpack(cls: type[Message], field: Field, data: bytes) -> list[int]:
    numbers = []
    position = 0
    while position < len(data):
        number, position = _read_varint(cls, data, position)
        numbers.append(_signed(field.kind, number))
    return numbers


def _signed(kind: str, number: int) -> int:
    if kind == "int64":
        return number - (1 << 64) if number >> 63 else number
    if kind == "bool":
        return number != 0
    if kind == "int32":
        number &= 0xFFFFFFFF
        return number - (1 << 32) if number >> 31 else number
    return number


def _text(cls: type[Message], field: Field, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as problem:
        raise EtcdMessageError(f"{cls.__name__} is damaged: `{field.name}` is no text ({problem})") from problem
