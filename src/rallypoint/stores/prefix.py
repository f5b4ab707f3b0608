"""The keys of another store under a prefix; that store may be opened when it is first used."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar

from rallypoint import forks
from rallypoint.stores.base import Store, in_64_bits
from rallypoint.stores.errors import StoreTimeoutError

T = TypeVar("T")


class PrefixStore(Store):
    """The keys of another store that begin with a prefix and a slash; here they are named without them.

    Rounds and runs that share a server do not see each other's keys.  The time-out is that of the store below.
    `num_keys` counts the keys of all of it, as torch's does; `list_keys` lists only its own.
    """

    def __init__(self, prefix: str, store: Store) -> None:
        self._prefix = prefix
        self._store = store

    @property
    def underlying_store(self) -> Store:
        """The store one prefix below."""
        return self._store

    def _ask(self, call: Callable[[Store], T]) -> T:
        return call(self.underlying_store)

    def _name(self, key: str) -> str:
        return f"{self._prefix}/{key}"

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
        start = self._name("")
        keys = self._ask(lambda store: store.list_keys())
        return [key.removeprefix(start) for key in keys if key.startswith(start)]

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
        return self._ask(lambda store: store.timeout)

    def set_timeout(self, timeout: timedelta) -> None:
        self._ask(lambda store: store.set_timeout(timeout))

    def clone(self) -> PrefixStore:
        return self._ask(lambda store: PrefixStore(self._prefix, store.clone()))


ExplainError = Callable[[Exception], Exception]
"""Given the error of a call, returns the error to raise; it may know more than the store does."""


class LazyPrefixStore(PrefixStore):
    """Opens the store below on the first call, once: most nodes get a round's store and never ask it anything.

    An error of a call, or of opening, is raised as `explain` returns it.
    """

    def __init__(
        self, prefix: str, open_store: Callable[[], Store], explain: ExplainError = lambda error: error
    ) -> None:
        self._prefix = prefix
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
