"""A store server on a socket, in a thread of its own.

The format has no authentication: whoever reaches the port can read and write every key.  So it listens on the address
that it was given, and on no other.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from rallypoint import forks, net
from rallypoint.stores.errors import StoreError
from rallypoint.stores.tcp.listener import Listener
from rallypoint.stores.tcp.server_core import StoreServerCore

_STOP_TIMEOUT_S = 10.0


def listen(host: str, port: int = 0) -> socket.socket:
    """A socket that listens on exactly this address; connections queue up on it until a server takes it.

    Of a name with several addresses it takes the first that works.  `::` means both families, where there are both.
    """
    if not host:
        raise StoreError("a store server needs an address to listen on; `::` or `0.0.0.0` would be all of them")
    try:
        return net.listen(host, port)
    except OSError as exc:
        raise StoreError(f"cannot listen on {host}, port {port}: {exc}") from exc


class StoreServer:
    """Serves a core on a listening socket, which it owns from then on.

    Start it once.  The socket may have been bound, and its port published, long before.  It serves in the process that
    started it: a forked child has nothing of it, and cannot stop it.
    """

    def __init__(self, core: StoreServerCore | None = None) -> None:
        self.core = core or StoreServerCore()
        self._listener: Listener | None = None
        self._thread: threading.Thread | None = None
        self._alarm: socket.socket | None = None
        self._address: tuple[str, int] | None = None
        self._stopped = False

    @property
    def host(self) -> str:
        """The address that it is bound to."""
        return self._bound()[0]

    @property
    def port(self) -> int:
        return self._bound()[1]

    def start_in_thread(self, sock: socket.socket) -> None:
        """Serves in a thread of its own, which ends with `stop` or with the process."""
        if self._listener is not None:
            raise StoreError("this store server was started before; make another")
        self._address = sock.getsockname()[:2]
        self._listener = listener = Listener(self.core, sock)
        forks.release_in_children(self)
        self._alarm, ring = socket.socketpair()
        listener.watch(ring, lambda _: ring.recv(1))
        self._thread = threading.Thread(target=self._run, args=(listener, ring), name="rallypoint-store", daemon=True)
        try:
            self._thread.start()
        except BaseException:
            self._stopped = True
            listener.close()
            ring.close()
            self._alarm.close()
            raise

    def stop(self) -> None:
        """Closes the socket and all connections, from any thread; who waits is told by the end of its connection."""
        if self._listener is None or self._thread is None or self._alarm is None or self._stopped:
            return
        self._stopped = self._listener.is_over = True
        with self._alarm:
            with suppress(BrokenPipeError):  # it has noticed by itself, between two turns
                self._alarm.send(b"!")
            if threading.current_thread() is not self._thread:
                self._thread.join(_STOP_TIMEOUT_S)

    def forked(self) -> None:
        """In a forked child: the server is the parent's, and ends with the parent."""
        self._stopped = True
        if self._listener is not None:
            self._listener.let_go()
        if self._alarm is not None:
            self._alarm.close()

    def _run(self, listener: Listener, ring: socket.socket) -> None:
        """On the thread, which holds the server: one that nobody else holds goes on, and its alarm does not go off."""
        with ring:
            listener.run()

    def _bound(self) -> tuple[str, int]:
        if self._address is None:
            raise StoreError("this store server has not been started")
        return self._address
