"""A node's end of the protocol, with a server's end and no sockets between them."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from rallypoint import protocol
from rallypoint.client.session import Session
from rallypoint.client.view import State, View
from rallypoint.errors import RendezvousStateError
from rallypoint.messages.notices import Fenced, RunClosed
from rallypoint.messages.requests import Left
from rallypoint.messages.types import Bounds, Ending, Node, Reason
from rallypoint.server.coordinator import Coordinator
from rallypoint.tokens import AccessRole, Token, token_of


class Pair:
    """A session and a coordinator, and what goes between them."""

    def __init__(self, secret: str = "") -> None:
        numbers = itertools.count(1)
        self.server = Coordinator(
            monotonic=0.0,
            mint=lambda: str(next(numbers)),
            hold_s=0.0,
            token=token_of(secret),
            claim_id="c1" if secret else "",
        )
        self.session = Session("run", View(node=Node(id="a.1", name="a"), bounds=Bounds(1, 1)))
        self._callers = itertools.count(1)
        self.caller = 0

    def connect(self) -> None:
        self.caller = next(self._callers)
        self.server.opened(self.caller, 0.1)
        self.say(self.session.opening(0.1))

    def say(self, data: bytes) -> None:
        for _, answer in self.server.received(self.caller, data, 0.1).sends:
            if reply := self.session.received(answer, 0.1):
                self.say(reply)

    def place(self) -> None:
        self.connect()
        self.say(self.session.join(0.1, 60.0))
        assert self.session.view.state is State.HOLDS


def test_a_node_that_has_only_connected_hears_that_the_server_is_there() -> None:
    pair = Pair()
    pair.connect()
    session, timeout_s = pair.session, pair.session.view.settings.heartbeat_timeout_s
    now = 0.1 + 2 * timeout_s
    assert session.is_stale(now)
    for _, answer in pair.server.received(pair.caller, session.beat(now), now).sends:
        session.received(answer, now)
    assert not session.is_stale(now)
    assert not pair.server.is_attended
    assert not pair.server.runs.known


def test_a_server_that_was_not_meant_is_left_again() -> None:
    """Rule 17a: something else may serve at the port of a claim by now."""
    pair = Pair()
    pair.session.claim_id = "c1"
    pair.connect()
    assert not pair.session.welcomed
    assert pair.session.is_outdated


def test_a_request_to_close_goes_on_under_the_next_identity_of_a_node() -> None:
    pair = Pair()
    pair.place()
    session = pair.session
    session.close_run()  # the server is away, and does not hear this
    assert session.view.world is not None
    session.received(protocol.frame(Fenced(session.view.world.seal_id, "it was given up")), 0.2)
    session.reborn(msgspec.structs.replace(session.view.node, id="a.2"))
    pair.connect()
    assert session.goodbye is None
    assert session.is_heard
    assert pair.server.runs.known["run"].run.closing is not None


def test_what_a_node_said_when_it_left_is_not_dropped_by_a_join_that_cannot_be() -> None:
    pair = Pair()
    pair.place()
    session = pair.session
    session.ended(0.2)
    session.leave(Reason.FINISHED)
    with pytest.raises(ValueError, match="FINISHED cannot join"):
        session.join(0.2, 60.0)
    assert not session.is_heard
    pair.connect()
    assert session.is_heard


def test_a_leave_is_said_once_more_on_a_new_connection_and_no_more_once_it_is_acknowledged() -> None:
    pair = Pair()
    pair.place()
    session = pair.session
    session.ended(0.2)
    assert session.leave(Reason.WITHDREW, "enough") == b""
    pair.connect()
    assert session.is_heard
    assert not any(isinstance(message, Left) for message in _messages(session.opening(0.3)))


def _takes(session: Session, serving: protocol.Serving) -> bool:
    """Whether a node stays with a server that says this of itself."""
    session.opening(0.1)
    session.received(protocol.MAGIC + protocol.frame(protocol.Welcome(protocol.VERSION, "server", (), serving)), 0.1)
    assert session.welcomed is not session.is_outdated
    return session.welcomed


def test_a_node_goes_back_to_no_server_that_another_one_has_replaced() -> None:
    """Rule 17i: a stale read of the register leads a node to a deposed server, which says a lower epoch."""
    session = Pair().session
    assert _takes(session, protocol.Serving("r1", 3, "new claim"))
    assert not _takes(session, protocol.Serving("r1", 2, "old claim"))
    assert session.serving.claim_id == "new claim"
    # Another incarnation counts its epochs from 1.
    assert _takes(session, protocol.Serving("r2", 1, "another claim"))


def test_a_pong_of_a_server_that_was_replaced_counts_as_little_as_its_welcome() -> None:
    """Rule 17i."""
    session = Pair().session
    assert _takes(session, protocol.Serving("r1", 3, "new claim"))
    session.received(protocol.frame(protocol.Pong(protocol.Serving("r1", 2, "old claim"))), 0.2)
    assert session.is_outdated


def test_a_node_without_the_secret_is_sent_away_and_may_come_again() -> None:
    """Rule 17j: it read an older record, and the next one that it reads has the right secret."""
    pair = Pair(secret="right")
    pair.connect()
    assert pair.session.goodbye is not None
    assert not pair.session.goodbye.final
    assert not pair.session.welcomed
    pair.session.token, pair.session.claim_id = token_of("right"), "c1"
    pair.connect()
    assert pair.session.welcomed


def test_a_node_with_another_secret_leaves_and_says_nothing() -> None:
    """Rule 17j: something else has the port of the claim that it read of."""
    pair = Pair(secret="right")
    pair.session.token, pair.session.claim_id = token_of("another"), "c2"
    with pytest.raises(RendezvousStateError, match="another server was meant"):
        pair.connect()
    assert (pair.session.welcomed, pair.session.connected, pair.session.goodbye) == (False, False, None)
    assert not pair.server.runs.known


def _messages(data: bytes) -> list[protocol.FromNode]:
    return [protocol.read(body, protocol.FROM_NODE) for body in protocol.Reader().feed(data)]


@pytest.mark.parametrize(("process", "claim_id", "trusts"), [("p", "", True), ("q", "", False), ("p", "c1", False)])
def test_only_a_node_beside_a_server_at_a_fixed_address_trusts_its_world_after_a_pause(
    process: str, claim_id: str, trusts: bool
) -> None:
    """Rule 9: that server was paused with it and gave nobody up; an elected one may have been replaced."""
    numbers = itertools.count(1)
    pair = Pair()
    pair.server = Coordinator(
        monotonic=0.0, mint=lambda: str(next(numbers)), hold_s=0.0, process="p", claim_id=claim_id
    )
    pair.session.process = process
    pair.place()
    pair.session.beat(10.0)
    assert (pair.session.view.state is State.HOLDS) is trusts


def test_a_node_with_a_token_believes_nothing_before_the_server_has_proven_it() -> None:
    session = Session("run", View(node=Node(id="a.1", name="a"), bounds=Bounds(1, 1)))
    session.token = Token.parse("a-token-that-is-long").for_run("run", AccessRole.NODE)
    assert len(_messages(session.opening(1.0))) == 1, "it says nothing but hello"
    closed = protocol.MAGIC + protocol.frame(RunClosed("r1", Ending.FAILED, "says an impostor"))
    with pytest.raises(RendezvousStateError, match="spoke before it proved"):
        session.received(closed, 1.1)
    assert session.view.state is not State.CLOSED
