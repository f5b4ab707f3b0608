"""Functions that write and read one kind of message, each made from its table: what a loop over the table would do, in a row.

Every call to etcd passes through two of them, and where many threads share the interpreter each of their steps counts: they
take half as many as such a loop.  They read what etcd writes, which is fields in the order of their numbers; at the first
thing that is otherwise they leave the message to `any_order`.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from functools import partial
from textwrap import indent
from typing import Any

from rallypoint.etcd_client.any_order import read_in_any_order, signed, skip_unknown, text
from rallypoint.etcd_client.errors import EtcdMessageError
from rallypoint.etcd_client.tables import (
    BOOL,
    BYTES,
    INT32,
    INT64,
    LAST_VARINT,
    MESSAGE,
    PACKED,
    STRING,
    Line,
    Message,
    Table,
    table_of,
)
from rallypoint.etcd_client.varints import LONGEST, SIZE, SIZES, read_long_varint, varint

__all__ = ["reader_of", "readers", "writer_of", "writers"]

Reader = Callable[[bytes], Message]
Writer = Callable[[Any], bytes]

readers: dict[type[Message], Reader] = {}
writers: dict[type[Message], Writer] = {}

_LONGEST_SHORT_KEY = 0x7F
_LONGEST_REMEMBERED = 64
"""A header has 44 bytes at the most; what else it may be is not worth the memory."""


def reader_of(kind: type[Message]) -> Reader:
    """What reads such a message, made when it is first needed; two threads that both make it make the same."""
    if kind not in readers:
        readers[kind] = _make_reader(table_of(kind))
    return readers[kind]


def writer_of(kind: type[Message]) -> Writer:
    """What writes such a message, made likewise."""
    if kind not in writers:
        writers[kind] = _make_writer(table_of(kind))
    return writers[kind]


def _make(name: str, source: str, names: dict[str, Any]) -> Callable[..., Any]:
    """The one function that some source defines.  All of it is written here, and nothing that anybody sent is in it."""
    file = f"<rallypoint: {name}>"
    linecache.cache[file] = (
        len(source),
        None,
        source.splitlines(keepends=True),
        file,
    )  # for whoever sees it in a traceback
    exec(compile(source, file, "exec"), names)
    made: Callable[..., Any] = names[name]
    return made


# Writing --------------------------------------------------------------------------------------------------------------


def _make_writer(table: Table) -> Writer:
    """A function such as this one, for all fields of the message:

    def write_PutRequest(message):
        out = b""
        value = message.key
        if value:
            if type(value) is not bytes:
                value = raw(line_1, value)
            size = len(value)
            out += b"\\n" + (SIZE[size] if size < 1024 else varint(size)) + value
        …
        return out
    """
    name = f"write_{table.name}"
    names: dict[str, Any] = {"SIZE": SIZE, "varint": varint, "number": _number, "packed": _packed, "raw": _raw}
    lines = [f"def {name}(message):", '    out = b""']
    for line in table.lines:
        number = line.field.number
        names[f"line_{number}"] = line
        if line.field.message is not None:
            names[f"write_{number}"] = writer_of(line.field.message)
        # What is empty is not set, unless it is optional: then only None is not set.
        lines += [f"    value = message.{line.field.name}", f"    if value{' is not None' if line.optional else ''}:"]
        lines += [indent(_writing(line, number), " " * 8)]
    return _make(name, "\n".join([*lines, "    return out", ""]), names)


def _writing(line: Line, number: int) -> str:
    """How a field is written whose value is set."""
    if line.kind <= LAST_VARINT:
        return f"out += {line.key!r} + {'packed' if line.repeated else 'number'}(line_{number}, value)"
    sized = {
        MESSAGE: f"value = write_{number}(value)",
        STRING: "value = value.encode()",
        BYTES: f"if type(value) is not bytes:\n    value = raw(line_{number}, value)",
    }[line.kind]
    whole = f"{line.key!r} + (SIZE[size] if size < {SIZES} else varint(size)) + value"
    if not line.repeated:
        return f"{sized}\nsize = len(value)\nout += {whole}"
    # Joined in the end: to add them one by one would copy all that is there for each of them.
    sized = indent(f"{sized}\nsize = len(value)\nparts.append({whole})", " " * 4)
    return f'parts = []\nfor value in value:\n{sized}\nout += b"".join(parts)'


def _packed(line: Line, values: Any) -> bytes:
    numbers = b"".join([_number(line, value) for value in values])
    return varint(len(numbers)) + numbers


def _number(line: Line, value: Any) -> bytes:
    if not isinstance(value, int) or not line.least <= value <= line.most:
        raise EtcdMessageError(f"{line.field.name} is {value!r}, which is no {line.field.kind}")
    return varint(value)


def _raw(line: Line, value: Any) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise EtcdMessageError(f"{line.field.name} must be bytes, and is {value!r}")
    return bytes(value)


# Reading --------------------------------------------------------------------------------------------------------------

_READ_NUMBER = f"""\
if (number := wire[at + 1]) < 0x80:
    at += 2
