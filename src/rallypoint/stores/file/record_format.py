"""The bytes of a store file, sans-IO: a head that says what is committed, and a log of records.

The head is written after the record that it commits, and twice: a writer that is killed leaves one whole copy behind.
Beyond the end that the head names nothing is read; before that end every byte is covered by a checksum, so that damage
is noticed and not taken for an end.

Compaction writes the present data as a new generation of the log, in front of the old one if there is room and behind
it otherwise, and commits that by the head alone.  The old log stays until it is overwritten, so that a process can still
read its last records: their checksums tell whether they are there.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from rallypoint.stores.data import KeyValues, Operation, Verb, W

_ANY_FORMAT = b"rallypoint store file, format "
MAGIC = _ANY_FORMAT + b"1\n"
_COPY = struct.Struct("<Q16sQQQQQQQ")
_CHECKSUM = struct.Struct("<I")
_COPY_SIZE = _COPY.size + _CHECKSUM.size
FIRST_COPY = len(MAGIC)
SECOND_COPY = FIRST_COPY + _COPY_SIZE
LOG_START = 256

_FRAME = struct.Struct("<II")  # the length of the content, and a checksum of both
_PART = struct.Struct("<BII")  # the verb, the lengths of key and value
_SNAPSHOT_RECORD = 1 << 20

# A log is compacted when it has outgrown both this and twice the data that it began with.
COMPACT_FROM = 1 << 20


class StoreFileError(Exception):
    """The file is not, or no longer, what the store needs; the text says why, and what to do."""


class DamagedFileError(StoreFileError):
    """Bytes that were committed are not what was written."""


# The head -------------------------------------------------------------------------------------------------------------


class Head(NamedTuple):
    """What is committed."""

    commits: int
    incarnation: bytes
    # The log is [start, end); up to `resume` it repeats what the generation before had come to.
    generation: int
    start: int
    resume: int
    end: int
    previous_end: int
    # How many have opened the file and have not said that they leave; and how many have said so.
    users: int
    departures: int

    @property
    def kept_to(self) -> int:
        """Beyond this there is nothing that a process may want to read."""
        return max(self.end, self.previous_end)


def first_head(incarnation: bytes, commits: int = 0) -> Head:
    """An empty log, of a run of its own."""
    return Head(commits, incarnation, 0, LOG_START, LOG_START, LOG_START, LOG_START, 0, 0)


def head_copy(head: Head) -> bytes:
    """One of the two copies."""
    content = _COPY.pack(*head)
    return content + _CHECKSUM.pack(zlib.crc32(content))


def head_bytes(head: Head) -> bytes:
    """All that comes before the log."""
    return (MAGIC + 2 * head_copy(head)).ljust(LOG_START, b"\0")


def read_head(raw: bytes) -> Head | None:
    """What is committed, by the newer copy of those that are whole; None where neither is."""
    copies = (read_copy(raw, FIRST_COPY), read_copy(raw, SECOND_COPY))
    return max((copy for copy in copies if copy is not None), key=lambda copy: copy.commits, default=None)


def read_copy(raw: bytes, at: int) -> Head | None:
    """One copy of the head; None where it is not whole."""
    content, checksum = raw[at : at + _COPY.size], raw[at + _COPY.size : at + _COPY_SIZE]
    if len(checksum) < _CHECKSUM.size or _CHECKSUM.unpack(checksum)[0] != zlib.crc32(content):
        return None
    return Head(*_COPY.unpack(content))


def opened_head(raw: bytes, size: int, in_use: bool) -> Head | None:
    """The head of a file that begins with `raw`, None where it has none yet; StoreFileError if it is not to be touched."""
    if not raw.startswith(MAGIC[: len(raw)]):
        if raw.startswith(_ANY_FORMAT):
            raise StoreFileError("it was written by another version of Rallypoint; remove it, or use that version")
        raise StoreFileError(
            f"it is no store file of Rallypoint's, as it begins with {raw[:16]!r}; give the path of a new file"
        )
    head = read_head(raw)
    if head is None and (in_use or size > LOG_START):
        raise DamagedFileError("its head is damaged; end the processes that use it, and remove it")
    return head


# Records --------------------------------------------------------------------------------------------------------------


def seed(head: Head) -> int:
    """With what checksums begin: a record of another run, or of another generation, does not pass for one of this."""
    return zlib.crc32(head.incarnation + b"%d" % head.generation)


def record(operations: Iterable[Operation], seed: int) -> bytes:
    """Some operations as they are written."""
    parts: list[bytes] = []
    for verb, key, value in operations:
        parts += (_PART.pack(verb, len(key), len(value)), key, value)
    content = b"".join(parts)
    return _FRAME.pack(len(content), _checksum(content, seed)) + content


def read_log(log: bytes, at: int, seed: int) -> list[Operation]:
    """The operations of a part of the log that begins at the byte `at` of its file, and holds whole records only."""
    operations: list[Operation] = []
    place, view = 0, memoryview(log)
    while place < len(log):
        content = place + _FRAME.size
        if content <= len(log):
            length, checksum = _FRAME.unpack_from(log, place)
            if content + length <= len(log) and _checksum(view[content : content + length], seed) == checksum:
                operations += _operations(view[content : content + length])
                place = content + length
                continue
        raise DamagedFileError(
            f"the record at byte {at + place} is damaged, so that nothing in it can be relied on; end the processes that "
            f"use it, and remove it"
        )
    return operations


def _operations(content: memoryview) -> Iterator[Operation]:
    place = 0
    while place < len(content):
        verb, key_size, value_size = _PART.unpack_from(content, place)
        key = place + _PART.size
        value = key + key_size
        place = value + value_size
        yield Operation(Verb(verb), bytes(content[key:value]), bytes(content[value:place]))


def _checksum(content: bytes | memoryview, seed: int) -> int:
    return zlib.crc32(content, zlib.crc32(_CHECKSUM.pack(len(content)), seed))


# Compaction -----------------------------------------------------------------------------------------------------------


def is_long(head: Head) -> bool:
    """Whether the log has grown much larger than what it began with."""
    return head.end - head.resume > max(COMPACT_FROM, 2 * (head.resume - head.start))


def snapshot(data: KeyValues[W], seed: int) -> bytes:
    """All data as a log, in records of moderate size."""
    contents = [Operation(Verb.PUT, key, data.get(key)) for key in data.values]
    contents += [Operation(Verb.PUSH, key, entry) for key, entries in data.queues.items() for entry in entries]
    records: list[bytes] = []
    begin = size = 0
    for at, (_, key, value) in enumerate(contents, 1):
        size += len(key) + len(value)
        if size > _SNAPSHOT_RECORD or at == len(contents):
            records.append(record(contents[begin:at], seed))
            begin, size = at, 0
    return b"".join(records)


def next_generation(head: Head) -> Head:
    """The head under which a snapshot is written; `placed` says where."""
    return head._replace(commits=head.commits + 1, generation=head.generation + 1, previous_end=head.end)


def placed(head: Head, size: int) -> Head:
    """A generation that begins with a snapshot of that size, where it overwrites nothing of the one before."""
    start = LOG_START if LOG_START + size <= head.start else head.end
    return head._replace(start=start, resume=start + size, end=start + size)


def is_kept(head: Head, offset: int) -> bool:
    """Whether the generation before may still be read from `offset` on."""
    return head.end <= offset or head.previous_end <= head.start
