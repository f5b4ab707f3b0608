"""The keys of a store file, without writing to it: to open a store would start it anew where no process uses it any more.

torch's file is a log of keys and values, each with its length before it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
from contextlib import suppress

from rallypoint.stores.data import KeyValues, Waiter
from rallypoint.stores.errors import StoreError
from rallypoint.stores.file import locks, record_format
from rallypoint.stores.file.locked_file import read_at
from rallypoint.stores.file.record_format import LOG_START, StoreFileError

_LENGTH = struct.Struct("=I")
_TORCH_START = _LENGTH.pack(len(b"refcount/")) + b"refcount/"
_TORCH_KEY, _TORCH_DELETED = b"/", b"-/"
_SURELY_OURS = len(b"rallypoint store file")
_WORDS = {
    errno.ENOENT: "there is no such file",
    errno.ENOTDIR: "a part of its path is no folder",
    errno.EACCES: "this user may not read it",
}


def read_keys(path: str, timeout_s: float) -> dict[bytes, bytes]:
    """The values of all keys in a store file, ours or torch's; StoreError says why it cannot be read."""
    try:
        # Without waiting, as opening a pipe would.
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            return _read(file, timeout_s)
        finally:
            os.close(file)
    except (StoreFileError, TimeoutError) as exc:
        raise StoreError(f"the store file {path} cannot be read: {exc}") from exc
    except OSError as exc:
        why = _WORDS.get(exc.errno or 0, exc.strerror or str(exc))
        raise StoreError(f"the store file {path} cannot be read: {why}") from exc


def _read(file: int, timeout_s: float) -> dict[bytes, bytes]:
    if not stat.S_ISREG(os.fstat(file).st_mode):
        raise StoreFileError("it is no regular file; give the path of one")
    start = os.pread(file, LOG_START, 0)
    if start.startswith(_TORCH_START):
        locks.retry_lock(lambda: _try_lock_as_torch(file), timeout_s)
        return _torchs(read_at(file, 0, os.fstat(file).st_size))
    if not record_format.MAGIC.startswith(start[:_SURELY_OURS]):
        raise StoreFileError(
            f"it is a store file of neither Rallypoint's nor torch's, as it begins with {start[:16]!r}"
        )
    locks.lock(file, locks.SHARED, timeout_s)
    return _ours(file)


def _ours(file: int) -> dict[bytes, bytes]:
    head = record_format.opened_head(os.pread(file, LOG_START, 0), os.fstat(file).st_size, in_use=False)
    if head is None:
        return {}
    data = KeyValues[Waiter]()
    for operation in record_format.read_log(read_at(file, head.start, head.end), head.start, record_format.seed(head)):
        data.apply(operation)
    return {key: data.get(key) for key in data.values}


def _try_lock_as_torch(file: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return True
    return False


def _torchs(log: bytes) -> dict[bytes, bytes]:
    """What a log of torch's adds up to; what a killed writer left at its end does not count, as with torch."""
    found: dict[bytes, bytes] = {}
    place = 0
    while (key_end := _end(log, place)) is not None and (value_end := _end(log, key_end)) is not None:
        key, value = log[place + _LENGTH.size : key_end], log[key_end + _LENGTH.size : value_end]
        if key.startswith(_TORCH_DELETED):
            found.pop(key.removeprefix(_TORCH_DELETED), None)
        elif key.startswith(_TORCH_KEY):
            found[key.removeprefix(_TORCH_KEY)] = value
        place = value_end
    return found


def _end(log: bytes, place: int) -> int | None:
    """Where a text ends whose length stands at this place; None where a part of it is missing."""
    if place + _LENGTH.size > len(log):
        return None
    end: int = place + _LENGTH.size + _LENGTH.unpack_from(log, place)[0]
    return end if end <= len(log) else None
