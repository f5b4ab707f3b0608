"""A real server on a loopback socket that has a claim, as an elected one has; and a node of its run."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import msgspec

from rallypoint import protocol
from rallypoint.client.background import background
from rallypoint.messages.requests import Joined
from rallypoint.messages.types import Bounds, Node
from rallypoint.net import listen
from rallypoint.record import Claim, Record, restored
from rallypoint.server.coordinator import Coordinator
from rallypoint.server.effects import Effects
from rallypoint.server.service import Service
from rallypoint.tokens import token_of
from tests.support.protocol_client import proof

SECRET = "the secret of this claim"
BOUNDS = Bounds(2, 3)


def a_record(run_id: str, claim: Claim | None = None, **fields: Any) -> Record:
    """A record of epoch 7 of an incarnation that has come to round 4."""
    known: dict[str, Any] = {"epoch": 7, "round": 4, "write_id": "w", "bounds": BOUNDS, "met": 7, **fields}
    return msgspec.convert({"run_id": run_id, "incarnation": "r1", "claim": claim, **known}, Record)


def a_claim(port: int, *, secret: str = SECRET, addresses: tuple[str, ...] = ("127.0.0.1",)) -> Claim:
    """A claim of a server on this machine."""
    return Claim(f"c{port}", addresses, port, 5.0, secret)


@contextmanager
def serving(run_id: str, *, secret: str = SECRET) -> Iterator[Record]:
    """A server of this run with an empty memory; the record that names it."""
    listener = listen("127.0.0.1", 0)
    record = a_record(run_id, a_claim(listener.getsockname()[1], secret=secret))
    assert record.claim is not None

    async def start() -> Service:
        assert record.claim is not None

        def acted(effects: Effects) -> None:
            for each in effects.records:  # nothing but memory, and at once
                background().loop.call_soon(service.recorded, each.run.run_id)

        make = partial(
            Coordinator,
            only_run=run_id,
            keeps_records=True,
            claim_id=record.claim.id,
            token=token_of(secret),
            restored=[(restored(record, time.monotonic(), 0.0), record.epoch)],
        )
        service = Service(make, acted=acted)
        await service.start(listener)
        return service

    service = background().run(start(), 10.0)
    try:
        yield record
    finally:
        background().run(service.stop(), 10.0)


@contextmanager
def waiting_node(record: Record, name: str) -> Iterator[None]:
    """A node that has joined and waits for others."""
    claim = record.claim
    assert claim is not None
    hello = protocol.Hello(protocol.VERSION, record.run_id, f"{name}.1", 1)
    joined = Joined(Node(id=f"{name}.1", name=name, address="127.0.0.1"), record.bounds)
    with socket.create_connection((claim.addresses[0], claim.port), 10.0) as connection:
        connection.sendall(protocol.MAGIC + protocol.frame(hello))
        reader, heard = protocol.Reader(), 0
        while heard < 3:  # the challenge, the welcome, and what is said to the join
            data = connection.recv(65536)
            assert data, "the server hung up"
            for body in reader.feed(data):
                heard += 1
                message = protocol.read(body, protocol.FROM_SERVER)
                if isinstance(message, protocol.Challenge):
                    proven = proof(claim.secret, hello, message.nonce)
                    connection.sendall(protocol.frame(proven) + protocol.frame(joined))
        yield


@contextmanager
def nobody() -> Iterator[int]:
    """A port at which nobody listens, while it is held."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@contextmanager
def hanging_up_when_asked() -> Iterator[tuple[int, list[bytes]]]:
    """A server that welcomes everybody and ends the connection at the first question: its port, and what it was asked."""
    asked: list[bytes] = []

    def treat(connection: socket.socket) -> None:
        reader, welcome = protocol.Reader(), protocol.Welcome(protocol.VERSION, "server")
        while not list(reader.feed(connection.recv(4096))):
            pass
        connection.sendall(protocol.MAGIC + protocol.frame(welcome))
        asked.append(connection.recv(4096))

    def serve() -> None:
        with suppress(OSError):  # the listener is closed
            while True:
                connection, _ = listener.accept()
                with connection:
                    treat(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1], asked
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
