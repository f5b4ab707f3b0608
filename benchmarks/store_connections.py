"""Many bare connections to one store server, so that the server is what is measured, and not its clients.

Orders: `connect` (all of them at one instant), `wake` (let all wait for a key, and set it); answers: seconds until the
last one had its answer.
"""

from __future__ import annotations

import selectors
import socket
import sys
import time

from benchmarks.processes import answer
from rallypoint.server.sockets import file_limit
from rallypoint.stores.tcp import wire
from rallypoint.stores.tcp.wire import Query

HELLO = wire.request(Query.VALIDATE, number=wire.MAGIC) + wire.request(Query.PING, number=7)
PING = wire.request(Query.PING, number=7)
FORGET = wire.request(Query.DELETE, [b"/key"])
WAIT = wire.request(Query.WAIT, [b"/key"])
WAKE = wire.request(Query.SET, [b"/key", b"value"])


def connect(port: int, connections: int) -> list[socket.socket]:
    """Connect them all at one instant, and let each say hello."""
    lines = []
    with selectors.DefaultSelector() as connecting:
        for _ in range(connections):
            line = socket.socket()
            line.setblocking(False)
            line.connect_ex(("127.0.0.1", port))
            connecting.register(line, selectors.EVENT_WRITE)
            lines.append(line)
        while connecting.get_map():
            for key, _ in connecting.select():
                connecting.unregister(key.fileobj)
                assert isinstance(key.fileobj, socket.socket)
                key.fileobj.send(HELLO)
    hear(lines, 4)
    return lines


def hear(lines: list[socket.socket], size: int) -> None:
    """Wait until each has so many bytes."""
    missing = dict.fromkeys(lines, size)
    with selectors.DefaultSelector() as reading:
        for line in lines:
            reading.register(line, selectors.EVENT_READ)
        while missing:
            for key, _ in reading.select():
                assert isinstance(key.fileobj, socket.socket)
                received = key.fileobj.recv(size)
                if not received:
                    raise ConnectionResetError("the server hung up")
                missing[key.fileobj] -= len(received)
                if missing[key.fileobj] <= 0:
                    del missing[key.fileobj]
                    reading.unregister(key.fileobj)


def settle(line: socket.socket) -> None:
    """Let the server take whatever the others have sent: in any order of connections, but in a turn takes all of it."""
    for _ in range(2):
        line.send(PING)
        hear([line], 4)


def wake(setter: socket.socket, lines: list[socket.socket]) -> float:
    """Let everybody wait, set the key, and count the seconds until everybody has heard of it."""
    setter.send(FORGET)
    hear([setter], 8)
    for line in lines:
        line.send(WAIT)
    settle(setter)
    began = time.monotonic()
    setter.send(WAKE)
    hear(lines, 1)
    return time.monotonic() - began


def main() -> None:
    """Obey."""
    port, connections = map(int, sys.argv[1:])
    file_limit(raised=True)
    answer("ready")
    setter = connect(port, 1)[0]
    lines: list[socket.socket] = []
    for order in map(str.strip, sys.stdin):
        if order == "connect":
            for line in lines:
                line.close()
            settle(setter)
            began = time.monotonic()
            lines = connect(port, connections)
            answer(time.monotonic() - began)
        else:
            answer(wake(setter, lines))


if __name__ == "__main__":
    main()
