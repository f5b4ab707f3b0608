"""One node's membership in a run whose authority is an elected leader on etcd v3."""

from __future__ import annotations

from rallypoint.core.model import Bounds, Node, Settings
from rallypoint.core.node import View
from rallypoint.etcd.keys import Keys
from rallypoint.etcd.link import EtcdLink
from rallypoint.etcd_client import EtcdClient
from rallypoint.membership.link import Prepare
from rallypoint.membership.member import Member, fresh_identity
from rallypoint.membership.round_store import Serve, serve_here


class EtcdMember(Member):
    """A node that takes part in a run through etcd.  The client is the member's own: it is closed with it."""

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
    ) -> None:
        self._client = client

        def open_link(prepare: Prepare) -> EtcdLink:
            return EtcdLink(
                client,
                Keys(prefix, run_id),
                run_id,
                View(node=node, bounds=bounds, settings=settings),
                lease_ttl_s=lease_ttl_s,
                prepare=prepare,
                reborn=fresh_identity,
            )

        super().__init__(
            run_id,
            open_link,
            own_address=bool(node.address),
            call_s=call_s,
            close_s=close_s,
            serve_store=serve_store,
        )

    def _let_go(self, deadline: float) -> bool:
        """Nobody depends on this process any more."""
        self._client.close()
        return True
