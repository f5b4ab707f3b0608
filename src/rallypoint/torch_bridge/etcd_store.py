"""Stores that are written in Python, as torch's own kind: subclasses of `torch.distributed.Store`, so that its C++ code takes them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch import distributed
from torch.distributed import DistStoreError, Store

from rallypoint.torch_bridge.errors import both

# Older versions of torch have no name for this.
QueueEmptyError: Any = getattr(distributed, "QueueEmptyError", DistStoreError)

# By their names, because stores and this bridge do not see each other; the first that fits counts.  A bad value is a
# ValueError in torch, and nothing else.
_THEIRS = {
    "EtcdStoreValueError": None,
    "QueueEmptyError": QueueEmptyError,
    "StoreError": DistStoreError,
    "StoreTimeoutError": DistStoreError,
}


class PythonStore(Store):  # type: ignore[misc]  # torch's types are not looked at
    """Passes every call to `_call`, by its name.

    Code that passes it to C++ (a `PrefixStore`, a process group) must keep a reference to it.
    """

    def _call(self, name: str, *args: Any) -> Any:
        raise NotImplementedError

    def set(self, key: Any, value: Any) -> None:
        self._call("set", key, value)

    def get(self, key: Any) -> bytes:
        return bytes(self._call("get", key))

    def add(self, key: Any, num: int) -> int:
        return int(self._call("add", key, num))

    def compare_set(self, key: Any, expected: Any, desired: Any) -> bytes:
        return bytes(self._call("compare_set", key, expected, desired))

    def wait(self, keys: Sequence[Any], timeout: timedelta | None = None) -> None:
        self._call("wait", list(keys), timeout)

    def check(self, keys: Sequence[Any]) -> bool:
        return bool(self._call("check", list(keys)))

    def delete_key(self, key: Any) -> bool:
        return bool(self._call("delete_key", key))

    def num_keys(self) -> int:
        return int(self._call("num_keys"))

    def list_keys(self) -> list[str]:
        return list(self._call("list_keys"))

    def append(self, key: Any, value: Any) -> None:
        self._call("append", key, value)

    def multi_get(self, keys: Sequence[Any]) -> list[bytes]:
        return list(self._call("multi_get", list(keys)))

    def multi_set(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        self._call("multi_set", keys, values)

    def queue_push(self, key: Any, value: Any) -> None:
        self._call("queue_push", key, value)

    def queue_pop(self, key: Any, block: bool = True) -> bytes:
        return bytes(self._call("queue_pop", key, block))

    def queue_len(self, key: Any) -> int:
        return int(self._call("queue_len", key))

    def barrier(self, key: Any, world_size: int, timeout: timedelta | None = None) -> None:
        self._call("barrier", key, world_size, timeout)

    def has_extended_api(self) -> bool:
        return True

    # The names by which torch's C++ code calls these two.
    deleteKey = delete_key  # noqa: N815
    getNumKeys = num_keys  # noqa: N815


class StoreForTorch(PythonStore):
    """Passes every call to another store.  It keeps the clones that it makes, because C++ code may use them.

    torch catches its own classes of errors, and goes on: a process group that starts, for one, looks at which ranks are missing
    each time a wait times out.  So an error that passes through here is both torch's and ours.

    The time-out is kept where torch has it: a `PrefixStore` around this store sets it there, and calls no method of ours.
    """

    def __init__(self, store: Any) -> None:
        super().__init__()
        self.underlying = store
        self.set_timeout(store.timeout)
        self._clones: list[StoreForTorch] = []

    def _call(self, name: str, *args: Any) -> Any:
        try:
            self.underlying.set_timeout(self.timeout)
            return getattr(self.underlying, name)(*args)
        except Exception as exc:
            theirs = next((_THEIRS[base.__name__] for base in type(exc).__mro__ if base.__name__ in _THEIRS), None)
            if theirs is None:
                raise
            raise both(type(exc), theirs)(*exc.args) from exc

    def wait(
        self, keys: Sequence[Any], timeout: timedelta | None = None, *, override_timeout: timedelta | None = None
    ) -> None:
        super().wait(keys, override_timeout if timeout is None else timeout)

    def clone(self) -> StoreForTorch:
        """The same keys, with a time-out of its own."""
        self.underlying.set_timeout(self.timeout)
        self._clones.append(StoreForTorch(self.underlying.clone()))
        return self._clones[-1]

    @property
    def client(self) -> Any:
        """The client of etcd's that it was made with."""
        return self.underlying.client

    @property
    def prefix(self) -> str:
        """The directory of its keys."""
        return str(self.underlying.prefix)

    @property
    def host(self) -> str:
        """The host of the server that is asked."""
        return str(self.underlying.host)

    @property
    def port(self) -> int:
        """Its port."""
        return int(self.underlying.port)
