"""The data to which the records of a store file add up.

Everything happens under the lock of the file: a process that gets it takes over what the others have written since, and a
writer writes its record, commits it by the head, and only then changes its own copy of the data, as every process does
that reads the record later.  Nothing is forced to the disk: a store outlives any of its processes, not its machine.

A waiting thread sees every record, and thus also keys that came and went between two looks; except where it did not look
for so long that the log was compacted twice (a megabyte at least each time): it then begins again with what there is.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rallypoint import forks
from rallypoint.stores.data import Operation
from rallypoint.stores.file import locks, record_format
from rallypoint.stores.file.locked_file import REMOVED, LockedFile
from rallypoint.stores.file.record_format import DamagedFileError, Head, StoreFileError
from rallypoint.stores.local import LocalData, SharedData

_log = logging.getLogger(__name__)

# A user that leaves does not wait for long to say so: the others find out without it.
_LEAVE_TIMEOUT_S = 5.0


class AppendLog(SharedData):
    """An open store file and its data, for all threads of a process; a forked child opens the file again by itself.

    The file is removed when `world_size` users have left, clones not counted, and no process has it open.  Raises
    `StoreFileError`, `OSError`, and `TimeoutError` where a lock is not to be had.
    """

    def __init__(
        self, path: Path, world_size: int, lock_timeout_s: float, *, _run: bytes | None = None, _is_guest: bool = False
    ) -> None:
        super().__init__()
        self._path = path
        self._world_size = world_size
        self._counted = _run is None
        self._closed = False
        # A child by fork is a guest of its parent's: many end without closing it, and are not taken for killed.
        self._is_guest = _is_guest
        self._file: LockedFile | None = LockedFile(path, lock_timeout_s, _run, is_guest=_is_guest)
        self.incarnation = self._file.incarnation
        self._forget()
        forks.release_in_children(self)

    def clone(self, lock_timeout_s: float) -> AppendLog:
        """The same file of the same run, opened once more."""
        return AppendLog(self._path, self._world_size, lock_timeout_s, _run=self.incarnation, _is_guest=self._is_guest)

    def _forget(self) -> None:
        self.data = LocalData()
        self.reloads = 0
        # The head as it was last seen, and whether the data are what it says.
        self._raw = b""
        self._head = record_format.first_head(self.incarnation)
        self._whole = False
        self._compact_from = 0

    def close(self) -> None:
        """Says that one user goes, and lets the file go."""
        self._closed = True
        # Not for ever: a signal may have come in the middle of an operation of this very thread.
        if not self.lock.acquire(timeout=_LEAVE_TIMEOUT_S):
            return
        try:
            file, self._file = self._file, None
            if file is not None:
                try:
                    with suppress(StoreFileError, OSError):
                        file.lock(locks.EXCLUSIVE, _LEAVE_TIMEOUT_S)
                        file.leave(self._world_size, self._counted)
                finally:
                    file.close()
        finally:
            self.lock.release()

    def forked(self) -> None:
        """In a forked child: nothing of the parent's is touched, least of all its locks."""
        self.lock = threading.Lock()
        self._is_guest, self._counted = True, False
        file, self._file = self._file, None
        if file is not None:
            file.close()
        self._forget()

    @contextmanager
    def opened(self, lock_timeout_s: float, *, write: bool = False) -> Iterator[LocalData]:
        thread_lock = self.lock  # a fork may replace it
        if not thread_lock.acquire(timeout=lock_timeout_s):
            raise TimeoutError(f"another thread has been using it for {lock_timeout_s:g} s")
        try:
            if self._closed:
                raise StoreFileError("it was closed here")
            if self._file is None:  # in a forked child
                self._file = LockedFile(self._path, lock_timeout_s, self.incarnation, is_guest=True)
            file = self._file
            file.lock(locks.EXCLUSIVE if write else locks.SHARED, lock_timeout_s)
            try:
                self._read_news(file)
                if write:
                    file.mend(self._raw, self._head)
                yield self.data
            finally:
                self.wake()
                if self._file is file:  # and this is no child that was forked just now
                    file.unlock()
        finally:
            thread_lock.release()

    # Reading ----------------------------------------------------------------------------------------------------------

    def _read_news(self, file: LockedFile) -> None:
        if not file.is_named():
            raise StoreFileError(REMOVED)
        if self._whole and file.read_raw() == self._raw:
            return
        raw, head = file.read_head()
        missed = self._missed(file, head) if self._whole else None
        news = file.read_log(head.start, head.end, record_format.seed(head)) if missed is None else missed
        with self._replaying(raw, head):
            if missed is None:
                self.data.clear()
                self.reloads += 1
            super().write(*news)

    def _missed(self, file: LockedFile, head: Head) -> list[Operation] | None:
        """What was written since this process last looked; None if a part of that is gone by now."""
        mine = self._head
        if head.generation == mine.generation:
            return file.read_log(mine.end, head.end, record_format.seed(head))
        if head.generation == mine.generation + 1 and record_format.is_kept(head, mine.end):
            with suppress(DamagedFileError):
                older = file.read_log(mine.end, head.previous_end, record_format.seed(mine))
                return older + file.read_log(head.resume, head.end, record_format.seed(head))
        return None

    @contextmanager
    def _replaying(self, raw: bytes, head: Head) -> Iterator[None]:
        """A thread that is interrupted in the middle does not know where it was, and begins again."""
        self._whole = False
        yield
        self._raw, self._head = raw, head
        self._whole = True

    # Writing ----------------------------------------------------------------------------------------------------------

    def write(self, *changes: Operation) -> None:
        if not changes:
            return
        file, head = self._file, self._head
        assert file is not None
        record = record_format.record(changes, record_format.seed(head))
        file.write_log(head, head.end, record)
        head = head._replace(commits=head.commits + 1, end=head.end + len(record))
        with self._replaying(file.commit(head), head):
            super().write(*changes)
        if record_format.is_long(head) and head.end >= self._compact_from:
            self._compact(file, head)

    def _compact(self, file: LockedFile, head: Head) -> None:
        fresh = record_format.next_generation(head)
        content = record_format.snapshot(self.data, record_format.seed(fresh))
        fresh = record_format.placed(fresh, len(content))
        try:
            file.write_log(head, fresh.start, content)
            with self._replaying(file.commit(fresh), fresh):
                pass  # the data are the same
        except OSError as exc:
            # What was asked for is done; there is no room to tidy up, so the log goes on growing while it can.
            self._compact_from = head.end + (head.end - head.start)
            _log.info("the store file %s is not compacted: %s", self._path, exc.strerror)
