"""A store that is opened when it is first used: most nodes get a round's store and never ask it anything."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta

from rallypoint.stores.base import Store


class LateStore(Store):
    """Stands for a store until somebody uses it; then it is opened, once."""

    def __init__(self, open_store: Callable[[], Store]) -> None:
        self._open_store = open_store
        self._opened: Store | None = None
        self._lock = threading.Lock()

    @property
    def underlying_store(self) -> Store:
        """The store itself, opened if it was not."""
        with self._lock:
            if self._opened is None:
                self._opened = self._open_store()
            return self._opened

    def set(self, key: str, value: bytes | str) -> None:
        self.underlying_store.set(key, value)

    def get(self, key: str) -> bytes:
        return self.underlying_store.get(key)

    def add(self, key: str, amount: int) -> int:
        return self.underlying_store.add(key, amount)

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        return self.underlying_store.compare_set(key, expected, desired)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        self.underlying_store.wait(keys, timeout)

    def check(self, keys: Sequence[str]) -> bool:
        return self.underlying_store.check(keys)

    def delete_key(self, key: str) -> bool:
        return self.underlying_store.delete_key(key)

    def num_keys(self) -> int:
        return self.underlying_store.num_keys()

    def list_keys(self) -> list[str]:
        return self.underlying_store.list_keys()

    def append(self, key: str, value: bytes | str) -> None:
        self.underlying_store.append(key, value)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return self.underlying_store.multi_get(keys)

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes | str]) -> None:
        self.underlying_store.multi_set(keys, values)

    def queue_push(self, key: str, value: bytes | str) -> None:
        self.underlying_store.queue_push(key, value)

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        return self.underlying_store.queue_pop(key, block)

    def queue_len(self, key: str) -> int:
        return self.underlying_store.queue_len(key)

    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        self.underlying_store.barrier(key, world_size, timeout)

    @property
    def timeout(self) -> timedelta:
        return self.underlying_store.timeout

    def set_timeout(self, timeout: timedelta) -> None:
        self.underlying_store.set_timeout(timeout)

    def clone(self) -> Store:
        return self.underlying_store.clone()