elif (second := wire[at + 2]) < 0x80:
    number += (second << 7) - 0x80
    at += 3
elif (third := wire[at + 3]) < 0x80:
    number += (second << 7) + (third << 14) - 0x4080
    at += 4
else:
    number, size = read_long_varint(data[at + 1 : at + {1 + LONGEST}])
    if not size:
        return otherwise(data)
    at += 1 + size"""

_RECALL = f"""\
part = wire[start:at]
last, value = last_{{number}}[0]
if part != last:
    value = read_{{number}}(part)
    if number <= {_LONGEST_REMEMBERED}:
        last_{{number}}[0] = part, value"""


def _make_reader(table: Table) -> Reader:
    """A function such as this one, for all fields of the message that are written in a row:

    def read_PutResponse(data):
        end, at = len(data), 0
        wire = data + b"\\0"
        its_header, its_prev_kv, = unset
        try:
            if wire[at] == 10:
                …  # the number behind it
                start, at = at, at + number
                if at > end:
                    return otherwise(data)
                its_header = read_1(wire[start:at])
            …
            if at < end:
                at = skip_unknown(data, at)
            if at == end:
                return make(its_header, its_prev_kv)
        except IndexError:
            pass
        return otherwise(data)

    No field begins with the byte that is put behind the data, so that whoever comes to it finds no more fields; and whoever
    has read beyond it, because a size or a number is not what it should be, is not at the end, or finds no byte at all.
    """
    function = f"read_{table.name}"
    names: dict[str, Any] = {
        "unset": tuple(table.unset),
        "make": table.make,
        "name": table.name,
        "read_long_varint": read_long_varint,
        "signed": signed,
        "text": text,
        "skip_unknown": partial(skip_unknown, table),
        "otherwise": partial(read_in_any_order, table),
    }
    found = [f"its_{name}" for name in table.names]
    source = [
        f"def {function}(data):",
        "    end, at = len(data), 0",
        '    wire = data + b"\\0"',
        f"    {', '.join(found)}, = unset" if found else "",
        "    try:",
        *(indent(_reading(key, line, names), " " * 8) for key, line in table.by_key.items() if _is_read(key, line)),
        "        if at < end:\n            at = skip_unknown(data, at)",
        f"        if at == end:\n            return make({', '.join(found)})",
        "    except IndexError:\n        pass",
        "    return otherwise(data)\n",
    ]
    return _make(function, "\n".join(source), names)


def _is_read(key: int, line: Line) -> bool:
    """Whether a field is read in a row: not if its number is high, or if it is many numbers, of which etcd sends none."""
    return key <= _LONGEST_SHORT_KEY and not (line.repeated and (line.kind <= LAST_VARINT or line.kind == PACKED))


def _reading(key: int, line: Line, names: dict[str, Any]) -> str:
    """How a field is read that may stand at this place."""
    number, its = line.field.number, f"its_{line.field.name}"
    steps = [_READ_NUMBER]
    if line.kind <= LAST_VARINT:
        if line.kind in (INT64, INT32):  # only a long one can be below 0
            steps.append(f"    number = signed({line.kind}, number)")
        steps.append(f"{its} = number{' != 0' if line.kind == BOOL else ''}")
    else:
        steps.append("start, at = at, at + number")
        if line.kind != BYTES:
            steps.append("if at > end:\n    return otherwise(data)")
        value = "wire[start:at]"
        if line.kind == STRING:
            value = f"text(name, {line.field.name!r}, {value})"
        elif line.field.message is not None:
            names[f"read_{number}"] = reader_of(line.field.message)
            value = f"read_{number}({value})"
            if line.field.message.RECURS:
                names[f"last_{number}"] = [(None, None)]
                steps.append(_RECALL.format(number=number))
                value = "value"
        steps.append(f"many.append({value})" if line.repeated else f"{its} = {value}")
    steps += [f"its_{rival} = None" for rival in line.field.rivals]
    inner = indent("\n".join(steps), " " * 4)
    if not line.repeated:
        return f"if wire[at] == {key}:\n{inner}"
    each = f"many = []\nwhile wire[at] == {key}:\n{inner}\n{its} = tuple(many)"
    return f"if wire[at] == {key}:\n{indent(each, ' ' * 4)}"
