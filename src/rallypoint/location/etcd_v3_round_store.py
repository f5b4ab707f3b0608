"""The store of a round in etcd itself, for runs that ask for it: no node serves it, and it outlives every node."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from rallypoint.client.round_store import RoundStore
from rallypoint.core.notices import Placed
from rallypoint.errors import RendezvousError
from rallypoint.etcd_client import EtcdClient
from rallypoint.location.registers.etcd_v3_keys import RecordKeys
from rallypoint.stores import Store
from rallypoint.stores.etcd_v3 import EtcdV3Store


class EtcdV3RoundStore(RoundStore):
    """Keys under the name of one sealed world, on the lease of the run; rank 0 of the next world deletes them."""

    def __init__(self, client: EtcdClient, keys: RecordKeys, run_id: str, placed: Placed, timeout: timedelta) -> None:
        self._client = client
        self._keys = keys
        self._placed = placed
        super().__init__(run_id, placed, None, timeout)

    def _open(self, timeout: timedelta) -> tuple[Store, Callable[[], None]]:
        # A client of its own, so that closing it ends the waits of this connection and of no other.
        client, keys, mine = self._client.twin(), self._keys, self._keys.store(self._placed.seal_id)
        record = client.get(keys.record)
        if record is None:
            client.close()
            raise RendezvousError(
                f"the record of the run is gone from etcd ({keys.record}), and the stores of its rounds with it"
            )
        if self._placed.rank == 0:
            # The stores of earlier worlds lie before and after this one; "0" comes next after "/".
            client.delete(keys.stores, end=mine)
            client.delete(mine[:-1] + "0", end=keys.stores[:-1] + "0")
        return EtcdV3Store(client, mine, lease=record.lease, timeout=timeout), client.close
