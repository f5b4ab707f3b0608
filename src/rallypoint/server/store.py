"""The bootstrap store of a round (rule 12): offered by every node before it joins, served by rank 0, prefixed by its name."""

from __future__ import annotations

import socket
from datetime import timedelta

from rallypoint.core.notices import Placed
from rallypoint.server.background import background
from rallypoint.stores import PrefixStore, StoreServer, TcpStore
from rallypoint.stores.late import LateStore
from rallypoint.stores.server import listen


class Offer:
    """A bound port that a node would serve the round's store on, if it became rank 0."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._listener: socket.socket | None = listen(address)
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


class RoundStore(PrefixStore):
    """The store of one sealed world, with that world's own keys only; it connects on first use.

    Rank 0 serves it, on the socket that it had bound before it joined.
    """

    def __init__(self, run_id: str, placed: Placed, listener: socket.socket | None, timeout: timedelta) -> None:
        host, _, port = placed.store.rpartition(":")
        self.seal_id = placed.seal_id
        self.host, self.port = host.strip("[]"), int(port)
        self._server: StoreServer | None = None
        if listener is not None:
            self._server = StoreServer()
            self._server.start_on(background().loop, listener)
        prefix = f"{run_id}/{placed.incarnation}/{placed.round}"
        super().__init__(prefix, LateStore(lambda: TcpStore(self.host, self.port, timeout=timeout)))

    def stop(self) -> None:
        """End the server, where this process has it."""
        if self._server is not None:
            self._server.stop()
