"""Messages as bytes and back, in protobuf's encoding, driven by the tables of their fields.

etcd's messages consist of varints and length-delimited fields only, so this is all of protobuf that is needed, and
it never clashes with the protobuf version of anybody else in the process.  Fields that the table does not know are
skipped; input that is cut short or damaged is refused with an `EtcdMessageError`.  Every call to etcd passes through
these loops, so they are written for speed.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from rallypoint.etcd_client.errors import EtcdMessageError
from rallypoint.etcd_client.tables import (
    BOOL,
    FIXED32,
    FIXED64,
    INT32,
    INT64,
    KINDS,
    LAST_VARINT,
    LENGTH,
    MESSAGE,
    PACKED,
    STRING,
    UINT64,
    VARINT,
    Field,
    Line,
    Message,
    Table,
    Tag,
    fields_of,
    table_of,
)
from rallypoint.etcd_client.varints import SIZE, SIZES, read_varint, varint

__all__ = ["Field", "Message", "Tag", "decode", "encode", "fields_of"]

M = TypeVar("M", bound=Message)

_SIGN_64 = 1 << 63
_REMEMBERED = 256
_SHORT = 64  # a header has 44 bytes at the most; what else it may be is not worth the memory
_values_of = msgspec.structs.astuple


# Writing --------------------------------------------------------------------------------------------------------------


def encode(message: Message) -> bytes:
    """A message as bytes: the same bytes that protobuf writes."""
    return _write(table_of(type(message)), message)


def _write(table: Table, message: Message) -> bytes:
    out = b""
    values = _values_of(message)
    for index, unset, line in table.writing:
        value = values[index]
        # What is empty is not set, unless it is optional: then only None is not set.
        if value is unset or not (value or (line.optional and value is not None)):
            continue
        if line.kind <= LAST_VARINT:
            out += line.key + (_packed(line, value) if line.repeated else _number(line, value))
        elif line.repeated:
            out += line.key + line.key.join([_sized(line, each) for each in value])
        else:
            out += line.key + _sized(line, value)
    return out


def _packed(line: Line, values: Any) -> bytes:
    numbers = b"".join([_number(line, value) for value in values])
    return varint(len(numbers)) + numbers


def _number(line: Line, value: Any) -> bytes:
    if not isinstance(value, int) or not line.least <= value <= line.most:
        raise EtcdMessageError(f"{line.field.name} is {value!r}, which is no {line.field.kind}")
    return varint(value)


def _sized(line: Line, value: Any) -> bytes:
    kind = line.kind
    if kind == MESSAGE:
        assert line.table is not None
        value = _write(line.table, value)
    elif kind == STRING:
        value = value.encode()
    elif type(value) is not bytes and not isinstance(value, (bytes, bytearray, memoryview)):
        raise EtcdMessageError(f"{line.field.name} must be bytes, and is {value!r}")
    size = len(value)
    return (SIZE[size] if size < SIZES else varint(size)) + value  # type: ignore[no-any-return]


# Reading --------------------------------------------------------------------------------------------------------------


def decode(cls: type[M], data: bytes) -> M:
    """The message in these bytes; a field that occurs twice is merged as protobuf does it."""
    message: Any = _read(table_of(cls), data)
    return message  # type: ignore[no-any-return]


def _read(table: Table, data: bytes) -> Message:
    by_short_key = table.by_short_key
    values = table.unset.copy()
    merged: dict[int, list[bytes]] | None = None  # the parts of each message that occurs more than once
    position, end = 0, len(data)
    while position < end:
        # Most numbers have one byte, and sizes seldom more than two: a call for each would double the time.
        key = data[position]
        if key < 0x80:
            position += 1
            reading = by_short_key[key]
        else:
            key, position = read_varint(table.name, data, position)
            reading = table.by_key.get(key)
        if reading is None:
            position = _skip(table, data, key, position)
            continue
        kind, index, plain, inner, line = reading
        if position < end and (number := data[position]) < 0x80:
            position += 1
        elif position + 1 < end and (second := data[position + 1]) < 0x80:
            number += (second << 7) - 0x80
            position += 2
        else:
            number, position = read_varint(table.name, data, position)
        value: Any
        if kind <= LAST_VARINT:
            value = number if kind <= UINT64 and number < _SIGN_64 else _signed(kind, number)
        else:
            start = position
            position += number
            value = data[start:position]
            if position > end:
                raise EtcdMessageError(
                    f"{table.name} is cut short: `{line.field.name}` should have {number} bytes, and {len(value)} are left"
                )
            if kind == MESSAGE:
                assert inner is not None
                if values[index] and not line.repeated:
                    merged = {} if merged is None else merged
                    merged.setdefault(index, [encode(values[index])]).append(value)
                # Even if it is to be merged: each part must be whole.
                value = _read(inner, value) if inner.recent is None else _recall(inner, value)
            elif kind > MESSAGE:
                value = _text(table, line, value) if kind == STRING else _unpack(table, line, value)
        if plain:
            values[index] = value
        elif line.repeated:
            many = values[index] or []
            if kind == PACKED:
                many += value
            else:
                many.append(value)
            values[index] = many
        else:
            values[index] = value
            for rival in line.rivals:
                values[rival] = None
                if merged is not None:
                    merged.pop(rival, None)
    for index in table.repeated:
        values[index] = tuple(values[index])
    if merged is not None:
        for index, parts in merged.items():
            # Bytes one after the other are the messages merged.
            values[index] = decode(type(values[index]), b"".join(parts))
    return table.make(*values)


def _recall(table: Table, data: bytes) -> Message:
    """The same for a message that is likely to come again just so."""
    recent = table.recent
    assert recent is not None
    message = recent.get(data)
    if message is None:
        message = _read(table, data)
        if len(recent) >= _REMEMBERED:
            recent.clear()
        if len(data) <= _SHORT:
            recent[data] = message
    return message


def _skip(table: Table, data: bytes, key: int, position: int) -> int:
    number, wire_type = key >> 3, key & 7
    if not 0 < number < 1 << 29 or wire_type not in (VARINT, FIXED64, LENGTH, FIXED32):
        raise EtcdMessageError(
            f"{table.name} is damaged: there is no field number {number} of type {wire_type} (before byte {position})"
        )
    if wire_type == VARINT:
        return read_varint(table.name, data, position)[1]
    if wire_type == LENGTH:
        length, position = read_varint(table.name, data, position)
    else:
        length = 8 if wire_type == FIXED64 else 4
    if length > len(data) - position:
        raise EtcdMessageError(
            f"{table.name} is cut short: field {number} at byte {position} should have {length} bytes, and "
            f"{len(data) - position} are left"
        )
    return position + length


def _unpack(table: Table, line: Line, data: bytes) -> list[int]:
    kind = KINDS[line.field.kind]
    numbers = []
    position = 0
    while position < len(data):
        number, position = read_varint(table.name, data, position)
        numbers.append(_signed(kind, number))
    return numbers


def _signed(kind: int, number: int) -> int:
    if kind == BOOL:
        return number != 0
    if kind == INT64:
        return number - (1 << 64) if number >> 63 else number
    if kind == INT32:
        number &= 0xFFFFFFFF
        return number - (1 << 32) if number >> 31 else number
    return number


def _text(table: Table, line: Line, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as problem:
        raise EtcdMessageError(f"{table.name} is damaged: `{line.field.name}` is no text ({problem})") from problem
