"""The sockets of a store server: in a turn, whatever is ready is read, answered and sent.

Between readiness and answer there is nothing but this: callbacks of asyncio, one for each event, would cost more than
the answers.
"""

from __future__ import annotations

import logging
import select
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence

from rallypoint.stores.tcp.server_core import STOP_WAITING, StoreServerCore, StoreSession

# More would be taken from the system, and given back, each time.
_RECEIVED_AT_ONCE = 1 << 16
# How many are accepted before others have their turn, and for how long nobody is when the system has no room.
_ACCEPTED_AT_ONCE = 256
_PAUSE_S = 0.5

_READABLE, _WRITABLE = select.POLLIN, select.POLLOUT

_log = logging.getLogger("rallypoint.stores")


class PollReadiness:
    """Which of many sockets are ready, for systems without epoll."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self.register, self.modify, self.unregister = self._poll.register, self._poll.modify, self._poll.unregister

    def poll(self, timeout_s: float | None = None) -> list[tuple[int, int]]:
        """The file descriptors that are ready, and for what."""
        return self._poll.poll(None if timeout_s is None else 1000 * timeout_s)

    def close(self) -> None:
        """Nothing to close: the system keeps nothing of it."""


if sys.platform == "linux":
    Readiness = select.epoll
else:
    Readiness = PollReadiness


class Listener:
    """Accepts connections on a listening socket and carries bytes between them and the core.  One thread at a time."""

    def __init__(self, core: StoreServerCore, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.core = core
        self._sock = sock
        self._connections: dict[StoreSession, _AcceptedConnection] = {}
        self.broken: list[tuple[_AcceptedConnection, OSError]] = []
        self._paused_until: float | None = None
        # May be set by any thread, and in the middle of a turn: a store that hosts this server may be collected then.
        self.is_over = False
        self.readiness = Readiness()
        self._when_ready: dict[int, Callable[[int], object]] = {}
        self.watch(sock, self._accept)

    def run(self) -> None:
        """Takes turns until it `is_over`, and then closes everything."""
        try:
            while not self.is_over:
                self._turn()
        finally:
            self.close()

    def close(self) -> None:
        """Closes the socket and all connections."""
        self._sock.close()
        for connection in list(self._connections.values()):
            connection.end()
        self.readiness.close()

    def let_go(self) -> None:
        """In a forked child: close the copies of all sockets.  What the system watches is the parent's, and stays."""
        self._sock.close()
        for connection in self._connections.values():
            connection.let_go()
        self.readiness.close()

    def watch(self, sock: socket.socket, handle: Callable[[int], object]) -> None:
        """From now on, let this handle whatever comes in on the socket."""
        fd = sock.fileno()
        self.readiness.register(fd, _READABLE)
        self._when_ready[fd] = handle

    def forget(self, sock: socket.socket) -> None:
        """The socket is not watched any more."""
        fd = sock.fileno()
        self.readiness.unregister(fd)
        del self._when_ready[fd]

    def wake(self, sessions: Sequence[StoreSession]) -> None:
        """They have nothing more to wait for."""
        for session in sessions:
            connection = self._connections.get(session)
            if connection is not None:
                connection.send(STOP_WAITING)

    def lost(self, connection: _AcceptedConnection, error: OSError | None) -> None:
        """A connection has ended."""
        session = connection.session
        del self._connections[session]
        if session.refusal is None and (query := session.reader.unfinished) is not None:
            _log.info("%s left in the middle of a %s request: %s.", session.name, query.name.lower(), error or "end")
        self.wake(self.core.disconnect(session))

    def _turn(self) -> None:
        """Serves whoever is ready, or waits until somebody is."""
        wait_s = None if self._paused_until is None else self._resume(self._paused_until)
        for fd, events in self.readiness.poll(wait_s):
            handle = self._when_ready.get(fd)  # it may have been closed in this very turn
            if handle is not None:
                handle(events)
        while self.broken:
            connection, error = self.broken.pop()
            connection.end(error)

    def _accept(self, _: int) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as exc:
                # Mostly the system has no room for another: the connections that there are go on, and the others wait.
                _log.warning("The store cannot accept a connection, and tries again in %s s: %s.", _PAUSE_S, exc)
                self.forget(self._sock)
                self._paused_until = time.monotonic() + _PAUSE_S
                return
            sock.setblocking(False)
            session = self.core.connect(f"{address[0]}:{address[1]}")
            self._connections[session] = _AcceptedConnection(self, sock, session)

    def _resume(self, when: float) -> float | None:
        """Accepts again when it is time; returns how long that takes."""
        left_s = when - time.monotonic()
        if left_s > 0:
            return left_s
        self._paused_until = None
        self.watch(self._sock, self._accept)
        return None


class _AcceptedConnection:
    """One connection."""

    __slots__ = ("_ends", "_listener", "_receive", "_sock", "_unsent", "is_open", "session", "unsent_bytes")

    def __init__(self, listener: Listener, sock: socket.socket, session: StoreSession) -> None:
        self._listener = listener
        self._sock = sock
        self._receive = sock.recv
        self._unsent: deque[bytes | memoryview] = deque()
        self._ends = False
        self.session = session
        self.unsent_bytes = 0
        self.is_open = True
        listener.watch(sock, self._ready)

    def send(self, data: bytes) -> None:
        """Sends now what the socket takes, and the rest when it takes more."""
        sent = 0
        if not self._unsent:
            try:
                sent = self._sock.send(data)
            except (BlockingIOError, InterruptedError):
                pass
            except OSError as exc:
                # Not in the middle of what is being done for others.
                self._listener.broken.append((self, exc))
                return
            if sent == len(data):
                return
            self._unsent.append(memoryview(data)[sent:])
            self._await()
        else:
            self._unsent.append(data)
        self.unsent_bytes += len(data) - sent

    def end(self, error: OSError | None = None) -> None:
        """Closes the connection, once."""
        if not self.is_open:
            return
        self.is_open = False
        self._listener.forget(self._sock)
        self._unsent.clear()
        self._sock.close()
        self._listener.lost(self, error)

    def let_go(self) -> None:
        """In a forked child: leave the connection to the parent."""
        self._sock.close()

    def _ready(self, events: int) -> None:
        if events != _READABLE and self._unsent:
            self._send_rest()
        if self._ends or not self.is_open or events == _WRITABLE:
            return
        try:
            data = self._receive(_RECEIVED_AT_ONCE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as exc:
            self.end(exc)
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
        session = self.session
        try:
            answer, woken = self._listener.core.receive(session, data, self.unsent_bytes)
        except Exception:  # noqa: BLE001  # a fault of ours costs one connection, not the thread that serves the others
            _log.exception("The store failed, and closed the connection from %s.", session.name)
            self.end()
            return
        if woken:
            self._listener.wake(woken)
        if answer:
            self.send(answer)
        if session.refusal is not None:
            _log.warning("The store closed the connection from %s: %s.", session.name, session.refusal)
            self.end()  # whatever it has not read by now: it would keep the connection open

    def _send_rest(self) -> None:
        while self._unsent:
            first = self._unsent[0]
            try:
                sent = self._sock.send(first)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as exc:
                self.end(exc)
                return
            self.unsent_bytes -= sent
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
        self._listener.readiness.modify(self._sock.fileno(), events)
