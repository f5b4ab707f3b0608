"""The store of a round in etcd itself, for runs that ask for it: no node serves it, and it outlives every node."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from datetime import timedelta

from rallypoint.client.member import Member
from rallypoint.client.round_store import RoundStore
from rallypoint.errors import RendezvousError
from rallypoint.etcd_client import EtcdClient, EtcdError, EtcdForkError
from rallypoint.location.registers.etcd_v3_keys import RecordKeys
from rallypoint.messages.notices import Placed
from rallypoint.stores import Store
from rallypoint.stores.errors import StoreError, StoreForkError
from rallypoint.stores.etcd_v3.store import EtcdV3Store


class EtcdV3RoundStore(RoundStore):
    """Keys under the name of one sealed world, on the lease of the run; rank 0 of the next world deletes them."""

    def __init__(
        self, client: EtcdClient, keys: RecordKeys, member: Member, placed: Placed, timeout: timedelta
    ) -> None:
        self._client, self._keys = client, keys
        super().__init__(member, placed, timeout)

    def _open(self, timeout: timedelta) -> tuple[Store, Callable[[], None]]:
        try:
            return self._open_twin(timeout)
        except EtcdError as exc:
            kind = StoreForkError if isinstance(exc, EtcdForkError) else StoreError
            raise kind(f"{self._title} cannot be opened: {exc}") from exc

    def _open_twin(self, timeout: timedelta) -> tuple[Store, Callable[[], None]]:
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
        store = EtcdV3Store(client, mine, lease=record.lease, timeout=timeout)
        weakref.finalize(store, client.close).atexit = False
        return store, client.close
