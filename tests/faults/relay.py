"""A relay between nodes and a server, which can keep what nodes say to itself: to them the server is away then."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType


class Relay:
    """Forwards connections to a port of this machine.

    While it `swallows`, it takes connections and answers nothing; when the given bytes have been said to it, it closes that
    connection and forwards again.  While it `refuses`, it closes every connection at once.
    """

    def __init__(self, port: int) -> None:
        self._to = ("127.0.0.1", port)
        self._swallows = b""
        self.refuses = False
        self.refused = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = [self._listener]
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def swallow_until(self, said: bytes) -> None:
        self._swallows = said

    def __enter__(self) -> Relay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads from it
        for thread in list(self._threads):
            thread.join()
        for each in self._open:
            each.close()

    def _start(self, work: object, *arguments: object) -> None:
        assert callable(work)
        thread = threading.Thread(target=work, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                node = self._listener.accept()[0]
                self._open.append(node)
                if self.refuses:
                    self.refused += 1
                    _close(node)
                    continue
                self._start(self._swallow if self._swallows else self._forward, node)

    def _swallow(self, node: socket.socket) -> None:
        said = b""
        with suppress(OSError):
            while self._swallows not in said and (data := node.recv(65536)):
                said += data
        if self._swallows in said:
            self._swallows = b""
        _close(node)

    def _forward(self, node: socket.socket) -> None:
        try:
            server = socket.create_connection(self._to)
        except OSError:
            _close(node)
            return
        self._open.append(server)
        self._start(_copy, server, node)
        _copy(node, server)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    _close(target)


def _close(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
