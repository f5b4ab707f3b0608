"""A client's connection to a store server: one request and its answer at a time.  Not for several threads at once."""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress

from rallypoint.stores.tcp import replies, wire
from rallypoint.stores.tcp.replies import Reader, T
from rallypoint.stores.tcp.wire import ProtocolError, Query
from rallypoint.waiting import Backoff, Deadline

_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 1.0
_SHORT, _CHUNK = 1 << 9, 1 << 20

# The C structure timeval: whole seconds and microseconds.
_TIMEVAL = struct.Struct("ll")


class StoreConnection:
    """A connected socket that knows when it may no longer be used: after any error that it raises.

    It raises `TimeoutError`, `ConnectionError` and other kinds of `OSError`, and `ProtocolError`.
    """

    def __init__(self, sock: socket.socket, timeout_s: float) -> None:
        self._sock = sock
        self._buffer = b""
        self._timeout_s = 0.0
        # Python's own time-outs ask the system before each step whether it would block; the system's do not.
        sock.setblocking(True)
        self._set_timeout(timeout_s)

    def close(self) -> None:
        """Also from another thread: whoever is reading then fails."""
        with suppress(OSError):  # it may not be connected any more
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def let_go(self) -> None:
        """In a forked child: close this copy of the socket, and leave the connection to the parent."""
        self._sock.close()

    def ask(self, request: bytes, reader: Reader[T], timeout_s: float) -> T:
        """Sends and reads the answer; the time-out holds for each time that nothing moves."""
        if timeout_s != self._timeout_s:
            self._set_timeout(timeout_s)
        self._send(request)
        return reader(self._take)

    def ask_to_wait(self, request: bytes, timeout_s: float, answer_timeout_s: float) -> bool:
        """Sends a request whose answer may take its time; False if the wait had to be cancelled.

        A server that does not answer to that either, for as long as `answer_timeout_s`, is a `TimeoutError`.
        """
        self._set_timeout(answer_timeout_s)
        self._send(request)
        self._set_timeout(timeout_s)
        try:
            return self._stop_waiting(replies.read_flag(self._take))
        except TimeoutError:
            pass
        if self.ask(wire.request(Query.CANCEL_WAIT), replies.read_flag, answer_timeout_s):
            # It was done in the same moment: that answer comes first, the other behind it.
            self._stop_waiting(not replies.read_flag(self._take))
            return True
        return False

    def _set_timeout(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        seconds, fraction = divmod(max(timeout_s, 1e-3), 1)  # zero would be no time-out at all
        timeval = _TIMEVAL.pack(int(seconds), int(fraction * 1e6))
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)

    def _send(self, request: bytes) -> None:
        try:
            self._sock.sendall(request)
        except BlockingIOError as exc:
            raise TimeoutError("it does not take what it is sent") from exc

    def _stop_waiting(self, expected: bool) -> bool:
        if not expected:
            raise ProtocolError("it mixed up the answers to waiting and to not waiting any more")
        return True

    def _take(self, size: int) -> bytes:
        buffer = self._buffer
        if len(buffer) < size:
            pieces, length = [buffer], len(buffer)
            while length < size:
                pieces.append(self._receive(size - length))
                length += len(pieces[-1])
            buffer = b"".join(pieces)
        if len(buffer) == size:  # mostly
            self._buffer = b""
            return buffer
        self._buffer = buffer[size:]
        return buffer[:size]

    def _receive(self, wanted: int) -> bytes:
        try:
            # Room for a short answer is quickly had, and most answers are short.
            received = self._sock.recv(_SHORT if wanted <= _SHORT else min(wanted, _CHUNK))
        except BlockingIOError as exc:
            raise TimeoutError("it did not answer") from exc
        if not received:
            raise ConnectionResetError("it closed the connection")
        return received


def connect(host: str, port: int, timeout_s: float) -> StoreConnection:
    """Connects as soon as a server answers; it may start later than its clients.

    Raises `TimeoutError` from the last failure, or `ProtocolError` if what listens there is no store server.
    """
    deadline, backoff = Deadline.after(timeout_s), Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
    while True:
        try:
            return _connect_once(host, port, max(deadline.left_s(), 1e-3))
        except UnicodeError as exc:  # noqa: PERF203  # trying again is the point
            raise ProtocolError("it is no host name") from exc
        except OSError as exc:
            if not backoff.pause(deadline):
                raise TimeoutError(str(exc)) from exc


def _connect_once(host: str, port: int, timeout_s: float) -> StoreConnection:
    sock = socket.create_connection((host, port), timeout_s)
    connection = StoreConnection(sock, timeout_s)
    try:
        if sock.getsockname() == sock.getpeername():
            # Nobody listens there; the system happened to choose that very port for our end.
            raise ConnectionRefusedError("nobody listens there")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        nonce = os.getpid() & 0xFFFFFFFF
        hello = wire.request(Query.VALIDATE, number=wire.MAGIC) + wire.request(Query.PING, number=nonce)
        if connection.ask(hello, replies.read_nonce, timeout_s) != nonce:
            raise ProtocolError("it is no store server: it answered something else to a ping")
    except BaseException:
        connection.close()
        raise
    return connection
