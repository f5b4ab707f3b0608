"""A store that is opened when it is first used: most nodes get a round's store and never ask it anything."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import TracebackType

from rallypoint.stores import forks
from rallypoint.stores.base import Store

Judge = Callable[[Exception], Exception]
"""Given what went wrong with a call, returns what is raised; it may know more than the store does."""


class LateStore(Store):
    """Stands for a store until somebody uses it; then it is opened, once.  What goes wrong is put to the `judge` first."""

    def __init__(self, open_store: Callable[[], Store], judge: Judge = lambda problem: problem) -> None:
        self._open_store = open_store
        self._opened: Store | None = None
        self._lock = threading.Lock()
        self._use = _Use(self, judge)
        forks.let_go_in_children(self)

    def forked(self) -> None:
        """In a forked child: what was not opened is opened there."""
        self._lock = threading.Lock()

    @property
    def underlying_store(self) -> Store:
        """The store itself, opened if it was not."""
        if self._opened is None:
            with self._lock:
                if self._opened is None:
                    self._opened = self._open_store()
        return self._opened

    def set(self, key: str, value: bytes | str) -> None:
        with self._use as store:
            store.set(key, value)

    def get(self, key: str) -> bytes:
        with self._use as store:
            return store.get(key)

    def add(self, key: str, amount: int) -> int:
        with self._use as store:
            return store.add(key, amount)

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        with self._use as store:
            return store.compare_set(key, expected, desired)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        with self._use as store:
            store.wait(keys, timeout)

    def check(self, keys: Sequence[str]) -> bool:
        with self._use as store:
            return store.check(keys)

    def delete_key(self, key: str) -> bool:
        with self._use as store:
            return store.delete_key(key)

    def num_keys(self) -> int:
        with self._use as store:
            return store.num_keys()

    def list_keys(self) -> list[str]:
        with self._use as store:
            return store.list_keys()

    def append(self, key: str, value: bytes | str) -> None:
        with self._use as store:
            store.append(key, value)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        with self._use as store:
            return store.multi_get(keys)

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes | str]) -> None:
        with self._use as store:
            store.multi_set(keys, values)

    def queue_push(self, key: str, value: bytes | str) -> None:
        with self._use as store:
            store.queue_push(key, value)

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        with self._use as store:
            return store.queue_pop(key, block)

    def queue_len(self, key: str) -> int:
        with self._use as store:
            return store.queue_len(key)

    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        with self._use as store:
            store.barrier(key, world_size, timeout)

    @property
    def timeout(self) -> timedelta:
        with self._use as store:
            return store.timeout

    def set_timeout(self, timeout: timedelta) -> None:
        with self._use as store:
            store.set_timeout(timeout)

    def clone(self) -> Store:
        with self._use as store:
            return store.clone()


class _Use:
    """The context of a call on the store."""

    __slots__ = ("_judge", "_late")

    def __init__(self, late: LateStore, judge: Judge) -> None:
        self._late = late
        self._judge = judge

    def __enter__(self) -> Store:
        try:
            return self._late.underlying_store
        except Exception as exc:
            self.__exit__(type(exc), exc, None)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and (judged := self._judge(error)) is not error:
            raise judged from error
