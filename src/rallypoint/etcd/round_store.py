"""The store of a round in etcd itself, for those who ask for it: nobody serves it, and it outlives every node."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from rallypoint.client.round_store import RoundStore
from rallypoint.core.notices import Placed
from rallypoint.etcd.keys import Keys
from rallypoint.etcd_client import EtcdClient
from rallypoint.stores import Store
from rallypoint.stores.etcd_v3 import EtcdV3Store


class EtcdRoundStore(RoundStore):
    """Keys under the name of one sealed world, on the lease of the run; the leader deletes them with the next world."""

    def __init__(
        self, client: EtcdClient, keys: Keys, run_id: str, placed: Placed, lease: int, timeout: timedelta
    ) -> None:
        self._client = client
        self._place = keys.store(placed.seal_id)
        self._lease = lease
        super().__init__(run_id, placed, None, timeout)

    def _open(self, timeout: timedelta) -> tuple[Store, Callable[[], None]]:
        # A client of its own, so that closing it ends the waits of this connection and of no other.
        client = self._client.twin()
        return EtcdV3Store(client, self._place, lease=self._lease, timeout=timeout), client.close
