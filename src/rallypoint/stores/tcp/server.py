"""A store server on a socket: in a thread of its own, or on an event loop of the caller's.

The format has no authentication: whoever reaches the port can read and write every key.  So it listens on the address
that it was given, and on no other.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from rallypoint import forks, net
from rallypoint.stores.errors import StoreError
from rallypoint.stores.tcp.server_core import StoreServerCore

if TYPE_CHECKING:
    import asyncio

    from rallypoint.stores.tcp.listener import Listener

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

    Start it once, in one of three ways: `start_in_thread(sock)`, which answers fastest, `await start(sock)` on the running
    event loop, or `start_on(loop, sock)` from any other thread.  The socket may have been bound, and its port published,
    long before.  It serves in the process that started it: a forked child has nothing of it, and cannot stop it.
    """

    def __init__(self, core: StoreServerCore | None = None) -> None:
        self.core = core or StoreServerCore()
        self._listener: Listener | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._due: asyncio.TimerHandle | None = None
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

    async def start(self, sock: socket.socket) -> None:
        """Serves on the running event loop; returns as soon as it does."""
        import asyncio

        listener = self._open(sock)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(listener, self._turn)

    def start_on(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        """Serves on an event loop that runs in another thread.

        It returns at once: connections queue up on the socket until the loop gets to it.
        """
        if _running_loop() is loop:
            raise StoreError("this is the event loop's own thread: await start() instead")
        listener = self._open(sock)
        self._loop = loop

        def begin() -> None:
            if not self._stopped:
                loop.add_reader(listener, self._turn)

        try:
            loop.call_soon_threadsafe(begin)
        except RuntimeError:  # the loop was closed
            self._stopped = True
            listener.close()
            raise

    def start_in_thread(self, sock: socket.socket) -> None:
        """Serves in a thread of its own, which ends with `stop` or with the process."""
        listener = self._open(sock)
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
        if self._listener is None or self._stopped:
            return
        self._stopped = True
        if self._loop is not None:
            self._stop_on(self._loop)
            return
        assert self._thread is not None
        assert self._alarm is not None
        self._listener.is_over = True
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

    def _stop_on(self, loop: asyncio.AbstractEventLoop) -> None:
        if _running_loop() is loop or not loop.is_running():
            self._close()
            return
        done = threading.Event()

        def close() -> None:
            self._close()
            done.set()

        loop.call_soon_threadsafe(close)
        done.wait(_STOP_TIMEOUT_S)

    def _open(self, sock: socket.socket) -> Listener:
        from rallypoint.stores.tcp.listener import Listener  # not before a server starts: clients do without

        if self._listener is not None:
            raise StoreError("this store server was started before; make another")
        self._address = sock.getsockname()[:2]
        self._listener = Listener(self.core, sock)
        forks.release_in_children(self)
        return self._listener

    def _turn(self) -> None:
        """On an event loop: whoever is ready is served."""
        assert self._listener is not None
        assert self._loop is not None
        due_s = self._listener.turn()
        if self._due is not None:
            self._due.cancel()
        self._due = None if due_s is None else self._loop.call_later(due_s, self._turn)

    def _close(self) -> None:
        assert self._listener is not None
        assert self._loop is not None
        if self._due is not None:
            self._due.cancel()
        if not self._loop.is_closed():
            self._loop.remove_reader(self._listener)
        self._listener.close()

    def _bound(self) -> tuple[str, int]:
        if self._address is None:
            raise StoreError("this store server has not been started")
        return self._address


def _running_loop() -> asyncio.AbstractEventLoop | None:
    import asyncio

    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
