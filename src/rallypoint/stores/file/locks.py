"""Locks on single bytes of a file, which belong to an open file and not to a process ("open file description" locks).

The older kind (lockf) belongs to the process: second stores in one process would not exclude each other, and closing any
descriptor of the file would drop them all.  flock has one lock a file, where a store file needs two.  Like both, these
reach other machines through NFS, and acquiring one makes the NFS client look at the file afresh.

A forked child shares its parent's open files and thus its locks: it has to close its copies, and open the file again.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path

from rallypoint.stores.file.record_format import StoreFileError
from rallypoint.waiting import Backoff, Deadline

# Far behind all data: some file systems (SMB) do not let others read or write a byte that is locked.
TURN = 1 << 62
PRESENCE = TURN + 1

# How soon a lock is tried again, and at the latest: no process keeps it for longer than one operation takes.
_PAUSES_S = 0.00005, 0.002

_NOT_NOW = (errno.EAGAIN, errno.EACCES)
_UNKNOWN = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)
# struct flock: Linux begins with type and whence, the BSDs and macOS with start and length.
_LINUX, _BSD = struct.Struct("@hhqqi0q"), struct.Struct("@qqihh")

SHARED, EXCLUSIVE, _NONE = fcntl.F_RDLCK, fcntl.F_WRLCK, fcntl.F_UNLCK


def try_lock(file: int, byte: int, kind: int) -> bool:
    """Locks a byte, or changes the kind of a lock that is held; False if another's lock is in the way."""
    try:
        _set_lock(file, byte, kind)
    except OSError as exc:
        if exc.errno in _NOT_NOW:
            return False
        if exc.errno in _UNKNOWN:
            raise StoreFileError(
                f"its file system knows no locks ({exc.strerror}), without which processes would destroy each other's "
                f"writes; put it on a file system that does, or use a TCP store"
            ) from exc
        raise
    return True


def lock(file: int, kind: int, timeout_s: float) -> None:
    """Lock the file; tries again and again, because the process that holds the lock may have been stopped."""
    retry_lock(lambda: try_lock(file, TURN, kind), timeout_s)


def retry_lock(try_once: Callable[[], bool], timeout_s: float) -> None:
    """Try until the lock is had; TimeoutError says that another process keeps it."""
    deadline, backoff = Deadline.after(timeout_s), Backoff(*_PAUSES_S)
    while not try_once():
        if not backoff.pause(deadline):
            raise TimeoutError(
                f"another process has been keeping its lock for {timeout_s:.3g} s; see whether one of them was stopped"
            )


def probe(file: int, path: Path) -> None:
    """See that a lock that is held cannot be had again; whether it reaches other machines cannot be seen from one."""
    try:
        second = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # it was removed in this moment, which is noticed later
    try:
        if os.path.sameopenfile(file, second) and try_lock(second, TURN, EXCLUSIVE):
            raise StoreFileError(
                "its file system grants one lock to two at a time, so that processes would destroy each other's writes; "
                "put it on a file system whose locks work, or use a TCP store"
            )
    finally:
        os.close(second)


def unlock(file: int, byte: int) -> None:
    """Lets a byte go."""
    _set_lock(file, byte, _NONE)


def _set_lock(file: int, byte: int, kind: int) -> None:
    if (command := getattr(fcntl, "F_OFD_SETLK", None)) is None:
        raise OSError(errno.ENOSYS, "this system has no locks that belong to an open file")
    is_linux = sys.platform == "linux"
    fcntl.fcntl(file, command, _LINUX.pack(kind, 0, byte, 1, 0) if is_linux else _BSD.pack(byte, 1, 0, kind, 0))
