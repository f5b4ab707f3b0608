"""What is in a state file: a first line that names the format, then a line for every change of a run's record.

A line holds a checksum and JSON: a run and its record, or a run alone, which is forgotten.  The last line of a run
counts.  A crash during a write damages only the end of the file, so a damaged end is skipped and said.  Damage anywhere
else is an error.
"""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from rallypoint.errors import RendezvousStateError

FORMAT = 2
"""The files of version 0.1 count as format 1, though they do not say so."""
HEADER = b"rallypoint state file, format %d\n" % FORMAT

_ANY_HEADER = re.compile(rb"rallypoint state file, format ([1-9][0-9]{0,8})\n")
_HEADER_LIMIT_BYTES = 100
_NUL_LIMIT_BYTES = 64 * 1024
_VERSION_0_1 = b'{"v":'

_START_ANEW = "move it away and start with a new one: the nodes then tell the server what they know (rule 14)"


class Contents(NamedTuple):
    """What was read: the newest record of each run, and how much of the file can be used."""

    records: dict[str, bytes]
    length_bytes: int
    """Of the header and the whole lines; what follows them is to be cut off."""
    damage: str
    """What is wrong with the rest of the file, and what is lost with it; empty if there is no rest."""


class _Change(msgspec.Struct, omit_defaults=True):
    """What a line says of a run: its new record, or, without one, that the run is forgotten."""

    run: str
    record: msgspec.Raw = msgspec.Raw()


_DECODER = msgspec.json.Decoder(_Change)


def encode(run: str, record: bytes = b"") -> bytes:
    """A line; without a record it says that the run is forgotten."""
    assert b"\n" not in record, "a record is one line"
    text = msgspec.json.encode(_Change(run, msgspec.Raw(record)) if record else _Change(run))
    return b"%08x %b\n" % (zlib.crc32(text), text)


def read(file: BinaryIO, path: Path) -> Contents:
    """Read a file from its start; RendezvousStateError names the path if it is no state file, or damaged before its end."""
    first = file.readline(_HEADER_LIMIT_BYTES)
    if first == HEADER:
        return _read_lines(file, path)
    # A crash during the first write may have left a part of the header, or nothing; then NUL bytes.
    rest = file.read(_NUL_LIMIT_BYTES)
    if HEADER.startswith(first.rstrip(b"\0")) and len(rest) < _NUL_LIMIT_BYTES and not rest.strip(b"\0"):
        return Contents({}, 0, "a crash interrupted the first write of the file.  Nothing is lost" if first else "")
    raise _refusal(first, path)


def _refusal(first: bytes, path: Path) -> RendezvousStateError:
    header = _ANY_HEADER.fullmatch(first)
    if first.startswith(_VERSION_0_1):
        why = (
            f"the state file {path} was written by version 0.1 of Rallypoint, which this version does not read; "
            f"{_START_ANEW}"
        )
    elif header is not None and int(header[1]) > FORMAT:
        why = (
            f"the state file {path} has format {int(header[1])}, and this version of Rallypoint reads format {FORMAT}; "
            f"start the version that wrote it, or give the path of a new file"
        )
    else:
        why = (
            f"line 1 of the state file {path}: expected {HEADER.decode().strip()!r}, found "
            f"{first[:40].decode(errors='replace')!r}: this is no state file of Rallypoint, or its beginning is "
            f"damaged; give the path of a new file"
        )
    return RendezvousStateError(why)


def _read_lines(file: BinaryIO, path: Path) -> Contents:
    records: dict[str, bytes] = {}
    length_bytes, damaged_from = len(HEADER), 0
    damaged: list[bytes] = []
    for number, line in enumerate(file, 2):
        if not (line.endswith(b"\n") and line[:9] == b"%08x " % zlib.crc32(line[9:-1])):
            damaged_from = damaged_from or number
            damaged.append(line)
        elif damaged:
            what = f"expected a line with the right checksum, such as line {number}, found one with a wrong checksum"
            raise _damage(path, damaged_from, what)
        else:
            try:
                change = _DECODER.decode(line[9:])
            except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
                what = f"expected a run and its record, found something else under a right checksum ({exc})"
                raise _damage(path, number, what) from exc
            length_bytes += len(line)
            records.pop(change.run, None)
            if record := bytes(change.record):
                records[change.run] = record
    return Contents(records, length_bytes, _describe_end(damaged, damaged_from))


def _damage(path: Path, number: int, what: str) -> RendezvousStateError:
    return RendezvousStateError(
        f"line {number} of the state file {path} is damaged: {what}; restore a copy of the file, or {_START_ANEW}"
    )


def _describe_end(damaged: list[bytes], damaged_from: int) -> str:
    if not damaged:
        return ""
    if len(damaged) == 1 and not damaged[0].endswith(b"\n"):
        return f"line {damaged_from} is incomplete: a crash interrupted the last write.  Nothing is lost that was confirmed"
    return (
        f"the checksum is wrong from line {damaged_from} on.  If a crash interrupted the last write, nothing is lost that "
        f"was confirmed.  If the disk damaged it, the newest changes of some runs may be lost: the nodes tell the server "
        f"what they know (rule 14)"
    )
