"""The store that a node would serve if it became rank 0 (rule 12): its port is bound before the node joins.

So its address is part of the sealed world, and nobody waits for rank 0 to publish it.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from typing import Any

from rallypoint.errors import RendezvousError
from rallypoint.stores.errors import StoreError
from rallypoint.stores.server import StoreServer, listen

_ELSEWHERE = (("192.0.2.1", 9), ("2001:db8::1", 9))
"""Addresses that exist in examples only: asking for the way to them sends nothing."""


class Offer:
    """A bound port on which this node would serve a round's store."""

    def __init__(self, address: str) -> None:
        self._listener: socket.socket | None = _listen(address)
        self._stop: Callable[[], None] | None = None
        port = self._listener.getsockname()[1]
        self.endpoint = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"

    def serve(self, *, with_torch: bool) -> None:
        """This node is rank 0: serve the store, with torch's own server or ours."""
        listener, self._listener = self._listener, None
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
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._stop is not None:
            self._stop()
            self._stop = None


def split_endpoint(endpoint: str) -> tuple[str, int]:
    """Host and port of an offer."""
    host, _, port = endpoint.rpartition(":")
    return host.strip("[]"), int(port)


def own_address(store: Any | None) -> str:
    """The address by which this machine reaches the store's server, or any other machine where it has none (rule 2)."""
    host, port = getattr(store, "host", None), getattr(store, "port", None)
    if isinstance(host, str) and host and isinstance(port, int):
        address = _address_toward(host, port)
        if address and (not _is_loopback(address) or _is_loopback(host)):
            return address
    for elsewhere in _ELSEWHERE:
        address = _address_toward(*elsewhere)
        if address:
            return address
    return "127.0.0.1"


def _address_toward(host: str, port: int) -> str:
    with suppress(OSError, UnicodeError):
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM):
            with socket.socket(family, kind, protocol) as probe, suppress(OSError):
                probe.connect(address)
                return str(probe.getsockname()[0]).partition("%")[0]
    return ""


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(address: str) -> socket.socket:
    """On the node's own address; where that is a name that only its peers know, on all of them."""
    try:
        return listen(address)
    except StoreError as exc:
        if _resolves(address):
            raise RendezvousError(
                f"this node would serve a store on {address}, but {exc}: local_addr must be an address of this machine"
            ) from exc
    for anywhere in ("::", "0.0.0.0"):
        with suppress(StoreError):
            return listen(anywhere)
    raise RendezvousError("this node cannot listen on any address: is there a network at all?")


def _resolves(host: str) -> bool:
    try:
        return bool(socket.getaddrinfo(host, None))
    except (OSError, UnicodeError):
        return False
