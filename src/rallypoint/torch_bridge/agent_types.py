"""torch's own types on which the plug-in for its agent is built; importing this imports torch."""

from __future__ import annotations

from torch.distributed import DistNetworkError, DistStoreError
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

__all__ = [
    "ChildFailedError",
    "DistNetworkError",
    "DistStoreError",
    "RendezvousHandler",
    "RendezvousInfo",
    "RendezvousStoreInfo",
]
