"""A line to etcd that can lose an answer after the request was carried out, and that counts what passes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

SOON_S = 30.0


class Proxy:
    """Listens on a port of its own; each connection has one of its own to etcd."""

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._changed = threading.Condition()
        self._requests: list[str] = []
        self._to_lose: list[str] = []
        self._lines: list[socket.socket] = []
        self.lost = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_answer_to(self, *starts: str) -> None:
        """The answers to the next requests that start so do not arrive, though etcd has given them."""
        with self._changed:
            self._to_lose.extend(starts)

    def wait_for(self, text: str, times: int = 1) -> None:
        """Until so many requests with this text have passed."""
        with self._changed:
            passed = self._changed.wait_for(lambda: self.count(text) >= times, SOON_S)
        assert passed, f"{self.count(text)} of {times} requests with {text!r} have passed"

    def count(self, text: str = "") -> int:
        return sum(text in request for request in self._requests)

    def close(self) -> None:
        self._listener.close()
        for line in self._lines:
            line.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._upstream))
                self._lines += [client, server]
                losing = threading.Event()
                for end, other, look in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._carry, args=(end, other, look, losing), daemon=True).start()

    def _carry(self, end: socket.socket, other: socket.socket, is_request: bool, losing: threading.Event) -> None:
        with suppress(OSError):
            while data := end.recv(65536):
                if is_request:
                    self._note(data.decode("latin-1"), losing)
                elif losing.is_set():
                    with self._changed:
                        self.lost += 1
                    break
                other.sendall(data)
        for line in (end, other):
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def _note(self, request: str, losing: threading.Event) -> None:
        with self._changed:
            self._requests.append(request)
            for start in self._to_lose:
                if request.startswith(start):
                    self._to_lose.remove(start)
                    losing.set()
                    break
            self._changed.notify_all()


@contextmanager
def proxy_to(port: int) -> Iterator[Proxy]:
    proxy = Proxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
