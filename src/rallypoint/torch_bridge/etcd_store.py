"""A store of ours as a store of torch's: a subclass of `torch.distributed.Store`, so that its C++ code takes it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import Store


class StoreForTorch(Store):  # type: ignore[misc]  # torch's types are not looked at
    """Hands everything to another store, and is one of torch's.

    Whoever passes it to C++ (a `PrefixStore`, a process group) must keep a reference to it, as with every store that is
    written in Python; those that it makes itself, by `clone`, it keeps.
    """

    def __init__(self, store: Any) -> None:
        super().__init__()
        self.underlying = store
        self._clones: list[StoreForTorch] = []

    def set(self, key: Any, value: Any) -> None:
        """Set a key."""
        self.underlying.set(key, value)

    def get(self, key: Any) -> bytes:
        """Wait for a key and read it."""
        value: bytes = self.underlying.get(key)
        return value

    @property
    def client(self) -> Any:
        """The client of etcd's that it was made with."""
        return self.underlying.client

    @property
    def prefix(self) -> str:
        """The directory of its keys."""
        return str(self.underlying.prefix)

    def add(self, key: Any, num: int) -> int:
        """Add to a number."""
        return int(self.underlying.add(key, num))

    def compare_set(self, key: Any, expected: Any, desired: Any) -> bytes:
        """Set a key if it is as expected; what is there afterwards."""
        value: bytes = self.underlying.compare_set(key, expected, desired)
        return value

    def wait(
        self, keys: Sequence[Any], timeout: timedelta | None = None, *, override_timeout: timedelta | None = None
    ) -> None:
        """Wait until all keys are there."""
        self.underlying.wait(keys, override_timeout if timeout is None else timeout)

    def check(self, keys: Sequence[Any]) -> bool:
        """Whether all keys are there."""
        return bool(self.underlying.check(keys))

    def delete_key(self, key: Any) -> bool:
        """Delete a key; whether it was there."""
        return bool(self.underlying.delete_key(key))

    def num_keys(self) -> int:
        """How many keys there are."""
        return int(self.underlying.num_keys())

    def list_keys(self) -> list[str]:
        """The keys."""
        return list(self.underlying.list_keys())

    def append(self, key: Any, value: Any) -> None:
        """Append to a value."""
        self.underlying.append(key, value)

    def multi_get(self, keys: Sequence[Any]) -> list[bytes]:
        """Wait for several keys and read them."""
        return list(self.underlying.multi_get(keys))

    def multi_set(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        """Set several keys."""
        self.underlying.multi_set(keys, values)

    def queue_push(self, key: Any, value: Any) -> None:
        """Put something into a queue."""
        self.underlying.queue_push(key, value)

    def queue_pop(self, key: Any, block: bool = True) -> bytes:
        """Take something out of a queue."""
        value: bytes = self.underlying.queue_pop(key, block)
        return value

    def queue_len(self, key: Any) -> int:
        """How much is in a queue."""
        return int(self.underlying.queue_len(key))

    def barrier(self, key: Any, world_size: int, timeout: timedelta | None = None) -> None:
        """Wait until so many have come to the barrier."""
        self.underlying.barrier(key, world_size, timeout)

    def has_extended_api(self) -> bool:
        """Whether there are `append`, `multi_get` and `multi_set`."""
        return True

    @property
    def host(self) -> str:
        """The host of the server that is asked."""
        return str(self.underlying.host)

    @property
    def port(self) -> int:
        """Its port."""
        return int(self.underlying.port)

    @property
    def timeout(self) -> timedelta:
        """How long a wait may take."""
        value: timedelta = self.underlying.timeout
        return value

    def set_timeout(self, timeout: timedelta) -> None:
        """Change how long a wait may take."""
        self.underlying.set_timeout(timeout)

    def clone(self) -> StoreForTorch:
        """The same keys, with a time-out of its own."""
        clone = StoreForTorch(self.underlying.clone())
        self._clones.append(clone)
        return clone

    # The names by which torch's C++ code calls these two.
    deleteKey = delete_key  # noqa: N815
    getNumKeys = num_keys  # noqa: N815
