"""A store server on a socket, in a thread of its own: in each step, whatever is ready is read, answered and sent.

Between readiness and answer there is nothing but this: callbacks of asyncio, one for each event, would cost more than
the answers.

The format has no authentication: without a secret (see `guarded`), a client that reaches the port can read and write every
key.  So it listens on the address that it was given, and on no other.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from rallypoint import forks, net
from rallypoint.stores.errors import StoreError
from rallypoint.stores.tcp.server_core import STOP_WAITING, StoreServerCore, StoreSession

# More would be taken from the system, and given back, each time.
_RECEIVED_AT_ONCE = 1 << 16
# How many connections are accepted at once, and for how long none is when the system has no room.
_ACCEPTED_AT_ONCE = 256
_PAUSE_S = 0.5
_STOP_TIMEOUT_S = 10.0

_READABLE, _WRITABLE = selectors.EVENT_READ, selectors.EVENT_WRITE

_log = logging.getLogger("rallypoint.stores")


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
        self._sock: socket.socket | None = None
        self._address: tuple[str, int] | None = None
        self._connections: dict[StoreSession, _AcceptedConnection] = {}
        self.broken: list[_AcceptedConnection] = []
        self._paused_until: float | None = None
        # May be set in the middle of a step: a store that hosts this server may be collected in the server's own thread.
        self._stopped = False

    @property
    def host(self) -> str:
        """The address that it is bound to."""
        return self._bound()[0]

    @property
    def port(self) -> int:
        return self._bound()[1]

    def _bound(self) -> tuple[str, int]:
        if self._address is None:
            raise StoreError("this store server has not been started")
        return self._address

    def start_in_thread(self, sock: socket.socket) -> None:
        """Serves in a thread of its own, which ends with `stop` or with the process."""
        if self._sock is not None:
            raise StoreError("this store server was started before; make another")
        self._address = sock.getsockname()[:2]
        sock.setblocking(False)
        self._sock = sock
        self.selector = selectors.DefaultSelector()
        self.watch(sock, self._accept)
        self._alarm, self._ring = socket.socketpair()
        self.watch(self._ring, lambda _: self._ring.recv(1))
        forks.release_in_children(self)
        # The thread holds the server: one that nothing else holds goes on, and its alarm does not go off.
        self._thread = threading.Thread(target=self._run, args=(sock,), name="rallypoint-store", daemon=True)
        try:
            self._thread.start()
        except BaseException:
            self._stopped = True
            self._close(sock)
            self._alarm.close()
            raise

    def stop(self) -> None:
        """Closes the socket and all connections, from any thread; a client that waits sees the end of its connection."""
        if self._sock is None or self._stopped:
            return
        self._stopped = True
        with self._alarm:
            with suppress(BrokenPipeError):  # it has noticed by itself, between two turns
                self._alarm.send(b"!")
            if threading.current_thread() is not self._thread:
                self._thread.join(_STOP_TIMEOUT_S)

    def forked(self) -> None:
        """In a forked child: close the copies of all sockets.  What the system watches is the parent's, and stays."""
        self._stopped = True
        assert self._sock is not None
        for sock in (self._sock, self._alarm, self._ring, *(each.sock for each in self._connections.values())):
            sock.close()
        self.selector.close()

    def _run(self, sock: socket.socket) -> None:
        try:
            while not self._stopped:
                self._step(sock)
        finally:
            self._close(sock)

    def _step(self, sock: socket.socket) -> None:
        """Serves the sockets that are ready, or waits until one is."""
        wait_s: float | None = None
        if self._paused_until is not None and (wait_s := self._paused_until - time.monotonic()) <= 0:
            self._paused_until = wait_s = None
            self.watch(sock, self._accept)
        for key, events in self.selector.select(wait_s):
            key.data(events)
        while self.broken:
            self.broken.pop().end()

    def _close(self, sock: socket.socket) -> None:
        sock.close()
        for connection in list(self._connections.values()):
            connection.end()
        self.selector.close()
        self._ring.close()

    def _accept(self, _: int) -> None:
        assert self._sock is not None
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as exc:
                # Mostly the system has no room for another: the connections that there are go on, and the others wait.
                _log.warning("The store cannot accept a connection, and tries again in %s s: %s.", _PAUSE_S, exc)
                self.selector.unregister(self._sock)
                self._paused_until = time.monotonic() + _PAUSE_S
                return
            sock.setblocking(False)
            session = self.core.connect(net.written(*address[:2]))
            self._connections[session] = _AcceptedConnection(self, sock, session)

    # For the connections ----------------------------------------------------------------------------------------------

    def watch(self, sock: socket.socket, handle: Callable[[int], object]) -> None:
        """From now on, let this handle whatever comes in on the socket."""
        self.selector.register(sock, _READABLE, handle)

    def wake(self, sessions: Sequence[StoreSession]) -> None:
        """They have nothing more to wait for."""
        for session in sessions:
            connection = self._connections.get(session)
            if connection is not None:
                connection.send(STOP_WAITING)

    def lost(self, session: StoreSession) -> None:
        """A connection has ended."""
        del self._connections[session]
        self.wake(self.core.disconnect(session))


