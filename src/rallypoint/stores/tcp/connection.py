"""A client's connection to a store server: one request and its answer at a time, and none after a failure or a fork."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rallypoint import forks
from rallypoint.net import is_address
from rallypoint.stores.base import name_some
from rallypoint.stores.errors import StoreConnectionError, StoreForkError, StoreTimeoutError
from rallypoint.stores.tcp import replies, wire
from rallypoint.stores.tcp.replies import Reader, T
from rallypoint.stores.tcp.wire import ProtocolError, Query
from rallypoint.waiting import Backoff, Deadline, interruptible

_FIRST_PAUSE_S = 0.01
_SHORT, _CHUNK = 1 << 9, 1 << 20

# The C structure timeval: whole seconds and microseconds.
_TIMEVAL = struct.Struct("ll")

Asked = tuple[str, ...]
"""What a caller wants, for messages: a verb and the keys."""


class StoreConnection:
    """A connected socket that the threads of a process share.

    It ends with the first failure: after that it is unknown whose answer comes next.
    """

    def __init__(self, sock: socket.socket, place: str) -> None:
        self._sock = sock
        self._place = place
        self._buffer = b""
        self._timeout_s = 0.0
        self._lock = threading.Lock()
        self._ended: str | None = None
        self._is_parents = False
        self._opened_in = forks.OpenedIn()
        # Python's own time-outs ask the system before each step whether it would block; the system's do not.
        sock.setblocking(True)
        forks.release_in_children(self)

    def ask(self, asked: Asked, request: bytes, reader: Reader[T], answer_timeout_s: float) -> T:
        """One request and its answer.  Other threads, and the server, are waited for as long as `answer_timeout_s`."""
        with self.exchange(asked, answer_timeout_s):
            return self.say(request, reader, answer_timeout_s)

    @contextmanager
    def exchange(self, asked: Asked, answer_timeout_s: float) -> Iterator[None]:
        """A context in which this thread has the connection for itself, to `say` several requests."""
        self._begin(asked, answer_timeout_s)
        began = time.monotonic()
        try:
            yield
        except BaseException as exc:
            self._fail(asked, exc, time.monotonic() - began)
            raise
        finally:
            self._lock.release()

    def say(self, request: bytes, reader: Reader[T], timeout_s: float) -> T:
        """Send a request and read its answer; the time-out holds for each time that nothing moves."""
        if timeout_s != self._timeout_s:
            self._set_timeout(timeout_s)
        try:
            self._sock.sendall(request)
        except BlockingIOError as exc:
            raise TimeoutError("it does not take what it is sent") from exc
        return reader(self._take)

    def say_and_wait(self, request: bytes, timeout_s: float, answer_timeout_s: float) -> bool:
        """Send a request whose answer may take its time; False if the wait had to be cancelled.

        A server that does not answer to that either, for as long as `answer_timeout_s`, is a `TimeoutError`.
        """
        self.say(request, replies.read_nothing, answer_timeout_s)
        self._set_timeout(timeout_s)
        try:
            done = replies.read_flag(self._take)
        except TimeoutError:
            if not self.say(wire.request(Query.CANCEL_WAIT), replies.read_flag, answer_timeout_s):
                return False
            # It was done in the same moment: that answer comes first, the other behind it.
            done = not replies.read_flag(self._take)
        if not done:
            raise ProtocolError("it mixed up the answers to waiting and to not waiting any more")
        return True

    def end(self, why: str) -> str:
        """The connection is of no use any more; returns why, which is the first reason that was given."""
        self._ended = self._ended or why
        self.close()
        return self._ended

    def close(self) -> None:
        """Also from another thread: a call that is reading then fails."""
        with suppress(OSError):  # it may not be connected any more
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def forked(self) -> None:
        """In a forked child: close this copy of the socket, and leave the connection to the parent."""
        self._lock = threading.Lock()  # a thread that only the parent has may hold the other one
        self._is_parents = True
        self._ended = self._opened_in.refusal(
            "this store",
            "the two would read each other's answers",
            "take a clone() in the child, or open a store there",
        )
        self._sock.close()

    def what(self, asked: Asked) -> str:
        """What was asked, and where."""
        verb, *keys = asked
        return f"{verb} {name_some(keys)} at {self._place}" if keys else f"{verb} at {self._place}"

    def _begin(self, asked: Asked, answer_timeout_s: float) -> None:
        if not self._lock.acquire(timeout=answer_timeout_s):
            raise StoreTimeoutError(
                f"cannot {self.what(asked)}: another thread has been waiting on this connection for "
                f"{answer_timeout_s:.3g} s; give it a clone() of the store"
            )
        if self._ended is None:
            return
        self._lock.release()
        if self._is_parents:
            raise StoreForkError(f"cannot {self.what(asked)}: {self._ended}")
        raise StoreConnectionError(f"cannot {self.what(asked)}: the connection is no more, because {self._ended}")

    def _fail(self, asked: Asked, error: BaseException, elapsed_s: float) -> None:
        """Whatever went wrong ends the connection, and is said in words."""
        match error:
            case TimeoutError():
                why = self.end(f"the server did not answer for {elapsed_s:.3g} s")
                raise StoreTimeoutError(f"cannot {self.what(asked)}: {why}") from error
            case OSError() | ProtocolError():
                why = self.end(str(error))
                if asked[0] == "add to":
                    why += " (a server does that when value or sum is not a number of 64 bits)"
                raise StoreConnectionError(f"cannot {self.what(asked)}: {why}") from error
            case _:
                self.end(f"a call was interrupted: {self.what(asked)}")

    def _set_timeout(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        seconds, fraction = divmod(max(timeout_s, 1e-3), 1)  # zero would be no time-out at all
        timeval = _TIMEVAL.pack(int(seconds), int(fraction * 1e6))
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)

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


def connect(host: str, port: int, timeout_s: float, secret: str = "") -> StoreConnection:
    """Connect as soon as a server answers; it may start later than its clients.

    With a secret, both sides prove that they know it.  Raises `StoreTimeoutError`, or `StoreConnectionError` if what listens there is no store server.
    """
    place = f"{host}, port {port}"
    try:
        return keep_trying(lambda left_s: _connect_once(host, port, left_s, place, secret), timeout_s, 1.0)
    except TimeoutError as exc:
        raise StoreTimeoutError(f"no store server answered at {place} within {timeout_s:g} s: {exc}") from exc
    except ProtocolError as exc:
        raise StoreConnectionError(f"cannot use the server at {place}: {exc}") from exc


def keep_trying(attempt: Callable[[float], T], timeout_s: float, longest_pause_s: float) -> T:
    """The result of the first attempt that does not fail; each is told the time that is left.  TimeoutError at the end."""
    deadline, backoff = Deadline.after(timeout_s), Backoff(_FIRST_PAUSE_S, longest_pause_s)
    while True:
        try:
            return attempt(max(deadline.left_s(), 1e-3))
        except (OSError, UnicodeError) as exc:  # noqa: PERF203  # trying again is the point
            if not backoff.pause(deadline):
                raise TimeoutError(str(exc) or type(exc).__name__) from exc


def dial(host: str, port: int, timeout_s: float) -> socket.socket:
    """A connected socket; a name service that hangs does not keep Ctrl-C from ending the wait."""

    def connect() -> socket.socket:
        return socket.create_connection((host, port), timeout_s)

    sock = connect() if is_address(host) else interruptible(connect)
    if sock.getsockname() == sock.getpeername():
        sock.close()
        # The system happened to choose that very port for our end.
        raise ConnectionRefusedError("nobody listens there")
    return sock


def hello(nonce: int) -> bytes:
    """What a client sends first: its introduction and a ping, which a store server answers with the nonce."""
    return wire.request(Query.VALIDATE, number=wire.MAGIC) + wire.request(Query.PING, number=nonce)


def _connect_once(host: str, port: int, timeout_s: float, place: str, secret: str) -> StoreConnection:
    try:
        sock = dial(host, port, timeout_s)
    except UnicodeError as exc:
        raise ProtocolError("it is no host name") from exc
    connection = StoreConnection(sock, place)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if secret:
            from rallypoint.stores.tcp.guarded import Caller  # what proves a secret costs an import

            caller = Caller(secret)
            connection.say(connection.say(caller.opening, caller.prove, timeout_s), replies.read_nothing, timeout_s)
            return connection
        nonce = os.getpid() & 0xFFFFFFFF
        if connection.say(hello(nonce), replies.read_nonce, timeout_s) != nonce:
            raise ProtocolError("it is no store server: it answered something else to a ping")
    except BaseException:
        connection.close()
        raise
    return connection
