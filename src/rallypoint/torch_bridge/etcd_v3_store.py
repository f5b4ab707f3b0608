"""The store on etcd v3 as a store of torch's."""

from __future__ import annotations

from rallypoint.torch_bridge.etcd_store import StoreForTorch


class EtcdV3StoreForTorch(StoreForTorch):
    """Passes every call to an `EtcdV3Store`, and is a `torch.distributed.Store`."""
