"""A store for the threads of one process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from rallypoint.forks import OpenedIn
from rallypoint.stores.base import DEFAULT_TIMEOUT
from rallypoint.stores.errors import StoreForkError
from rallypoint.stores.local import LocalData, LocalStore, SharedData


class _MemoryData(SharedData):
    """The data that the clones of a store share."""

    def __init__(self) -> None:
        super().__init__()
        self._opened_in = OpenedIn()

    @contextmanager
    def last_read(self) -> Iterator[LocalData]:
        if not self._opened_in.is_this_process:
            refusal = self._opened_in.refusal(
                "this store in memory",
                "nothing that one of them sets reaches the other",
                "use a TcpStore or a FileStore for both, or make a MemoryStore in the child",
            )
            raise StoreForkError(refusal)
        with super().last_read() as data:
            yield data


class MemoryStore(LocalStore):
    """A store in memory; every operation happens at once or not at all.

    Unlike the one over TCP it has no limits to the size of keys and values.  It belongs to one process: in a forked
    child, every call is a `StoreForkError`.
    """

    def __init__(self, timeout: timedelta = DEFAULT_TIMEOUT, *, _shared: _MemoryData | None = None) -> None:
        self._shared: _MemoryData = _shared or _MemoryData()
        self.set_timeout(timeout)

    def clone(self) -> MemoryStore:
        return MemoryStore(self._timeout, _shared=self._shared)
