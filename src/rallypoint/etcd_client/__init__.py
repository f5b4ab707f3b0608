"""A thin etcd v3 client, usable on its own; it knows nothing of rendezvous.

Needs grpcio (`pip install 'rallypoint[etcd]'`), which is imported with the first client, and no protobuf.
"""

from rallypoint.etcd_client.client import EtcdClient
from rallypoint.etcd_client.endpoints import Tls, User
from rallypoint.etcd_client.errors import (
    EtcdAmbiguousError,
    EtcdAuthError,
    EtcdClosedError,
    EtcdCompactedError,
    EtcdError,
    EtcdForkError,
    EtcdHopelessError,
    EtcdLeaseLostError,
    EtcdMessageError,
    EtcdMissingError,
    EtcdNoSpaceError,
    EtcdRefusedError,
    EtcdUnavailableError,
)
from rallypoint.etcd_client.leases import Lease
from rallypoint.etcd_client.messages import KeyValue
from rallypoint.etcd_client.transactions import GuardedPut, TransactionResult, compare, delete_op, get_op, put_op
from rallypoint.etcd_client.watch_state import KeyChange
from rallypoint.etcd_client.watches import Resync, Watch

__all__ = [
    "EtcdAmbiguousError",
    "EtcdAuthError",
    "EtcdClient",
    "EtcdClosedError",
    "EtcdCompactedError",
    "EtcdError",
    "EtcdForkError",
    "EtcdHopelessError",
    "EtcdLeaseLostError",
    "EtcdMessageError",
    "EtcdMissingError",
    "EtcdNoSpaceError",
    "EtcdRefusedError",
    "EtcdUnavailableError",
    "GuardedPut",
    "KeyChange",
    "KeyValue",
    "Lease",
    "Resync",
    "Tls",
    "TransactionResult",
    "User",
    "Watch",
    "compare",
    "delete_op",
    "get_op",
    "put_op",
]
