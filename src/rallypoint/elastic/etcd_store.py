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


__all__ = ["EtcdStore", "cas_delay"]

_other_name = lazy_names(__name__, "Store", "etcd")


def cas_delay() -> None:
    """Sleep for up to 0.1 s, before a compare-and-set that was refused is tried again."""
    _delay((0, 0.1))


def __getattr__(name: str) -> Any:
    if name != "EtcdStore":
        return _other_name(name)
    made = globals()[name] = _etcd_store()
    return made


def _etcd_store() -> type:
    about = {"__module__": __name__, "__doc__": "The keys under one directory of etcd's."}
    if not has_torch():
        return type("EtcdStore", (EtcdV2Store,), about)
    from rallypoint.torch_bridge.etcd_store import StoreForTorch

    def initialize(
        self: Any,
        etcd_client: Any,
        etcd_store_prefix: str,
        timeout: timedelta | None = None,
        *,
        ttl_s: int | None = None,
    ) -> None:
        StoreForTorch.__init__(self, EtcdV2Store(etcd_client, etcd_store_prefix, timeout, ttl_s=ttl_s))

    return type("EtcdStore", (StoreForTorch,), {**about, "__init__": initialize})
