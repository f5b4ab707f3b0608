"""The file of `rallypoint serve --state FILE` (rule 14): every change of a run's record is a synced line at its end.

A write that fails leaves no half line, and the next write repeats it.  When most lines no longer count, the server writes
those that do to a new file and renames it over the old one.  `state_format` says what a line is.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

from rallypoint import record
from rallypoint.core.model import Run
from rallypoint.errors import RendezvousStateError
from rallypoint.server import state_format
from rallypoint.server.effects import Effects
from rallypoint.server.runs import hold_of

log = logging.getLogger("rallypoint.server")

_SPARE_BYTES = 64 * 1024
"""How much longer than four times the lines that count the file may be before the server compacts it."""

# O_NONBLOCK: without it, opening a FIFO or a device may block for ever.  On a regular file it has no effect.
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_CREATE = os.O_CREAT | os.O_EXCL

_REASONS = {
    errno.EACCES: "this user may not read and write it, or may not create it; change its owner, or give another path",
    errno.EROFS: "its file system is read-only; give a path on another one",
    errno.ELOOP: "it is a symbolic link; give the path of the file itself",
    errno.EISDIR: "it is a directory; give the path of a file",
    errno.ENXIO: "it is a socket or a device; give the path of a regular file",
}


class StateFile:
    """The records of a server's runs, one each; held by one server at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._was_read = False
        self._live: dict[str, bytes] = {}  # for each run the line that counts
        self._unwritten: dict[str, bytes | None] = {}  # the lines of failed writes; None: the run is forgotten
        self._length_bytes = 0  # of the header and the lines that took effect
        self._torn = False  # whether anything else may follow them on disk, left by a failed write or a crash
        self._folder_synced = False  # whether the name of the file is on disk
        self._compact_from_bytes = 0
        with ExitStack() as opened:
            self._open(opened)
            self._lock()
            self._opened = opened.pop_all()

    def read(self) -> dict[str, bytes]:
        """The newest record of each run; once, before the first write.  A damaged end is cut off, with a warning.

        RendezvousStateError is raised for any other damage, and the file is left as it is.
        """
        try:
            with os.fdopen(self._file, "rb", closefd=False) as file:
                contents = state_format.read(file, self.path)
        except OSError as exc:
            raise RendezvousStateError(f"the state file {self.path} cannot be read: {exc.strerror}") from exc
        self._was_read = True
        self._live = {run: state_format.encode(run, data) for run, data in contents.records.items()}
        self._length_bytes = contents.length_bytes
        if contents.damage:
            extra_bytes, damage = os.fstat(self._file).st_size - self._length_bytes, contents.damage
            log.warning("the last %d bytes of the state file %s are cut off: %s", extra_bytes, self.path, damage)
            self._torn = True
            with suppress(OSError):  # the first write cuts again
                self._cut()
        return contents.records

    def write(self, changes: Mapping[str, bytes | None]) -> None:
        """Append the new records and wait until they are on disk; None: the run has ended and is forgotten.

        After an OSError nothing of this write counts.  The next write repeats it, except for runs of which it brings
        something newer.
        """
        assert self._was_read, "read() comes before the first write()"
        lines = {run: None if data is None else state_format.encode(run, data) for run, data in changes.items()}
        # A run that ended before any of its records was written needs no line.
        self._unwritten = {
            run: line for run, line in (self._unwritten | lines).items() if line is not None or run in self._live
        }
        if self._unwritten or self._torn:
            self._append(b"".join(line or state_format.encode(run) for run, line in self._unwritten.items()))
            for run, line in self._unwritten.items():
                if line is None:
                    del self._live[run]
                else:
                    self._live[run] = line
            self._unwritten = {}
            self._compact_if_long()

    def close(self) -> None:
        """Close the file, which unlocks it."""
        self._opened.close()

    def _open(self, opened: ExitStack) -> None:
        folder = self.path.parent
        try:
            self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError as exc:
            raise self._refusal(f"its folder {folder} does not exist; create it, or give another path") from exc
        except OSError as exc:
            raise self._refusal(f"its folder {folder}: {exc.strerror}; give another path") from exc
        opened.callback(os.close, self._folder)
        try:
            self._file = self._open_or_create()
        except OSError as exc:
            raise self._refusal(_REASONS.get(exc.errno or 0, f"{exc.strerror}; give another path")) from exc
        opened.callback(lambda: os.close(self._file))
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            raise self._refusal("it is a FIFO or a device; give the path of a regular file")

    def _open_or_create(self) -> int:
        try:
            return os.open(self.path.name, _FLAGS | _CREATE, 0o600, dir_fd=self._folder)
        except FileExistsError:
            return os.open(self.path.name, _FLAGS, dir_fd=self._folder)

    def _refusal(self, reason: str) -> RendezvousStateError:
        return RendezvousStateError(f"the state file {self.path} cannot be opened: {reason}")

    def _lock(self) -> None:
        in_use = f"the state file {self.path} is in use by another server; give each server a file of its own"
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise RendezvousStateError(in_use) from exc
        except OSError as exc:
            raise RendezvousStateError(
                f"the state file {self.path} cannot be locked: {exc.strerror}; give a path on a local disk"
            ) from exc
        # Another server may have compacted its file since this one opened it: then the lock that counts is another.
        if not self._is_in_place():
            raise RendezvousStateError(in_use)

    def _is_in_place(self) -> bool:
        """Whether the path still names the file that this server has open."""
        try:
            named = os.stat(self.path.name, dir_fd=self._folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(named, os.fstat(self._file))

    def _append(self, data: bytes) -> None:
        if not self._length_bytes:
            data = state_format.HEADER + data
        if self._torn:
            self._cut()
        self._torn = True
        try:
            _write_all(self._file, data)
            os.fdatasync(self._file)
            self._sync_folder()
        except OSError:
            with suppress(OSError):  # the next write cuts again, and syncs
                self._cut()
            raise
        self._torn = False
        self._length_bytes += len(data)

    def _cut(self) -> None:
        """Remove what follows the lines that took effect, so that no line is appended to half a line."""
        os.ftruncate(self._file, self._length_bytes)

    def _sync_folder(self) -> None:
        """Make sure that a crash undoes neither the creation of the file nor its replacement."""
        if not self._folder_synced:
            os.fsync(self._folder)
            self._folder_synced = True

    def _compact_if_long(self) -> None:
        if self._length_bytes <= max(self._compact_from_bytes, _SPARE_BYTES):
            return
        if self._length_bytes <= _SPARE_BYTES + 4 * sum(map(len, self._live.values())):
            return
        try:
            self._compact()
            self._compact_from_bytes = 0
        except OSError as exc:
            # An attempt writes every line that counts, so the next one waits until the file has grown by a quarter.
            self._compact_from_bytes = self._length_bytes + self._length_bytes // 4
            later = "it goes on growing, and the server tries again later"
            log.warning("the state file %s cannot be compacted: %s; %s", self.path, exc.strerror, later)

    def _compact(self) -> None:
        """Replace the file by one with only the lines that count.  A crash leaves the old file or the new one."""
        name = f".{self.path.name}.rallypoint-new"
        data = state_format.HEADER + b"".join(self._live.values())
        # Only the server that holds the file makes one of this name, so a crashed server left the one that exists.
        self._remove(name)
        with ExitStack() as undo:
            fresh = os.open(name, _FLAGS | _CREATE, 0o600, dir_fd=self._folder)
            undo.callback(os.close, fresh)
            undo.callback(self._remove, name)
            fcntl.flock(fresh, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _write_all(fresh, data)
            os.fsync(fresh)
            if not self._is_in_place():
                raise FileNotFoundError(errno.ENOENT, "somebody moved, removed or replaced it")
            os.rename(name, self.path.name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            undo.pop_all()
        old, self._file = self._file, fresh
        self._length_bytes = len(data)
        self._folder_synced = False
        os.close(old)
        self._sync_folder()

    def _remove(self, name: str) -> None:
        with suppress(OSError):
            os.unlink(name, dir_fd=self._folder)


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def restored_runs(state: StateFile, now: float) -> Iterator[tuple[Run, int]]:
    """The runs on file, and the epoch of each: it counts the starts of the server."""
    for run_id, data in state.read().items():
        try:
            known = record.decode(data)
        except RendezvousStateError as exc:
            raise RendezvousStateError(f"run {run_id!r} in the state file {state.path}: {exc}") from exc
        yield record.restored(known, now, hold_of(known.settings)), known.epoch + 1


class StateWriter:
    """Writes records in a thread of its own, many at a time.  On the server's loop only.

    A file that cannot be written costs durability only: what was decided is told all the same, and the log says so.
    """

    def __init__(self, state: StateFile) -> None:
        self._state = state
        self._thread = ThreadPoolExecutor(1, "rallypoint-state")
        self._changes: dict[str, bytes | None] = {}
        self._awaited: list[str] = []
        self._task: asyncio.Task[None] | None = None

    def write(self, effects: Effects, recorded: Callable[[str], None]) -> None:
        """Write these records soon, and say of each when it is done."""
        self._changes.update(dict.fromkeys(effects.forgotten))
        for each in effects.records:
            written = record.of(each.run, epoch=each.epoch, write_id=secrets.token_hex(8))
            self._changes[each.run.run_id] = record.encode(written)
            self._awaited.append(each.run.run_id)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._write(recorded))

    async def close(self) -> None:
        """Finish what is being written, and let the file go."""
        if self._task is not None:
            await self._task
        self._thread.shutdown()
        self._state.close()

    async def _write(self, recorded: Callable[[str], None]) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._changes:
                changes, self._changes = self._changes, {}
                awaited, self._awaited = self._awaited, []
                try:
                    await loop.run_in_executor(self._thread, self._state.write, changes)
                except OSError as exc:
                    lost = "a restart would not know of the last change of"
                    log.error("%s cannot be written: %s; %s %s", self._state.path, exc, lost, ", ".join(changes))
                for run_id in awaited:
                    # What goes wrong with one run must not keep the others from being told.
                    loop.call_soon(recorded, run_id)
        finally:
            self._task = None
