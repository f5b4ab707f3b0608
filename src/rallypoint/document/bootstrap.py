"""The store that a node would serve if it became rank 0 (rule 12): its port is bound before the node joins.

So its address is part of the sealed world, and nobody waits for rank 0 to publish it.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rallypoint.client import addresses, round_store
from rallypoint.errors import RendezvousError
from rallypoint.stores.errors import StoreError
from rallypoint.stores.server import StoreServer, listen


class Offer(round_store.Offer):
    """A bound port on which this node would serve a round's store."""

    def __init__(self, address: str) -> None:
        super().__init__(address, _listen(address))
        self._stop: Callable[[], None] | None = None

    def serve(self, *, with_torch: bool) -> None:
        """This node is rank 0: serve the store, with torch's own server or ours."""
        listener = self.take()
        if listener is None:
            return
        if with_torch:
            from rallypoint.torch_bridge.tcp_store import serve

            self._stop = serve(listener)
        else:
            server = StoreServer()
            server.start_in_thread(listener)
            self._stop = server.stop

    def withdraw(self) -> None:
        """It is not needed, or not any more."""
        super().withdraw()
        if self._stop is not None:
            self._stop()
            self._stop = None


def own_address(store: Any | None) -> str:
    """The address by which this machine reaches the store's server, or any other machine where it has none (rule 2)."""
    host, port = getattr(store, "host", None), getattr(store, "port", None)
    if isinstance(host, str) and isinstance(port, int):
        return addresses.own_address(host, port)
    return addresses.own_address()


def _listen(address: str) -> socket.socket:
    """On the node's own address; where that is a name that only its peers know, on all of them."""
    try:
        return listen(address)
    except StoreError as exc:
        if _resolves(address):
            raise round_store.cannot_listen(address, exc) from exc
    for anywhere in ("::", "0.0.0.0"):
        with suppress(StoreError):
            return listen(anywhere)
    raise RendezvousError("this node cannot listen on any address: is there a network at all?")


def _resolves(host: str) -> bool:
    try:
        return bool(socket.getaddrinfo(host, None))
    except (OSError, UnicodeError):
        return False
