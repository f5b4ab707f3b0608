"""What the codec must know of each message, worked out once from the tags on the fields of its struct."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin, get_type_hints

import msgspec

from rallypoint.etcd_client.varints import varint

__all__ = ["Field", "Line", "Message", "Table", "Tag", "fields_of", "table_of"]

# The types that the wire itself tells apart.
VARINT = 0
FIXED64 = 1
LENGTH = 2
FIXED32 = 5

# What is to be done with a field, as a number.
INT64, UINT64, INT32, BOOL, BYTES, MESSAGE, STRING, PACKED = range(8)
LAST_VARINT = BOOL
KINDS = {
    "int64": INT64,
    "uint64": UINT64,
    "int32": INT32,
    "bool": BOOL,
    "bytes": BYTES,
    "message": MESSAGE,
    "string": STRING,
}
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

    RECURS: ClassVar[bool] = False
    """Whether the same one is likely to be read many times in a row, so that the last one is remembered."""


@dataclass(frozen=True)
class Field:
    """One line of a message's table."""

    name: str
    number: int
    kind: str  # one of the kinds above
    repeated: bool
    optional: bool
    oneof: str
    message: type[Message] | None
    rivals: tuple[str, ...]  # the other fields of its oneof


@dataclass(frozen=True, slots=True)
class Line:
    """A field as the codec wants it: whatever can be known beforehand is worked out."""

    field: Field
    index: int  # among the values of the message
    kind: int
    repeated: bool
    optional: bool
    rivals: tuple[int, ...]
    key: bytes  # as it stands on the wire before the value
    least: int
    most: int


@dataclass(frozen=True, slots=True)
class Table:
    """All that is known of a message."""

    name: str
    make: Callable[..., Message]
    names: tuple[str, ...]  # of its fields, in the order in which it is made of them
    fields: tuple[Field, ...]  # in the order of the wire
    lines: tuple[Line, ...]  # of these
    unset: list[Any]  # the values of an empty message
    # By number and wire type together: a known number with another type is as good as unknown.
    by_key: dict[int, Line]


_tables: dict[type[Message], Table] = {}


def fields_of(cls: type[Message]) -> tuple[Field, ...]:
    """The fields of a message, in the order of the wire."""
    return table_of(cls).fields


def table_of(cls: type[Message]) -> Table:
    """The table of a message, made when it is first needed; two threads that both make it make the same."""
    table = _tables.get(cls)
    if table is None:
        table = _tables[cls] = _make_table(cls)
    return table


def _make_table(cls: type[Message]) -> Table:
    unset = list(msgspec.structs.astuple(cls()))
    assert not any(unset), cls  # protobuf has no other defaults
    fields = _make_fields(cls)
    lines = tuple(_make_line(cls, field) for field in fields)
    by_key = {}
    for line in lines:
        number = line.field.number
        if line.kind > LAST_VARINT:
            by_key[number << 3 | LENGTH] = line
            continue
        by_key[number << 3 | VARINT] = line
        if line.repeated:
            by_key[number << 3 | LENGTH] = replace(line, kind=PACKED)
    return Table(cls.__name__, cls, cls.__struct_fields__, fields, lines, unset, by_key)


def _make_fields(cls: type[Message]) -> tuple[Field, ...]:
    hints = get_type_hints(cls, include_extras=True)
    tagged = [(name, *_unwrap(hints[name])) for name in cls.__struct_fields__]
    fields = []
    for name, tag, base, repeated, optional in tagged:
        kind = {bytes: "bytes", str: "string", bool: "bool", int: tag.kind}.get(base, "message")
        rivals = tuple(other for other, its, *_ in tagged if tag.oneof and its.oneof == tag.oneof and other != name)
        message = base if kind == "message" else None
        fields.append(Field(name, tag.number, kind, repeated, optional, tag.oneof, message, rivals))
    return tuple(sorted(fields, key=lambda field: field.number))


def _make_line(cls: type[Message], field: Field) -> Line:
    index_of = cls.__struct_fields__.index
    kind = KINDS[field.kind]
    least, most = _RANGES.get(field.kind, (0, 0))
    return Line(
        field=field,
        index=index_of(field.name),
        kind=kind,
        repeated=field.repeated,
        optional=field.optional,
        rivals=tuple(map(index_of, field.rivals)),
        key=varint(field.number << 3 | (VARINT if kind <= LAST_VARINT and not field.repeated else LENGTH)),
        least=least,
        most=most,
    )


def _unwrap(hint: Any) -> tuple[Tag, Any, bool, bool]:
    """A hint such as `Annotated[tuple[KeyValue, ...], Tag(2)]` as its tag, its type, and whether many or none are fine."""
    assert get_origin(hint) is Annotated, hint
    base, tag = get_args(hint)
    if get_origin(base) is tuple:
        return tag, get_args(base)[0], True, False
    if get_origin(base) in (Union, types.UnionType):
        return tag, get_args(base)[0], False, True
    return tag, base, False, False
