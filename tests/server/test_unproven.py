"""Rule 16: what a caller says before it has proven the token changes nothing of the node that it names."""

from __future__ import annotations

import itertools

import pytest

from rallypoint import protocol
from rallypoint.messages.requests import Joined
from rallypoint.messages.types import Bounds, Node
from rallypoint.server.coordinator import Coordinator
from rallypoint.tokens import AccessRole, Side, Token

MASTER = Token.parse("a-master-token-that-is-long")


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
