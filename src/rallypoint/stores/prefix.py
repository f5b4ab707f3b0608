"""A part of a store: rounds and runs that share a server do not see each other's keys."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from rallypoint.stores.base import Store, in_64_bits
from rallypoint.stores.errors import StoreTimeoutError


class PrefixStore(Store):
    """A store under whose keys a prefix and a slash are put before they reach another store.

    The time-out is that of the store below.  `num_keys` counts the keys of all of it, as torch's does; `list_keys` lists
    only its own.
    """

    def __init__(self, prefix: str, store: Store) -> None:
        self._prefix = prefix
        self._store = store

    @property
    def underlying_store(self) -> Store:
        """The store one prefix below."""
        return self._store

    def _name(self, key: str) -> str:
        return f"{self._prefix}/{key}"

    def _names(self, keys: Sequence[str]) -> list[str]:
        if isinstance(keys, str):
            raise TypeError(f"expected a list of keys, not the text {keys!r}")
        return [self._name(key) for key in keys]

    def set(self, key: str, value: bytes | str) -> None:
        self._store.set(self._name(key), value)

    def get(self, key: str) -> bytes:
        return self._store.get(self._name(key))

    def add(self, key: str, amount: int) -> int:
        return self._store.add(self._name(key), amount)

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        return self._store.compare_set(self._name(key), expected, desired)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        self._store.wait(self._names(keys), timeout)

    def check(self, keys: Sequence[str]) -> bool:
        return self._store.check(self._names(keys))

    def delete_key(self, key: str) -> bool:
        return self._store.delete_key(self._name(key))

    def num_keys(self) -> int:
        return self._store.num_keys()

    def list_keys(self) -> list[str]:
        start = self._name("")
        return [key.removeprefix(start) for key in self._store.list_keys() if key.startswith(start)]

    def append(self, key: str, value: bytes | str) -> None:
        self._store.append(self._name(key), value)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return self._store.multi_get(self._names(keys))

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes | str]) -> None:
        self._store.multi_set(self._names(keys), values)

    def queue_push(self, key: str, value: bytes | str) -> None:
        self._store.queue_push(self._name(key), value)

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        return self._store.queue_pop(self._name(key), block)

    def queue_len(self, key: str) -> int:
        return self._store.queue_len(self._name(key))

    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        """As torch's PrefixStore does it, so that both meet at one barrier: by two keys of its own."""
        in_64_bits(world_size)
        here = self.add(f"{key}/num_members", 1)
        if here >= world_size:
            self.set(f"{key}/last_member", "1")
        try:
            self.wait([f"{key}/last_member"], timeout)
        except StoreTimeoutError as exc:
            raise StoreTimeoutError(
                f"cannot pass the barrier {key!r} of {world_size}, at which this call was number {here}: {exc}"
            ) from exc

    @property
    def timeout(self) -> timedelta:
        return self._store.timeout

    def set_timeout(self, timeout: timedelta) -> None:
        self._store.set_timeout(timeout)

    def clone(self) -> PrefixStore:
        return PrefixStore(self._prefix, self._store.clone())
