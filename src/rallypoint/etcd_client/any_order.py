"""Reading a message as it may come: fields in any order and more than once, unknown ones, and what is damaged.

etcd writes fields in the order of their numbers, and `straight` reads them so.  Whatever is otherwise is read here, where
nothing is taken for granted, and what is wrong is refused in words.
"""

from __future__ import annotations

from typing import Any

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
    VARINT,
    Line,
    Message,
    Table,
    table_of,
)
from rallypoint.etcd_client.varints import read_varint

__all__ = ["read_in_any_order", "signed", "skip_unknown", "text"]


def read_in_any_order(table: Table, data: bytes) -> Message:
    """The message in these bytes; a field that occurs twice is merged as protobuf does it."""
    values = table.unset.copy()
    parts: dict[int, list[bytes]] = {}  # of each message in it, as they came
    position, end = 0, len(data)
    while position < end:
        key, position = read_varint(table.name, data, position)
        line = table.by_key.get(key)
        if line is None:
            position = _skip(table, data, key, position)
            continue
        number, position = read_varint(table.name, data, position)
        value: Any
        if line.kind <= LAST_VARINT:
            value = signed(line.kind, number)
        else:
            part = data[position : position + number]
            if len(part) < number:
                raise EtcdMessageError(
                    f"{table.name} is cut short: `{line.field.name}` should have {number} bytes, and {len(part)} are left"
                )
            position += number
            value = _value(table, line, part)
            if line.kind == MESSAGE and not line.repeated:
                parts.setdefault(line.index, []).append(part)
        if line.repeated:
            many = values[line.index] or []
            many.extend(value if line.kind == PACKED else [value])
            value = many
        values[line.index] = value
        for rival in line.rivals:
            values[rival] = None
            parts.pop(rival, None)
    for line in table.lines:
        if line.repeated:
            values[line.index] = tuple(values[line.index])
        elif len(several := parts.get(line.index, ())) > 1:
            assert line.field.message is not None
            # Bytes one after the other are the messages merged.
            values[line.index] = read_in_any_order(table_of(line.field.message), b"".join(several))
    return table.make(*values)


def _value(table: Table, line: Line, data: bytes) -> Any:
    """What stands in these bytes."""
    if line.kind == MESSAGE:
        assert line.field.message is not None
        # Even if it is to be merged with others: each part must be whole.
        return read_in_any_order(table_of(line.field.message), data)
    if line.kind == STRING:
        return text(table.name, line.field.name, data)
    return _unpack(table, line, data) if line.kind == PACKED else data


def skip_unknown(table: Table, data: bytes, position: int) -> int:
    """The position behind the fields from there on that the table does not know."""
    while position < len(data):
        key, behind = read_varint(table.name, data, position)
        if key in table.by_key:
            break
        position = _skip(table, data, key, behind)
    return position


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
        numbers.append(signed(kind, number))
    return numbers


def signed(kind: int, number: int) -> int:
    """A number of 64 bits as what it is meant to be."""
    if kind == BOOL:
        return number != 0
    if kind == INT64:
        return number - (1 << 64) if number >> 63 else number
    if kind == INT32:
        number &= 0xFFFFFFFF
        return number - (1 << 32) if number >> 31 else number
    return number


def text(message: str, field: str, data: bytes) -> str:
    """Bytes that are to be text."""
    try:
        return data.decode()
    except UnicodeDecodeError as problem:
        raise EtcdMessageError(f"{message} is damaged: `{field}` is no text ({problem})") from problem
