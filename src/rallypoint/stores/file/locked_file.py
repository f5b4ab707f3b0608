"""An open store file: its bytes, its locks, and its users.

Each user holds a shared lock on it, which the system releases when the process ends, however it ends.  So a process that
opens the file knows whether others use it; if none does, and not all that came have said that they left, its run was
killed, and the file is started anew.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from contextlib import suppress
from pathlib import Path

from rallypoint.stores.data import Operation
from rallypoint.stores.file import locks, record_format
from rallypoint.stores.file.record_format import LOG_START, DamagedFileError, Head, StoreFileError

_log = logging.getLogger(__name__)

REMOVED = "it was removed or replaced while in use; let all processes of the run open it again"


class LockedFile:
    """A file that was opened, created or started anew.  With an `incarnation`, only the file of that very run will do.

    A guest is not counted among the users: another process is counted for it.  For one thread at a time; all methods but
    `lock` and `close` need the lock.
    """

    def __init__(
        self, path: Path, lock_timeout_s: float, incarnation: bytes | None = None, *, is_guest: bool = False
    ) -> None:
        self._path = path
        self._is_guest = is_guest
        deadline = time.monotonic() + lock_timeout_s
        while True:
            self._file = self._open(create=incarnation is None)
            try:
                self._identity = os.fstat(self._file)
                if not stat.S_ISREG(self._identity.st_mode):
                    raise StoreFileError("it is no regular file; give the path of one, or of none that exists")
                self.lock(locks.EXCLUSIVE, max(deadline - time.monotonic(), 0.0))
                if self.is_named():
                    locks.probe(self._file, path)
                    self.incarnation = self._enter(incarnation)
                    self.unlock()
                    return
            except BaseException:
                self.close()
                raise
            self.close()  # the last of its users has removed it in this moment

    def lock(self, kind: int, lock_timeout_s: float) -> None:
        """Takes the turn, for reading or for writing."""
        locks.lock(self._file, kind, lock_timeout_s)

    def unlock(self) -> None:
        locks.unlock(self._file, locks.TURN)

    def close(self) -> None:
        """Lets the file go, and with it all locks; those that a forked child shares with its parent stay."""
        os.close(self._file)

    def leave(self, world_size: int, counted: bool) -> None:
        """One user goes.  The last one removes the file, if as many as `world_size` have been there and gone."""
        raw, head = self.read_head()
        departures = head.departures + counted
        if 0 <= world_size <= departures and locks.try_lock(self._file, locks.PRESENCE, locks.EXCLUSIVE):
            if self.is_named():
                self._path.unlink()
        else:
            self.mend(raw, head)
            users = max(head.users - (not self._is_guest), 0)
            self.commit(head._replace(commits=head.commits + 1, users=users, departures=departures))

    def is_named(self) -> bool:
        """Whether the path still leads to the same file."""
        try:
            return os.path.samestat(self._path.stat(), self._identity)
        except FileNotFoundError:
            return False

    def read_raw(self) -> bytes:
        """The head as it stands there: where it has not changed, nothing has."""
        return os.pread(self._file, LOG_START, 0)

    def read_head(self) -> tuple[bytes, Head]:
        """The head as it stands there, and what it says."""
        raw = self.read_raw()
        head = record_format.read_head(raw)
        if head is None:
            raise DamagedFileError("its head is damaged; end the processes that use it, and remove it")
        return raw, _of_run(self.incarnation, head)

    def read_log(self, start: int, end: int, seed: int) -> list[Operation]:
        """The operations of a part of the log."""
        return record_format.read_log(read_at(self._file, start, end), start, seed)

    def mend(self, raw: bytes, head: Head) -> None:
        """Removes what a killed writer left, be it half a head or half a record behind the end."""
        whole = record_format.read_head(raw)
        # The first copy is the first to be written again: before that, the second must be able to stand alone.
        if whole is not None and record_format.read_copy(raw, record_format.SECOND_COPY) != whole:
            write_at(self._file, record_format.head_copy(whole), record_format.SECOND_COPY)
        if os.fstat(self._file).st_size > head.kept_to:
            os.ftruncate(self._file, head.kept_to)

    def write_log(self, head: Head, place: int, content: bytes) -> None:
        """Writes where nothing is that counts; it counts when it is committed."""
        try:
            write_at(self._file, content, place)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._file, head.kept_to)
            raise

    def commit(self, head: Head) -> bytes:
        """Makes it so; returns the head as it stands there."""
        raw = record_format.head_bytes(head)
        write_at(self._file, raw[record_format.FIRST_COPY :], record_format.FIRST_COPY)
        return raw

    def _open(self, create: bool) -> int:
        try:
            return os.open(self._path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0), 0o600)
        except FileNotFoundError:
            if create:
                raise
            raise StoreFileError(REMOVED) from None

    def _enter(self, incarnation: bytes | None) -> bytes:
        alone = locks.try_lock(self._file, locks.PRESENCE, locks.EXCLUSIVE)
        raw = self.read_raw()
        found = head = record_format.opened_head(raw, os.fstat(self._file).st_size, in_use=not alone)
        if incarnation is not None:
            # A process that was here before may come back even when all others have been killed.
            head = _of_run(incarnation, head)
        elif head is None:
            head = record_format.first_head(os.urandom(16))
        elif head.users and alone:
            why = "nobody uses it any more, and not all have said so: its run was killed"
            _log.info("the store file %s is started anew: %s", self._path, why)
            head = record_format.first_head(os.urandom(16), head.commits + 1)
        locks.try_lock(self._file, locks.PRESENCE, locks.SHARED)
        head = head._replace(commits=head.commits + 1, users=head.users + (not self._is_guest))
        if found is None:
            write_at(self._file, record_format.head_bytes(head), 0)
        else:
            self.mend(raw, head)
            self.commit(head)
        return head.incarnation


def _of_run(incarnation: bytes, head: Head | None) -> Head:
    if head is None or head.incarnation != incarnation:
        raise StoreFileError(
            "another run has started it anew, as it took this one for dead; that happens when the locks of all its "
            "processes were lost, or when the file was replaced: give each run a path of its own"
        )
    return head


def read_at(file: int, start: int, end: int) -> bytes:
    """Reads all of it, from the byte `start` to the one before `end`."""
    parts, place = [], start
    while place < end:
        part = os.pread(file, min(end - place, 1 << 30), place)
        if not part:
            raise DamagedFileError(
                f"it was cut off at byte {place}, and {end} were written; end the processes that use it, and remove it"
            )
        parts.append(part)
        place += len(part)
    return b"".join(parts)


def write_at(file: int, content: bytes, place: int) -> None:
    """Writes all of it, from the first byte to the last."""
    view = memoryview(content)
    while view:
        written = os.pwrite(file, view, place)
        view, place = view[written:], place + written
