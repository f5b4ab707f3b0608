"""A part of a store: rounds and runs that share a server do not see each other's keys."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from rallypoint.stores.base import Store, in_64_bits
from rallypoint.stores.errors import StoreTimeoutError
from rallypoint.stores.wrapper import T, WrapperStore


class PrefixStore(WrapperStore):
    """The keys of another store that begin with a prefix and a slash; here they are named without them.

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

    def _ask(self, call: Callable[[Store], T]) -> T:
        return call(self._store)

    def _name(self, key: str) -> str:
        return f"{self._prefix}/{key}"

    def list_keys(self) -> list[str]:
        start = self._name("")
        return [key.removeprefix(start) for key in self._store.list_keys() if key.startswith(start)]

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

    def clone(self) -> PrefixStore:
        return PrefixStore(self._prefix, self._store.clone())
