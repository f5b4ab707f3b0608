"""The bootstrap store of a round (rule 12): offered by every node before it joins, served by rank 0, prefixed by its name."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from datetime import timedelta

from rallypoint.core.notices import Placed
from rallypoint.errors import RendezvousError
from rallypoint.stores import PrefixStore, Store, StoreServer, TcpStore
from rallypoint.stores.errors import StoreError
from rallypoint.stores.late import LateStore
from rallypoint.stores.server import listen

Serve = Callable[[socket.socket], Callable[[], None]]
"""Serves a store on a listening socket, which it takes over, and returns what ends it."""


def serve_here(listener: socket.socket) -> Callable[[], None]:
    """Serve a store on the background thread of this process."""
    from rallypoint.client.background import background  # it brings asyncio, which torch's server does not need

    server = StoreServer()
    server.start_on(background().loop, listener)
    return server.stop


def cannot_listen(address: str, problem: StoreError) -> RendezvousError:
    """What to say, and to do, where a node cannot offer a store on its own address."""
    advice = "local_addr must be an address of this machine"
    if isinstance(problem.__cause__, OSError) and problem.__cause__.errno in (errno.EMFILE, errno.ENFILE):
        advice = "let this process open more files (ulimit -n), or see what has so many open"
    return RendezvousError(f"this node would serve a store on {address}, but {problem}: {advice}")


class Offer:
    """A bound port that a node would serve the round's store on, if it became rank 0."""

    def __init__(self, address: str, listener: socket.socket | None = None) -> None:
        self.address = address
        self._listener: socket.socket | None = listener or listen(address)
        port = self._listener.getsockname()[1]
        self.endpoint = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"

    @property
    def is_open(self) -> bool:
        """Whether it still stands: neither taken nor withdrawn."""
        return self._listener is not None

    def take(self) -> socket.socket | None:
        """The listening socket, to be served; once."""
        listener, self._listener = self._listener, None
        return listener

    def withdraw(self) -> None:
        """It is not needed."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None


def split_endpoint(endpoint: str) -> tuple[str, int]:
    """Host and port of an offer."""
    host, _, port = endpoint.rpartition(":")
    return host.strip("[]"), int(port)


class RoundStore(PrefixStore):
    """The store of one sealed world, with that world's own keys only; it connects on first use.

    Rank 0 serves it, on the socket that it had bound before it joined.
    """

    def __init__(
        self,
        run_id: str,
        placed: Placed,
        listener: socket.socket | None,
        timeout: timedelta,
        serve: Serve = serve_here,
    ) -> None:
        self.seal_id = placed.seal_id
        self.host, self.port = split_endpoint(placed.store)
        self._stop = serve(listener) if listener is not None else None
        self.prefix = f"{run_id}/{placed.incarnation}/{placed.round}"
        super().__init__(self.prefix, LateStore(lambda: self._open(timeout)[0]))

    def connect(self, timeout: timedelta) -> tuple[PrefixStore, Callable[[], None]]:
        """The same keys over a connection of its own, and what ends that connection, from any thread."""
        store, close = self._open(timeout)
        return PrefixStore(self.prefix, store), close

    def stop(self) -> None:
        """End the server, where this process has it."""
        if self._stop is not None:
            self._stop()

    def _open(self, timeout: timedelta) -> tuple[Store, Callable[[], None]]:
        store = TcpStore(self.host, self.port, timeout=timeout)
        return store, store.close