class _AcceptedConnection:
    __slots__ = ("_ends", "_server", "_session", "_unsent", "_unsent_bytes", "is_open", "sock")

    def __init__(self, server: StoreServer, sock: socket.socket, session: StoreSession) -> None:
        self._server = server
        self.sock = sock
        self._unsent: deque[bytes | memoryview] = deque()
        self._unsent_bytes = 0
        self._session = session
        self._ends = False
        self.is_open = True
        server.watch(sock, self._ready)

    def send(self, data: bytes) -> None:
        """Sends now what the socket takes, and the rest when it takes more."""
        sent = 0 if self._unsent else self._send_some(data)
        if sent < len(data):
            is_first = not self._unsent
            self._unsent.append(memoryview(data)[sent:])
            self._unsent_bytes += len(data) - sent
            if is_first:
                self._await()

    def end(self) -> None:
        """Closes the connection, once."""
        if not self.is_open:
            return
        self.is_open = False
        self._server.selector.unregister(self.sock)
        self._unsent.clear()
        self.sock.close()
        self._server.lost(self._session)

    def _ready(self, events: int) -> None:
        if events != _READABLE and self._unsent:
            self._send_rest()
        if self._ends or not self.is_open or events == _WRITABLE:
            return
        try:
            data = self.sock.recv(_RECEIVED_AT_ONCE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.end()
            return
        if data:
            self._received(data)
        elif self._unsent:
            # It has said all that it had to say, and may still read the answers.
            self._ends = True
            self._await()
        else:
            self.end()

    def _received(self, data: bytes) -> None:
        session = self._session
        try:
            answer, woken = self._server.core.receive(session, data, self._unsent_bytes)
        except Exception:  # noqa: BLE001  # a fault of ours costs one connection, not the thread that serves the others
            _log.exception("The store failed, and closed the connection from %s.", session.name)
            self.end()
            return
        if woken:
            self._server.wake(woken)
        for piece in answer:
            self.send(piece)
        if session.refusal is not None:
            _log.warning("The store closed the connection from %s: %s.", session.name, session.refusal)
            self.end()  # whatever it has not read by now: it would keep the connection open

    def _send_some(self, data: bytes | memoryview) -> int:
        try:
            return self.sock.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            # It ends after this step, not in the middle of what is being done for others; nothing more is sent.
            self._server.broken.append(self)
            return len(data)

    def _send_rest(self) -> None:
        while self._unsent:
            first = self._unsent[0]
            sent = self._send_some(first)
            self._unsent_bytes -= sent
            if sent < len(first):
                self._unsent[0] = memoryview(first)[sent:]
                return
            self._unsent.popleft()
        if self._ends:
            self.end()
        else:
            self._await()

    def _await(self) -> None:
        """Says what is awaited from now on."""
        events = (0 if self._ends else _READABLE) | (_WRITABLE if self._unsent else 0)
        self._server.selector.modify(self.sock, events, self._ready)
