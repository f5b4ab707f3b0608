"""A store for the threads of one process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta

from rallypoint import forks
from rallypoint.stores import operations
from rallypoint.stores.base import DEFAULT_TIMEOUT
from rallypoint.stores.errors import StoreForkError
from rallypoint.stores.local import LocalData, LocalStore
from rallypoint.stores.operations import Operation
from rallypoint.stores.tcp.wire import Query


class _SharedData:
    """The data that the clones of a store share."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._data = LocalData()
        self._opened_in = forks.OpenedIn()
        self._refusal: str | None = None
        forks.release_in_children(self)

    def forked(self) -> None:
        """In a forked child: the data are a copy, which the two processes do not share."""
        self._refusal = self._opened_in.refusal(
            "this store in memory",
            "nothing that one of them sets reaches the other",
            "use a TcpStore or a FileStore for both, or make a MemoryStore in the child",
        )

    @contextmanager
    def opened(self) -> Iterator[LocalData]:
        """The data, for this thread alone; threads whose wait is over are woken afterwards."""
        if self._refusal is not None:
            raise StoreForkError(self._refusal)
        with self._lock:
            try:
                yield self._data
            finally:
                for thread in self._data.take_woken():
                    thread.awake.set()


class MemoryStore(LocalStore):
    """A store in memory; every operation happens at once or not at all.

    Unlike the one over TCP it has no limits to the size of keys and values.  It belongs to one process: in a forked
    child, every call is a `StoreForkError`.
    """

    def __init__(self, timeout: timedelta = DEFAULT_TIMEOUT, *, _shared: _SharedData | None = None) -> None:
        self._shared = _shared or _SharedData()
        self.set_timeout(timeout)

    def clone(self) -> MemoryStore:
        return MemoryStore(self._timeout, _shared=self._shared)

    def _open(self, action: str, query: Query, *texts: bytes, write: bool = False) -> AbstractContextManager[LocalData]:
        return self._shared.opened()

    def _last_read(self) -> AbstractContextManager[LocalData]:
        return self._shared.opened()

    def _apply(self, data: LocalData, *changes: Operation) -> None:
        for change in changes:
            operations.apply(data, change)
