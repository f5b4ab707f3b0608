"""The key-value stores of a job: everything that torch.distributed's stores offer, without torch.

Nothing here keeps rounds or runs apart by itself: give each a `PrefixStore` of its own.
`EtcdV3Store` is imported when its name is first used, and with it the client of etcd.
"""

from typing import TYPE_CHECKING

from rallypoint.stores.base import Store
from rallypoint.stores.collectives import all_gather, barrier
from rallypoint.stores.errors import (
    QueueEmptyError,
    RoundOverError,
    StoreConnectionError,
    StoreError,
    StoreForkError,
    StoreTimeoutError,
)
from rallypoint.stores.file.store import FileStore
from rallypoint.stores.memory import MemoryStore
from rallypoint.stores.prefix import PrefixStore
from rallypoint.stores.tcp.server import StoreServer, listen
from rallypoint.stores.tcp.server_core import StoreServerCore
from rallypoint.stores.tcp.store import TcpStore
from rallypoint.stores.tcp.wire import StoreLimits

if TYPE_CHECKING:
    from rallypoint.stores.etcd_v3.store import EtcdV3Store

__all__ = [
    "EtcdV3Store",
    "FileStore",
    "MemoryStore",
    "PrefixStore",
    "QueueEmptyError",
    "RoundOverError",
    "Store",
    "StoreConnectionError",
    "StoreError",
    "StoreForkError",
    "StoreLimits",
    "StoreServer",
    "StoreServerCore",
    "StoreTimeoutError",
    "TcpStore",
    "all_gather",
    "barrier",
    "listen",
]


def __getattr__(name: str) -> object:
    if name != "EtcdV3Store":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rallypoint.stores.etcd_v3.store import EtcdV3Store

    globals()[name] = EtcdV3Store
    return EtcdV3Store
