"""A store that is opened when it is first used: most nodes get a round's store and never ask it anything."""

from __future__ import annotations

import threading
from collections.abc import Callable

from rallypoint import forks
from rallypoint.stores.base import Store
from rallypoint.stores.wrapper import T, WrapperStore

ExplainError = Callable[[Exception], Exception]
"""Given the error of a call, returns the error to raise; it may know more than the store does."""


class LazyStore(WrapperStore):
    """Opens a store on the first call, once.  An error of a call, or of opening, is raised as `explain` returns it."""

    def __init__(self, open_store: Callable[[], Store], explain: ExplainError = lambda error: error) -> None:
        self._open_store = open_store
        self._explain = explain
        self._opened: Store | None = None
        self._lock = threading.Lock()
        forks.release_in_children(self)

    def forked(self) -> None:
        """In a forked child: another thread of the parent may hold the lock."""
        self._lock = threading.Lock()

    @property
    def underlying_store(self) -> Store:
        """The store itself, opened if it was not."""
        if self._opened is None:
            with self._lock:
                if self._opened is None:
                    self._opened = self._open_store()
        return self._opened

    def _ask(self, call: Callable[[Store], T]) -> T:
        try:
            return call(self.underlying_store)
        except Exception as error:
            explained = self._explain(error)
            if explained is error:
                raise
            raise explained from error
