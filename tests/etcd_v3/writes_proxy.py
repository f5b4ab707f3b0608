"""A way to a member of etcd on which writes of a record are held back, or go wrong once."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tests.support.etcd_servers import HOST

_MARK = b'"write_id"'
"""Only a write of a record has this in what is sent to etcd; reads have it in the answers."""


class WritesProxy:
    """Carries everything; while `on_write` is set it is called with each write, and says whether to carry it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.on_write: Callable[[], bool] | None = None
        self._listener = socket.create_server((HOST, 0))
        self._sockets: list[socket.socket] = []
        self._held: list[HeldWrites] = []
        self._cut_soon = False
        self._ends_with_writes = False
        self._closed = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"{HOST}:{self._listener.getsockname()[1]}"

    def hold_writes(self) -> HeldWrites:
        """From now on writes stop here, and all that comes after them on their connection."""
        held = HeldWrites()
        self._held.append(held)
        self.on_write = held.hold
        return held

    def hold_last_writes(self) -> HeldWrites:
        """From now on writes stop here; when they are let go they arrive, and nothing that comes after them does."""
        self._ends_with_writes = True
        return self.hold_writes()

    def cut_at_next_write(self, *, is_carried: bool) -> threading.Event:
        """The connections end with the next write, which is carried or not; its answer never is.  Set when it was so."""
        done = threading.Event()

        def cut() -> bool:
            self.on_write = None
            if not is_carried:
                self.cut()
            else:
                self._cut_soon = True
            done.set()
            return is_carried

        self.on_write = cut
        return done

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection((HOST, self.port))
                except OSError:
                    near.close()
                    continue
                self._sockets += [near, far]
                if self._closed.is_set():
                    self.cut()
                    return
                threading.Thread(target=self._carry_requests, args=(near, far), daemon=True).start()
                threading.Thread(target=self._carry_answers, args=(far, near), daemon=True).start()

    def _carry_requests(self, near: socket.socket, far: socket.socket) -> None:
        with suppress(OSError), near, far:
            while data := near.recv(65536):
                is_write = _MARK in data
                if is_write and self.on_write is not None and not self.on_write():
                    continue
                far.sendall(data)
                if is_write and self._ends_with_writes:
                    # etcd may drop what it was asked by a connection that ends: this one stays, though the caller has gone.
                    self._closed.wait()
                    return

    def _carry_answers(self, far: socket.socket, near: socket.socket) -> None:
        with suppress(OSError), near, far:
            while data := far.recv(65536):
                if self._cut_soon:
                    self._cut_soon = False
                    self.cut()
                    return
                with suppress(OSError):  # the caller may have gone
                    near.sendall(data)

    def cut(self) -> None:
        """End all connections, as a network does that fails."""
        sockets, self._sockets = self._sockets, []
        for connection in sockets:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def close(self) -> None:
        self._closed.set()
        for held in self._held:
            held.let_go()
        self._listener.close()
        self.cut()


class HeldWrites:
    """Writes that are held back until they are let go."""

    def __init__(self) -> None:
        self.one_came = threading.Event()
        self._let_go = threading.Event()

    def hold(self) -> bool:
        self.one_came.set()
        self._let_go.wait()
        return True

    def let_go(self) -> None:
        self._let_go.set()


@contextmanager
def writes_proxy_to(port: int) -> Iterator[WritesProxy]:
    """A proxy that ends with the block."""
    proxy = WritesProxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
