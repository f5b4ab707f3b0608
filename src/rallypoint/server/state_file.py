"""The state file (rule 14): one synced line a seal and close, so that a restarted server knows what it promised.

The last line of a run counts.  A line that was cut off by a crash is the last of the file and never took effect, since
nothing is sent before it is on disk; anything else that cannot be read is an error, and nothing is overwritten then.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from rallypoint.core import codec
from rallypoint.core.model import Run
from rallypoint.errors import RendezvousStateError

_START = b'{"v":'


class StateFile:
    """An append-only file of runs, held by one server at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as exc:
            raise RendezvousStateError(f"the state file {path} cannot be opened: {exc.strerror}") from exc
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            os.close(self._file)
            raise RendezvousStateError(
                f"the state file {path} is in use by another server, or its file system knows no locks: give each "
                f"server a file of its own, on a local disk"
            ) from exc

    def read(self, now: float) -> list[Run]:
        """The runs on file; the file is then made short again."""
        lines = self.path.read_bytes().split(b"\n")
        torn = lines.pop()
        runs: dict[str, tuple[bytes, Run]] = {}
        for number, line in enumerate(lines, 1):
            try:
                run = codec.decode_run(line, now)
            except RendezvousStateError as exc:
                raise RendezvousStateError(f"line {number} of the state file {self.path}: {exc}") from exc
            runs[run.run_id] = (line, run)
        if torn and not (torn.startswith(_START) or _START.startswith(torn)):
            raise RendezvousStateError(
                f"{self.path} is not a state file of ours: it ends with {torn[-20:]!r}; give the path of a new file"
            )
        if torn or len(lines) > len(runs):
            self._rewrite([line for line, _ in runs.values()])
        return [run for _, run in runs.values()]

    def append(self, records: list[tuple[str, bytes]]) -> None:
        """Write records and wait until they are on disk."""
        _write(self._file, b"".join(record + b"\n" for _, record in records))
        os.fdatasync(self._file)

    def close(self) -> None:
        """Let the file go."""
        os.close(self._file)

    def _rewrite(self, lines: list[bytes]) -> None:
        """Replace the file by one with these lines only, so that a crash leaves either the old one or the new one."""
        beside = self.path.with_name(f"{self.path.name}.new")
        fresh = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        fcntl.flock(fresh, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _write(fresh, b"".join(line + b"\n" for line in lines))
        os.fsync(fresh)
        beside.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        os.close(self._file)
        self._file = fresh


def _write(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]
