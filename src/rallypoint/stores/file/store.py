"""A store in a file that processes share, on one machine or through a network file system.

Waiting means looking again, at first after a millisecond and later every 50: a file tells nobody that it has changed.

What differs from torch's FileStore, and why:

- A run that starts again on the path of one that was killed finds an empty store, where torch's finds the old keys.  A
  process that has the file open holds a lock on it; one that opens it when none does, and not all that did have closed
  it, starts it anew.  As long as one process of the killed run lives, the file is in use, and its keys are there.
- A file that all have closed keeps its keys, as torch's does: processes of one run may come one after the other.  With a
  `world_size` the last one removes it, once as many have been there, clones not counted.  So a run that ended well
  without a `world_size` is seen by the next one on that path: remove the file in between.
- There are queues and barriers, and `num_keys` and `list_keys` show the user's keys only.
- What is wrong with a path is said at once; torch's tries for five minutes.
- The two do not read each other's files.

Values and keys are limited as a TCP server limits them.  A path on a network file system wants locks that reach all
machines: NFS has them, Lustre if it is mounted with `flock`.
"""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from rallypoint.stores.base import DEFAULT_TIMEOUT, in_64_bits
from rallypoint.stores.errors import StoreError, StoreTimeoutError
from rallypoint.stores.file.append_log import AppendLog
from rallypoint.stores.file.locked_file import REMOVED
from rallypoint.stores.file.record_format import StoreFileError
from rallypoint.stores.local import LocalData, LocalStore
from rallypoint.stores.tcp import wire
from rallypoint.stores.tcp.wire import Query, StoreLimits
from rallypoint.waiting import in_seconds

_LOCK_TIMEOUT_S = 30.0
"""A process keeps the lock for one operation; a caller that does not get it for so long is told that something is wrong."""

_NOT_ALLOWED = "this user may not read and write it, or may not create it in its folder"
_UNCHANGED = "nothing was changed, and what was in it is still there"
_WORDS = {
    errno.ENOENT: "its folder does not exist; make it first",
    errno.ELOOP: "it is a symbolic link, whose maker would choose where the file is made; give the file's own path",
    errno.EISDIR: "it is a folder; give the path of a file",
    errno.ENOTDIR: "a part of its path is no folder",
    errno.EACCES: _NOT_ALLOWED,
    errno.EPERM: _NOT_ALLOWED,
    errno.EROFS: "its file system is read-only; give a path on another one",
    errno.ENOSPC: f"its disk is full; {_UNCHANGED}",
    errno.EDQUOT: f"the quota of the disk is used up; {_UNCHANGED}",
    errno.EFBIG: f"it may not grow any more (see `ulimit -f`); {_UNCHANGED}",
    errno.ESTALE: REMOVED,
}


class FileStore(LocalStore):
    """A store in a file; the arguments are those of torch's FileStore.

    The file is created if need be, and removed when as many as `world_size` have opened and closed it and no process has
    it open; it stays if `world_size` is negative.  A store is closed by `close()`, or when it is forgotten.

    Threads may share a store; none of them waits for another's wait.  A forked child may go on using it.
    """

    _shared: AppendLog

    _first_look_s = 0.001
    _longest_look_s = 0.05

    def __init__(
        self,
        path: str | os.PathLike[str],
        world_size: int = -1,
        *,
        timeout: timedelta = DEFAULT_TIMEOUT,
        limits: StoreLimits | None = None,
        _clone_of: AppendLog | None = None,
    ) -> None:
        self.path = os.fspath(path)
        self._where = f" in the store file {self.path}"
        self._world_size = in_64_bits(world_size)
        self._given_limits = limits = limits or StoreLimits()
        # A TCP server counts the slash that its clients put before every key.
        self._limits = replace(limits, key_bytes=limits.key_bytes - 1)
        self._longest_value = limits.unread_bytes // 2  # as a TCP server has it
        self.set_timeout(timeout)
        with _in_words(f"open the store file {self.path}"):
            if _clone_of is not None:
                self._shared = _clone_of.clone(self._lock_timeout_s())
            else:
                self._shared = AppendLog(_real_path(Path(self.path)), world_size, self._lock_timeout_s())
        self._finalizer = weakref.finalize(self, self._shared.close)

    def __repr__(self) -> str:
        return f"FileStore({self.path!r}, {self._world_size})"

    def __enter__(self) -> FileStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Says that this user goes, and lets the file go.  A call that is waiting gets a `StoreError`."""
        self._finalizer()

    def delete_key(self, key: str) -> bool:
        """Always True: torch's FileStore says so of an absent key too, and programs that move here rely on it."""
        super().delete_key(key)
        return True

    def clone(self) -> FileStore:
        return FileStore(
            self.path, self._world_size, timeout=self._timeout, limits=self._given_limits, _clone_of=self._shared
        )

    @contextmanager
    def _open(self, action: str, query: Query, *texts: bytes, write: bool = False) -> Iterator[LocalData]:
        action += self._where
        if why := wire.why_too_large(query, texts, self._limits):
            raise StoreError(f"cannot {action}: {why}")
        with _in_words(action), self._shared.opened(self._lock_timeout_s(), write=write) as data:
            yield data

    def _lock_timeout_s(self) -> float:
        return max(in_seconds(self._timeout), _LOCK_TIMEOUT_S)


@contextmanager
def _in_words(action: str) -> Iterator[None]:
    try:
        yield
    except StoreFileError as exc:
        raise StoreError(f"cannot {action}: {exc}") from exc
    except TimeoutError as exc:
        raise StoreTimeoutError(f"cannot {action}: {exc}") from exc
    except OSError as exc:
        why = _WORDS.get(exc.errno or 0, exc.strerror or str(exc))
        raise StoreError(f"cannot {action}: {why}") from exc


def _real_path(path: Path) -> Path:
    """The file itself, because a working directory may change and a link may be replaced.

    A link to nothing is not followed: opening the link itself says so.
    """
    return path.resolve() if path.exists() else path.parent.resolve() / path.name
