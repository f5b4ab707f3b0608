"""A store that passes every call on to another one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar

from rallypoint.stores.base import Store

T = TypeVar("T")


class WrapperStore(Store):
    """What a store in front of another one does; a subclass may rename the keys, and says how the other one is asked."""

    @abstractmethod
    def _ask(self, call: Callable[[Store], T]) -> T:
        """Make a call on the store behind this one."""

    def _name(self, key: str) -> str:
        """A key as the store behind this one knows it."""
        return key

    def _names(self, keys: Sequence[str]) -> list[str]:
        if isinstance(keys, str):
            raise TypeError(f"expected a list of keys, not the text {keys!r}")
        return [self._name(key) for key in keys]

    def set(self, key: str, value: bytes | str) -> None:
        self._ask(lambda store: store.set(self._name(key), value))

    def get(self, key: str) -> bytes:
        return self._ask(lambda store: store.get(self._name(key)))

    def add(self, key: str, amount: int) -> int:
        return self._ask(lambda store: store.add(self._name(key), amount))

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        return self._ask(lambda store: store.compare_set(self._name(key), expected, desired))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        self._ask(lambda store: store.wait(self._names(keys), timeout))

    def check(self, keys: Sequence[str]) -> bool:
        return self._ask(lambda store: store.check(self._names(keys)))

    def delete_key(self, key: str) -> bool:
        return self._ask(lambda store: store.delete_key(self._name(key)))

    def num_keys(self) -> int:
        return self._ask(lambda store: store.num_keys())

    def list_keys(self) -> list[str]:
        return self._ask(lambda store: store.list_keys())

    def append(self, key: str, value: bytes | str) -> None:
        self._ask(lambda store: store.append(self._name(key), value))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return self._ask(lambda store: store.multi_get(self._names(keys)))

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes | str]) -> None:
        self._ask(lambda store: store.multi_set(self._names(keys), values))

    def queue_push(self, key: str, value: bytes | str) -> None:
        self._ask(lambda store: store.queue_push(self._name(key), value))

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        return self._ask(lambda store: store.queue_pop(self._name(key), block))

    def queue_len(self, key: str) -> int:
        return self._ask(lambda store: store.queue_len(self._name(key)))

    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        self._ask(lambda store: store.barrier(self._name(key), world_size, timeout))

    @property
    def timeout(self) -> timedelta:
        return self._ask(lambda store: store.timeout)

    def set_timeout(self, timeout: timedelta) -> None:
        self._ask(lambda store: store.set_timeout(timeout))

    def clone(self) -> Store:
        return self._ask(lambda store: store.clone())
