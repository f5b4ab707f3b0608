"""PyTorch's `etcd_store`: a store on etcd's API v2; torch's own kind of store where torch is installed, ours where not.

The class is made when its name is first used, so that torch is not imported before.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rallypoint.elastic.lazy_names import lazy_names
from rallypoint.elastic.utils import _delay
from rallypoint.stores.etcd_v2.store import EtcdV2Store
from rallypoint.torch_bridge.stores_c10d import has_torch

if TYPE_CHECKING:

    class EtcdStore(EtcdV2Store):
        """The keys under one directory of etcd's; under torch a subclass of `torch.distributed.Store`."""

        def __init__(
            self,
            etcd_client: Any,
            etcd_store_prefix: str,
            timeout: timedelta | None = None,
            *,
            ttl_s: int | None = None,
        ) -> None: ...


__all__ = ["EtcdStore", "cas_delay"]

_other_name = lazy_names(__name__, "Store", "etcd")


def cas_delay() -> None:
    """Sleep for up to 0.1 s, before a compare-and-set that was refused is tried again."""
    _delay((0, 0.1))


def __getattr__(name: str) -> Any:
    if name != "EtcdStore":
        return _other_name(name)
    made = globals()[name] = _for_torch() if has_torch() else _ours()
    return made


def _ours() -> type:
    class EtcdStore(EtcdV2Store):
        """The keys under one directory of etcd's."""

        def __init__(
            self,
            etcd_client: Any,
            etcd_store_prefix: str,
            timeout: timedelta | None = None,
            *,
            ttl_s: int | None = None,
        ) -> None:
            super().__init__(etcd_client, etcd_store_prefix, timeout, ttl_s=ttl_s)

    return _named(EtcdStore)


def _for_torch() -> type:
    from rallypoint.torch_bridge.etcd_store import StoreForTorch

    class EtcdStore(StoreForTorch):
        """The keys under one directory of etcd's, as a store of torch's."""

        def __init__(
            self,
            etcd_client: Any,
            etcd_store_prefix: str,
            timeout: timedelta | None = None,
            *,
            ttl_s: int | None = None,
        ) -> None:
            super().__init__(EtcdV2Store(etcd_client, etcd_store_prefix, timeout, ttl_s=ttl_s))

    return _named(EtcdStore)


def _named(made: type) -> type:
    made.__module__, made.__qualname__ = __name__, made.__name__
    return made
