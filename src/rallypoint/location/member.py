"""One node's membership in a run through a server, which this very process may host (rule 16)."""

from __future__ import annotations

import time

from rallypoint.client.background import background
from rallypoint.client.identity import fresh_identity
from rallypoint.client.link import Link
from rallypoint.client.link_port import Prepare
from rallypoint.client.member import Member
from rallypoint.client.round_store import Serve, serve_here
from rallypoint.client.session import Session
from rallypoint.core.model import Bounds, Node, Settings
from rallypoint.core.node import View
from rallypoint.errors import RendezvousConnectionError
from rallypoint.location.fixed import Host, local_address


class ServerMember(Member):
    """A node that takes part in a run through a server.

    `is_host` says whether this process may serve the endpoint: True insists on it, False forbids it, None lets it serve
    if the endpoint is an address of this machine and nobody else serves it.
    """

    def __init__(
        self,
        host: str,
        port: int,
        run_id: str,
        bounds: Bounds,
        settings: Settings,
        node: Node,
        *,
        is_host: bool | None = None,
        call_s: float = 60.0,
        close_s: float = 30.0,
        serve_store: Serve = serve_here,
    ) -> None:
        address = local_address(host) if is_host is not False else ""
        self._host = served = Host(address, port, run_id) if address else None
        if is_host:
            self._insist_on_hosting(host, port)
        elif served is not None:
            background().run(_on_loop(served))

        def open_link(prepare: Prepare) -> Link:
            session = Session(run_id, View(node=node, bounds=bounds, settings=settings))
            find_server = served.serve_if_free if served is not None else None
            return Link(host, port, session, prepare=prepare, reborn=fresh_identity, find_server=find_server)

        super().__init__(
            run_id,
            open_link,
            own_address=bool(node.address),
            call_s=call_s,
            close_s=close_s,
            serve_store=serve_store,
        )

    def _let_go(self, deadline: float) -> bool:
        """Serve the others for as long as they are connected."""
        if self._host is None:
            return True
        return background().run(_until_quiet(self._host, max(deadline - time.monotonic(), 0.0)))

    def _insist_on_hosting(self, host: str, port: int) -> None:
        if self._host is None:
            raise RendezvousConnectionError(
                f"is_host is set, but {host} is not an address of this machine: give the endpoint as an address of "
                f"one of its interfaces, or leave is_host out"
            )
        if not background().run(_on_loop(self._host)):
            raise RendezvousConnectionError(
                f"is_host is set, but {host}:{port} cannot be bound: another process has it; use another port, or "
                f"leave is_host out to connect to what is there"
            )


async def _on_loop(host: Host) -> bool:
    return host.serve_if_free()


async def _until_quiet(host: Host, timeout_s: float) -> bool:
    """Wait until nobody is connected to the server that this process hosts, and let go of it.

    Where others of this process go on using it, it stays, and there is nothing to wait for.
    """
    import asyncio

    service = host.service
    try:
        if service is not None and service.connections and host.is_alone:
            await asyncio.wait_for(service.quiet.wait(), timeout_s)
    except (TimeoutError, asyncio.TimeoutError):
        return False
    finally:
        await host.release()
    return True
