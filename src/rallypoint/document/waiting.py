"""Waiting for news: on a connection of its own where the store is served over TCP, by asking again where it is not.

Whoever wants the waiting thread for something else wakes it.
"""

from __future__ import annotations

import select
import socket
from contextlib import suppress
from typing import Any, Protocol

from rallypoint.stores import wire
from rallypoint.stores.wire import Query

_CONNECT_S = 5.0
_KEY_START = b"/"
"""torch's clients put this before every key."""


class Waker:
    """Wakes a thread that waits in `wait`, from any other."""

    def __init__(self) -> None:
        self._inner, self._outer = socket.socketpair()
        self._inner.setblocking(False)
        self._outer.setblocking(False)

    def wake(self) -> None:
        """End the wait that is under way, or the next one."""
        with suppress(OSError):  # full: it is awake already; closed: nobody waits
            self._outer.send(b"!")

    def wait(self, timeout_s: float, also: socket.socket | None = None) -> bool:
        """Wait; whether `also` has something to read."""
        poll = select.poll()
        poll.register(self._inner, select.POLLIN)
        if also is not None:
            poll.register(also, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(max(timeout_s, 0.0) * 1000.0)}
        if self._inner.fileno() in ready:
            with suppress(OSError):
                self._inner.recv(4096)
        return also is not None and also.fileno() in ready

    def close(self) -> None:
        """Let go of it; nobody waits any more."""
        self._inner.close()
        self._outer.close()


class Bell(Protocol):
    """Hears a key being set.  A store may bring its own, by a method `bell()`; it raises OSError when it fails."""

    def wait(self, key: str, timeout_s: float, waker: Waker) -> bool:
        """Wait until the key is there, the time is over or somebody wakes us; whether the key is there."""

    def close(self) -> None:
        """Let go of it."""


class TcpBell:
    """Hears a key being set on a store server, torch's or ours, over a connection that only waits.

    Raises OSError when that connection fails; make another then, or ask instead.
    """

    def __init__(self, host: str, port: int) -> None:
        self._key = b""
        self._sock = socket.create_connection((host, port), _CONNECT_S)
        try:
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sock.sendall(wire.request(Query.VALIDATE, number=wire.MAGIC) + wire.request(Query.PING, number=7))
            if self._take(wire.NONCE.size) != wire.NONCE.pack(7):
                raise ConnectionError("it is no store server")
        except BaseException:
            self._sock.close()
            raise

    def wait(self, key: str, timeout_s: float, waker: Waker) -> bool:
        """Wait until the key is there, the time is over or somebody wakes us; whether the key is there."""
        name = _KEY_START + key.encode("utf-8", "surrogateescape")
        if name != self._key:
            self._cancel()
            self._sock.sendall(wire.request(Query.WAIT, [name]))
            self._key = name
        if not waker.wait(timeout_s, self._sock):
            return False
        self._take(1)
        self._key = b""
        return True

    def close(self) -> None:
        """End the connection."""
        self._sock.close()

    def _cancel(self) -> None:
        if self._key:
            self._key = b""
            self._sock.sendall(wire.request(Query.CANCEL_WAIT))
            # Where the key came in the same moment, that answer comes first.
            while self._take(1) != b"\x01":
                pass

    def _take(self, size: int) -> bytes:
        taken = b""
        while len(taken) < size:
            received = self._sock.recv(size - len(taken))
            if not received:
                raise ConnectionResetError("the store server closed the connection")
            taken += received
        return taken


def bell_for(store: Any) -> Bell | None:
    """The bell that a store brings; or one on its server, where it says which that is and that answers."""
    own: Bell | None = store.bell() if hasattr(store, "bell") else None
    if own is not None:
        return own
    host, port = getattr(store, "host", None), getattr(store, "port", None)
    if not isinstance(host, str) or not host or not isinstance(port, int):
        return None
    try:
        return TcpBell(host, port)
    except (OSError, UnicodeError):
        return None
