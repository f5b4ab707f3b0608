"""What a server with a token believes of an earlier life: places that a server with that token gave out (rules 14, 16)."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from rallypoint import protocol
from rallypoint.messages.notices import Fenced, Placed
from rallypoint.messages.requests import Announced, Joined, Seat, Standing
from rallypoint.messages.types import Bounds, Node
from rallypoint.server.coordinator import Coordinator
from rallypoint.tokens import AccessRole, Side, Token

MASTER = Token.parse("a-master-token-that-is-long")
NODE = Node(id="a.1", name="a", address="127.0.0.1")


class Caller:
    """A node of the run `r` that has the run's token."""

    def __init__(self, server: Coordinator) -> None:
        self._server = server
        server.opened(1, 0.0)
        hello = protocol.Hello(protocol.VERSION, "r", NODE.id, 1, nonce="n")
        (challenge,) = self._send(protocol.MAGIC + protocol.frame(hello))
        assert isinstance(challenge, protocol.Challenge)
        key = MASTER.for_run("r", AccessRole.NODE)
        self.say(protocol.Proof(key.prove(Side.CLIENT, *protocol.named(hello, challenge.nonce))))

    def say(self, *messages: object) -> list[object]:
        return self._send(b"".join(map(protocol.frame, messages)))

    def _send(self, data: bytes) -> list[object]:
        sent = [piece for _, piece in self._server.received(1, data, 0.0).sends]
        said: list[object] = []
        for piece in sent:
            reader = protocol.Reader()
            whole = piece if piece.startswith(protocol.MAGIC) else protocol.MAGIC + piece
            said += [protocol.read(body, protocol.FROM_SERVER) for body in reader.feed(whole)]
        return said


def server(token: Token = MASTER) -> Coordinator:
    numbers = itertools.count(1)
    return Coordinator(monotonic=0.0, mint=lambda: f"m{next(numbers)}", token=token, hold_s=5.0)


@pytest.fixture
def placed() -> Placed:
    """The place that an earlier life of the server gave out."""
    said = Caller(server()).say(Joined(NODE, Bounds(1, 1)))
    return next(notice for notice in said if isinstance(notice, Placed))


def announced(placed: Placed, seat: Seat) -> Announced:
    return Announced(NODE, Bounds(1, 3), Standing.HOLDS, incarnation=placed.incarnation, seat=seat)


def seat_of(placed: Placed) -> Seat:
    return Seat(placed.round, placed.seal_id, placed.size, placed.rank, placed.mac)


def test_a_place_that_was_given_out_is_believed_after_a_restart(placed: Placed) -> None:
    again = server()
    assert not [said for said in Caller(again).say(announced(placed, seat_of(placed))) if isinstance(said, Fenced)]
    assert again.runs.known["r"].run.current is not None, "the world stands"


@pytest.mark.parametrize(
    "lie", [{"round": 7}, {"seal_id": "s7"}, {"size": 3, "rank": 1}, {"mac": ""}, {"mac": "0" * 64}]
)
def test_a_place_that_was_not_given_out_is_fenced(placed: Placed, lie: dict[str, object]) -> None:
    again = server()
    (said,) = Caller(again).say(announced(placed, replace(seat_of(placed), **lie)))
    assert isinstance(said, Fenced)
    assert "no server with this token gave a rank" in said.why
    assert "r" not in again.runs.known, "nothing of it is believed"
    assert again.messages["forged places"] == 1, "it is counted"


def test_a_server_that_has_only_the_token_of_a_node_believes_as_without_one(placed: Placed) -> None:
    node_hosted = server(MASTER.for_run("r", AccessRole.NODE))
    unmarked = replace(seat_of(placed), mac="")
    assert not [said for said in Caller(node_hosted).say(announced(placed, unmarked)) if isinstance(said, Fenced)]
