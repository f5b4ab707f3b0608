"""The protocol by hand on a blocking socket: for what no well-behaved node would say, or for very many nodes at once."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeVar

import msgspec

from rallypoint import protocol
from rallypoint.messages.notices import Placed
from rallypoint.messages.requests import Joined
from rallypoint.messages.types import Bounds, Node, Settings
from rallypoint.tokens import Side, Token

PATIENCE_S = 30.0

T = TypeVar("T")

_numbers = itertools.count(1)


def proof(secret: str, hello: protocol.Hello, nonce: str) -> protocol.Proof:
    """What a caller with this hello proves to an elected server whose claim has this secret."""
    key = Token(secret.encode()).for_run(hello.run_id, hello.role)
    return protocol.Proof(key.prove(Side.CLIENT, *protocol.named(hello, nonce)))


class ProtocolClient:
    """One connection to a server."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port), PATIENCE_S)
        self.received = 0
        self._reader = protocol.Reader()
        self._frames: Iterator[bytes] = iter(())

    def __enter__(self) -> ProtocolClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.socket.close()

    def steps(
        self, run: str, name: str, *, min_nodes: int, max_nodes: int
    ) -> Iterator[tuple[str, Callable[[], object]]]:
        """How a node joins, step by step: what is true before each action."""
        yield "after connect", lambda: self.hello(run, name)
        yield "after hello", lambda: self.join(name, min_nodes, max_nodes)
        yield "after join", lambda: self.expect(Placed)
        yield "after placed", lambda: None

    def hello(self, run: str = "", node_id: str = "", connection: int = 1) -> None:
        number = connection if node_id else 0
        self.socket.sendall(protocol.MAGIC + protocol.frame(protocol.Hello(protocol.VERSION, run, node_id, number)))
        self.expect(protocol.Welcome)

    def join(self, node_id: str, min_nodes: int, max_nodes: int, settings: Settings | None = None) -> None:
        node = Node(id=node_id, name=node_id, address="127.0.0.1", store="127.0.0.1:1")
        self.say(Joined(node, Bounds(min_nodes, max_nodes), settings or Settings()))

    def say(self, message: msgspec.Struct) -> None:
        self.socket.sendall(protocol.frame(message))

    def ask(self, kind: type[T], question: Callable[[int], msgspec.Struct]) -> T:
        self.say(question(next(_numbers)))
        return self.expect(kind)

    def expect(self, kind: type[T]) -> T:
        """The next message of this kind; what comes before it is passed over."""
        while True:
            message = self.next()
            if isinstance(message, kind):
                return message
            assert not isinstance(message, protocol.Goodbye), message

    def next(self) -> Any:
        """The next message; EOFError where the server has hung up."""
        while True:
            for body in self._frames:
                return protocol.read(body, protocol.FROM_SERVER)
            data = self.socket.recv(65536)
            if not data:
                raise EOFError
            self.received += len(data)
            self._frames = self._reader.feed(data)

    def goodbye(self) -> protocol.Goodbye:
        """The server's last word; it has hung up after it."""
        while not isinstance(message := self.next(), protocol.Goodbye):
            pass
        with suppress(ConnectionResetError):  # it had not read all that was said to it
            assert not self.socket.recv(1)
        return message
