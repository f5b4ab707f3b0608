"""The store on etcd v3 as a store of torch's, whose errors torch's own code understands.

torch catches its own classes, and goes on: its barrier of a process group, for one, looks at who is missing each time a
wait ends in vain.  So an error that passes through here is both: torch's and ours.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import distributed
from torch.distributed import DistStoreError

from rallypoint.torch_bridge.etcd_store import StoreForTorch

# By their names, because stores and this bridge do not see each other; the first that fits counts.
_THEIRS: dict[str, Any] = {
    "QueueEmptyError": getattr(distributed, "QueueEmptyError", DistStoreError),  # older versions have no name for it
    "StoreTimeoutError": DistStoreError,
    "StoreError": DistStoreError,
}
_made: dict[type[Exception], type[Exception]] = {}


class EtcdV3StoreForTorch(StoreForTorch):
    """Hands everything to an `EtcdV3Store`, and is a `torch.distributed.Store`."""

    def __init__(self, store: Any) -> None:
        super().__init__(_InTorchWords(store))


class _InTorchWords:
    """A store whose errors are torch's as well."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return _in_torch_words(found) if callable(found) else found

    def clone(self) -> _InTorchWords:
        return _InTorchWords(self._store.clone())


def _in_torch_words(ask: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(ask)
    def asked(*args: Any, **options: Any) -> Any:
        try:
            return ask(*args, **options)
        except Exception as exc:
            both = _both(type(exc))
            if both is None:
                raise
            raise both(*exc.args) from exc

    return asked


def _both(ours: type[Exception]) -> type[Exception] | None:
    """A class of errors that is both ours and torch's, made on first use; None for what is no store's."""
    if ours not in _made:
        theirs = next((_THEIRS[base.__name__] for base in ours.__mro__ if base.__name__ in _THEIRS), None)
        if theirs is None:
            return None
        _made[ours] = type(ours.__name__, (ours, theirs), {"__module__": __name__, "__doc__": ours.__doc__})
    return _made[ours]
