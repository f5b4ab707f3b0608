"""A user's own backend: one file and a lock, nothing but the two methods; and one that never says what became of a write."""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rallypoint.elastic.dynamic_rendezvous import RendezvousBackend
from rallypoint.errors import RendezvousConnectionError


class LockedFileBackend(RendezvousBackend):
    """The document in a file; its token is a hash of what is there."""

    def __init__(self, folder: Path, run_id: str) -> None:
        self._folder = folder
        self._path = folder / f"{run_id}.document"

    @property
    def name(self) -> str:
        return "locked-file"

    def get_state(self) -> tuple[bytes, Any] | None:
        # Files are replaced as a whole, so a reader needs no lock.
        if not self._folder.is_dir():
            raise RendezvousConnectionError(f"the folder {self._folder} is away")
        return self._read()

    def set_state(self, state: bytes, token: Any | None = None) -> tuple[bytes, Any, bool] | None:
        with self._locked():
            there = self._read()
            matches = token is None if there is None else token == there[1]
            if matches:
                draft = self._path.with_suffix(".draft")
                draft.write_bytes(state)
                draft.replace(self._path)
                there = self._read()
            return None if there is None else (*there, matches)

    def _read(self) -> tuple[bytes, Any] | None:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return None
        return data, hashlib.sha256(data).hexdigest()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            lock = (self._folder / "lock").open("ab")
        except OSError as exc:
            raise RendezvousConnectionError(f"the folder {self._folder} is away: {exc.strerror}") from exc
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


class SilentFileBackend(LockedFileBackend):
    """As above, but a write is never confirmed."""

    @property
    def name(self) -> str:
        return "silent-file"

    def set_state(self, state: bytes, token: Any | None = None) -> tuple[bytes, Any, bool] | None:
        super().set_state(state, token)
        return None
