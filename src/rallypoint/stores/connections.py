"""The asyncio side of a store server.  Imported only when a server starts, because asyncio is slow to import.

It stands on the loop's readiness events instead of asyncio's transports: those take several times as long to accept a
connection, and half as long again for a request.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections import deque

from rallypoint.stores.serving import Send, Session, StoreServerCore

_BUFFER_BYTES = 1 << 18
# How many are accepted before others have their turn, and for how long nobody is when the system has no room.
_ACCEPTED_AT_ONCE = 256
_PAUSE_S = 0.5
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_log = logging.getLogger("rallypoint.stores")


class Listener:
    """Accepts connections on a socket and carries bytes between them and the core, on one event loop."""

    def __init__(self, core: StoreServerCore) -> None:
        self._core = core
        self._lines: dict[Session, _Line] = {}
        self._sock: socket.socket | None = None
        # All connections read into one buffer: each of them is done with it before the next one reads.
        self.buffer = memoryview(bytearray(_BUFFER_BYTES))

    def open(self, sock: socket.socket) -> None:
        """Serves the socket, which must be listening, on the running loop."""
        self.loop = asyncio.get_running_loop()
        sock.setblocking(False)
        self._sock = sock
        self.loop.add_reader(sock, self._accept)

    def close(self) -> None:
        """Closes the socket and all connections; to be called on the event loop."""
        if self._sock is not None:
            self.loop.remove_reader(self._sock)
            self._sock.close()
            self._sock = None
        for line in list(self._lines.values()):
            line.end()

    def received(self, line: _Line, data: bytes) -> None:
        session = line.session
        self._perform(self._core.receive(session, data, line.unsent_bytes))
        if session.refusal is not None and line.is_open:
            _log.warning("The store closed the connection from %s: %s.", session.name, session.refusal)
            line.end()  # whatever it has not read by now: it would keep the connection open

    def lost(self, line: _Line, error: OSError | None) -> None:
        session = line.session
        del self._lines[session]
        if session.refusal is None and (query := session.reader.unfinished) is not None:
            _log.info("%s left in the middle of a %s request: %s.", session.name, query.name.lower(), error or "end")
        self._perform(self._core.disconnect(session))

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            if self._sock is None:
                return
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as exc:
                if exc.errno not in _NO_ROOM:
                    raise
                self._pause(exc)
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A peer whose machine died says nothing: the operating system asks for it now and then.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            session = self._core.connect(f"{address[0]}:{address[1]}")
            self._lines[session] = _Line(self, sock, session)

    def _pause(self, why: OSError) -> None:
        """The system has no room for another connection: those that there are go on, and the others wait."""
        _log.warning("The store cannot accept a connection, and tries again in %s s: %s.", _PAUSE_S, why)
        assert self._sock is not None
        self.loop.remove_reader(self._sock)
        self.loop.call_later(_PAUSE_S, self._resume)

    def _resume(self) -> None:
        if self._sock is not None:
            self.loop.add_reader(self._sock, self._accept)

    def _perform(self, sends: list[Send]) -> None:
        for session, data in sends:
            line = self._lines.get(session)
            if line is not None:
                line.send(data)


class _Line:
    """One connection."""

    __slots__ = ("_ends", "_listener", "_sock", "_unsent", "is_open", "session", "unsent_bytes")

    def __init__(self, listener: Listener, sock: socket.socket, session: Session) -> None:
        self._listener = listener
        self._sock = sock
        self._unsent: deque[bytes | memoryview] = deque()
        self._ends = False
        self.session = session
        self.unsent_bytes = 0
        self.is_open = True
        listener.loop.add_reader(sock, self._readable)

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
                self._listener.loop.call_soon(self.end, exc)
                return
            if sent == len(data):
                return
            self._listener.loop.add_writer(self._sock, self._writable)
        self._unsent.append(memoryview(data)[sent:])
        self.unsent_bytes += len(data) - sent

    def end(self, error: OSError | None = None) -> None:
        """Closes the connection, once."""
        if not self.is_open:
            return
        self.is_open = False
        loop = self._listener.loop
        loop.remove_reader(self._sock)
        if self._unsent:
            loop.remove_writer(self._sock)
            self._unsent.clear()
        self._sock.close()
        self._listener.lost(self, error)

    def _readable(self) -> None:
        try:
            size = self._sock.recv_into(self._listener.buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as exc:
            self.end(exc)
            return
        if size:
            self._listener.received(self, bytes(self._listener.buffer[:size]))
        elif self._unsent:
            # It has said all that it had to say, and may still read the answers.
            self._ends = True
            self._listener.loop.remove_reader(self._sock)
        else:
            self.end()

    def _writable(self) -> None:
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
        self._listener.loop.remove_writer(self._sock)
        if self._ends:
            self.end()
