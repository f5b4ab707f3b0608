"""One node's membership in a run whose authority is an elected leader on etcd v3."""

from __future__ import annotations

import socket
from datetime import timedelta

from rallypoint.client.identity import fresh_identity
from rallypoint.client.link_port import Prepare
from rallypoint.client.member import Member
from rallypoint.client.round_store import RoundStore, Serve, serve_here
from rallypoint.core.model import Bounds, Node, Settings
from rallypoint.core.node import View
from rallypoint.core.notices import Placed
from rallypoint.etcd.keys import Keys
from rallypoint.etcd.link import EtcdLink
from rallypoint.etcd.round_store import EtcdRoundStore
from rallypoint.etcd_client import EtcdClient


class EtcdMember(Member):
    """A node that takes part in a run through etcd.  The client is the member's own: it is closed with it.

    With `store_in_etcd` the store of each round is kept in etcd, instead of being served by rank 0.
    """

    def __init__(
        self,
        client: EtcdClient,
        prefix: str,
        run_id: str,
        bounds: Bounds,
        settings: Settings,
        node: Node,
        *,
        lease_ttl_s: int = 5,
        call_s: float = 60.0,
        close_s: float = 30.0,
        serve_store: Serve = serve_here,
        store_in_etcd: bool = False,
    ) -> None:
        self._client = client
        self._keys = Keys(prefix, run_id)
        self.serves_store = not store_in_etcd

        def open_link(prepare: Prepare) -> EtcdLink:
            self._etcd_link = EtcdLink(
                client,
                self._keys,
                run_id,
                View(node=node, bounds=bounds, settings=settings),
                lease_ttl_s=lease_ttl_s,
                prepare=prepare,
                reborn=fresh_identity,
            )
            return self._etcd_link

        super().__init__(
            run_id,
            open_link,
            own_address=bool(node.address),
            call_s=call_s,
            close_s=close_s,
            serve_store=serve_store,
        )
        self._etcd_link.get_ready()

    def _make_store(self, placed: Placed, listener: socket.socket | None) -> RoundStore:
        if self.serves_store:
            return super()._make_store(placed, listener)
        if listener is not None:
            listener.close()
        timeout = timedelta(seconds=300)
        return EtcdRoundStore(self._client, self._keys, self.run_id, placed, self._etcd_link.run_lease, timeout)

    def _let_go(self, deadline: float) -> bool:
        """Nobody depends on this process any more."""
        self._client.close()
        return True
