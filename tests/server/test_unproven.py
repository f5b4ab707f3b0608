"""Rule 16: what a caller says before it has proven the token changes nothing of the node that it names."""

from __future__ import annotations

import itertools
import re

import pytest

from rallypoint import protocol
from rallypoint.messages.requests import Joined
from rallypoint.messages.types import Bounds, Node
from rallypoint.server.coordinator import Coordinator
from rallypoint.tokens import AccessRole, Side, Token

MASTER = Token.parse("a-master-token-that-is-long")


def said(message: object) -> bytes:
    return protocol.frame(message)


def hello(run: str = "", node_id: str = "", connection: int = 0, *, role: AccessRole = AccessRole.NODE) -> bytes:
    return protocol.MAGIC + said(protocol.Hello(protocol.VERSION, run, node_id, connection, role=role, nonce="n"))


def challenged(server: Coordinator, caller: int, hello: protocol.Hello, now: float) -> protocol.Challenge:
    server.opened(caller, now)
    (sent,) = server.received(caller, protocol.MAGIC + protocol.frame(hello), now).sends
    (body,) = protocol.Reader().feed(sent[1])
    challenge = protocol.read(body, protocol.FROM_SERVER)
    assert isinstance(challenge, protocol.Challenge)
    return challenge


@pytest.mark.parametrize("connection", [1, 2])
def test_a_caller_that_proves_nothing_cannot_make_a_node_lost(connection: int) -> None:
    numbers = itertools.count(1)
    server = Coordinator(monotonic=0.0, mint=lambda: f"m{next(numbers)}", token=MASTER, hold_s=0.0)
    hello = protocol.Hello(protocol.VERSION, "r", "a.1", 1, nonce="n")
    proof = MASTER.for_run("r", AccessRole.NODE).prove(
        Side.CLIENT, *protocol.named(hello, challenged(server, 1, hello, 0.0).nonce)
    )
    join = protocol.frame(Joined(Node(id="a.1", name="a", address="127.0.0.1"), Bounds(1, 1)))
    server.received(1, protocol.frame(protocol.Proof(proof)) + join, 0.1)
    assert server.runs.known["r"].run.current is not None
    challenged(server, 2, protocol.Hello(protocol.VERSION, "r", "a.1", connection, nonce="x"), 0.2)
    server.ended(2, 0.3)
    server.tick(1.0)
    assert server.runs.known["r"].run.current is not None, "its world stands"


STRANGERS: dict[str, tuple[bytes, ...]] = {
    "nothing": (),
    "another protocol": (b"GET / HTTP/1.1\r\n\r\n",),
    "a node of the run": (hello("busy", "a.1", 2), said(protocol.Ping())),
    "a node of another run": (hello("idle", "a.1", 2), said(protocol.Ping())),
    "a viewer of the run": (hello("busy", role=AccessRole.VIEWER), said(protocol.AskStatus(1, "busy"))),
    "an admin of the server": (hello(role=AccessRole.ADMIN), said(protocol.AskRuns(1))),
    "a wrong proof": (hello("busy", "b.1", 1), said(protocol.Proof("0" * 64))),
    "a question first": (protocol.MAGIC + said(protocol.AskRuns(1)),),
    "another version": (protocol.MAGIC + said(protocol.Hello(99, "busy", "a.1", 2)),),
    "no json": (protocol.MAGIC + protocol.framed(b"{]}"),),
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_a_stranger_hears_the_same_of_a_busy_server_and_of_an_idle_one(kind: str) -> None:
    """So it learns nothing: not who is there, not whether the run exists, not on which host the server is."""
    heard = []
    for busy in (True, False):
        server = Coordinator(monotonic=0.0, mint=lambda: "m", token=MASTER, hold_s=0.0, name="head.example")
        if busy:
            caller = protocol.Hello(protocol.VERSION, "busy", "a.1", 1, nonce="n")
            named = protocol.named(caller, challenged(server, 1, caller, 0.0).nonce)
            proof = protocol.Proof(MASTER.for_run("busy", AccessRole.NODE).prove(Side.CLIENT, *named))
            server.received(1, said(proof) + said(Joined(Node(id="a.1", name="a"), Bounds(1, 1))), 0.1)
            assert server.runs.known["busy"].run.current is not None
        sends = server.opened(2, 1.0).sends
        for data in STRANGERS[kind]:
            sends += server.received(2, data, 1.0).sends
        for step in range(44):
            sends += server.tick(1.0 + step / 4).sends
        heard.append(b"".join(data for number, data in sends if number == 2))
        assert not server.knows(2)
    assert heard[0] == heard[1]
    assert not re.search(rb"busy|a\.1|head|example", heard[0])
