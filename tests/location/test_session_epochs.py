"""Nodes and servers that are elected know each other by epoch and by secret (rules 17i, 17j)."""

from __future__ import annotations

import pytest

from rallypoint import protocol
from rallypoint.client.session import Session
from rallypoint.client.view import State
from rallypoint.messages.notices import Placed
from rallypoint.messages.requests import CloseAsked, Left
from rallypoint.messages.types import Bounds, Reason
from rallypoint.tokens import token_of
from tests.location.sans_io_drivers import Server, is_heard


def hello_of(data: bytes) -> protocol.Hello:
    """The hello with which a connection opens."""
    message = protocol.read(next(iter(protocol.Reader().feed(data))), protocol.FROM_NODE)
    assert isinstance(message, protocol.Hello)
    return message


def moves(session: Session, old: Server, new: Server) -> None:
    """A node changes its server."""
    new.now = max(new.now, old.now)
    old.hang_up(session)
    new.connect(session)


def placed(server: Server) -> tuple[Session, ...]:
    """Two nodes with a world that this server has recorded."""
    sessions = server.join("a", "b")
    server.recorded()
    assert all(session.view.state is State.HOLDS for session in sessions)
    return tuple(sessions)


TWO = Bounds(2, 2)


# Epochs ---------------------------------------------------------------------------------------------------------------


def test_a_lower_epoch_of_an_incarnation_that_a_node_knows_is_not_accepted() -> None:
    """Rule 17i: a stale read sends a node back to a deposed server, which would place it in an older world."""
    new, old = Server(epoch=3, claim_id="c3", bounds=TWO), Server(epoch=2, claim_id="c2", bounds=TWO)
    session, _ = new.join("a", "b")
    moves(session, new, old)
    assert (session.is_outdated, session.welcomed) == (True, False)
    assert session.serving.claim_id == "c3"


def test_nothing_that_an_outdated_server_says_is_believed() -> None:
    """Rule 17i: a world that it seals, least of all."""
    new, old = Server(epoch=3, claim_id="c3", bounds=TWO), Server(epoch=2, claim_id="c2", bounds=TWO)
    (session,) = new.join("a")
    old.join("b")
    moves(session, new, old)
    old.say(session, session.beat(old.now))
    old.recorded()
    assert old.told("a", Placed)
    assert session.view.state is State.WAITING


def test_an_outdated_server_is_told_of_the_higher_epoch() -> None:
    """Rule 17i: the hello names incarnation, epoch and claim id, so that the server has it confirmed (rule 17d)."""
    new, old = Server(epoch=3, claim_id="c3"), Server(epoch=2, claim_id="c2")
    (session,) = new.join("a")
    moves(session, new, old)
    assert old.epochs_heard == [("r1", 3)]
    moves(session, old, new)
    assert new.epochs_heard == []
    hello = hello_of(session.opening(new.now))
    assert (hello.incarnation, hello.epoch, hello.claim_id) == ("r1", 3, "c3")


def test_the_epochs_of_another_incarnation_are_no_news_to_a_server() -> None:
    """Rule 17i."""
    new, old = Server(epoch=3, claim_id="c3"), Server(epoch=2, claim_id="c2", incarnation="r2")
    (session,) = new.join("a")
    moves(session, new, old)
    assert old.epochs_heard == []


def test_a_node_that_was_at_an_outdated_server_goes_on_with_the_next_one() -> None:
    """Rule 17i: only that connection is of no use."""
    new, old = Server(epoch=3, claim_id="c3", bounds=TWO), Server(epoch=2, claim_id="c2", bounds=TWO)
    (session,) = new.join("a")
    moves(session, new, old)
    next_one = Server(epoch=4, claim_id="c4", bounds=TWO)
    moves(session, old, next_one)
    assert (session.is_outdated, session.welcomed, session.serving.epoch) == (False, True, 4)


@pytest.mark.parametrize(
    "serving",
    [
        protocol.Serving("r1", 3, "c3"),
        protocol.Serving("r1", 4, "c4"),
        protocol.Serving("r2", 1, "c9"),
    ],
    ids=["the same", "a higher epoch", "another incarnation"],
)
def test_what_is_not_lower_is_accepted(serving: protocol.Serving) -> None:
    """Rule 17i."""
    server = Server(epoch=3, claim_id="c3")
    (session,) = server.join("a")
    session.received(protocol.frame(protocol.Pong(serving)), server.now)
    assert not session.is_outdated
    assert session.serving == serving


def test_an_older_epoch_of_the_same_claim_is_accepted_and_the_higher_one_remembered() -> None:
    """Rule 17i: a server keeps its claim id when it claims again, and its messages may overtake each other."""
    server = Server(epoch=3, claim_id="c3")
    (session,) = server.join("a")
    session.received(protocol.frame(protocol.Pong(protocol.Serving("r1", 2, "c3"))), server.now)
    assert not session.is_outdated
    assert session.serving == protocol.Serving("r1", 3, "c3")
    session.received(protocol.frame(protocol.Pong(protocol.Serving("r1", 2, "c2"))), server.now)
    assert session.is_outdated


def test_a_pong_counts_as_a_welcome() -> None:
    """Rule 17i: by it a node learns that its server has claimed again, and holds the next server to that."""
    server = Server(epoch=1, claim_id="c1", bounds=TWO)
    session, _ = placed(server)
    server.coordinator.claimed_again(3)
    server.wait(1.0)
    server.say(session, session.beat(server.now))
    assert session.serving == protocol.Serving("r1", 3, "c1")
    old = Server(epoch=2, claim_id="c2")
    moves(session, server, old)
    assert session.is_outdated


def test_a_pong_of_a_lower_epoch_ends_the_belief_in_a_server() -> None:
    """Rule 17i."""
    server = Server(epoch=3, claim_id="c3")
    (session,) = server.join("a")
    session.received(protocol.frame(protocol.Pong(protocol.Serving("r1", 2, "c2"))), server.now)
    assert session.is_outdated


def test_a_server_in_doubt_says_so_in_its_pongs_and_its_nodes_count_the_outage_from_then() -> None:
    """Rule 17e: its nodes keep their world."""
    server = Server(bounds=TWO)
    sessions = placed(server)
    server.wait(1.0)
    server.perform(server.coordinator.set_doubt("the register is away", server.now))
    for session in sessions:
        assert (session.serving.in_doubt, session.view.out_since) == (True, server.now)
        assert session.view.state is State.HOLDS
    server.wait(1.0)
    server.perform(server.coordinator.set_doubt("", server.now))
    for session in sessions:
        assert (session.serving.in_doubt, session.view.out_since) == (False, None)


def test_a_server_that_steps_down_sends_its_nodes_on_and_takes_nothing_from_them() -> None:
    """Rule 17d: its callers are told, and none of them for good; a change of server breaks nobody's world."""
    server = Server(bounds=TWO)
    sessions = placed(server)
    server.coordinator.opened(99, server.now)
    effects = server.coordinator.step_down("another server was elected")
    assert sorted(caller for caller, _ in effects.hang_ups) == [1, 2, 99]
    assert effects.sends[-1] == (99, protocol.MAGIC + protocol.frame(protocol.Goodbye("another server was elected")))
    server.perform(effects)
    for session in sessions:
        assert session.goodbye == protocol.Goodbye("another server was elected", final=False)
        assert session.view.state is State.HOLDS
    assert not server.coordinator.knows(1)


# The secret -----------------------------------------------------------------------------------------------------------


def test_a_node_that_proves_the_secret_of_the_claim_is_welcomed_and_never_sends_it() -> None:
    """Rule 17j: by HMAC, over who it is and which of its connections this is."""
    server = Server(secret="from the record")
    session = server.session("a")
    session.token = token_of("from the record")
    server.connect(session)
    assert session.welcomed
    opening = session.opening(server.now)
    assert b"from the record" not in opening
    assert hello_of(session.opening(server.now)).nonce != hello_of(opening).nonce


def test_a_wrong_secret_sends_a_node_back_to_the_register_and_is_never_final() -> None:
    """Rule 17j: it read an old record, and the next read shows the right one."""
    server = Server(secret="from the record")
    session = server.session("a")
    server.connect(session)
    assert session.goodbye is not None
    assert not session.goodbye.final
    assert "know the secret of its claim" in session.goodbye.why
    assert (session.welcomed, session.connected) == (False, False)
    session.token = token_of("from the record")
    server.connect(session)
    assert session.welcomed


def test_what_a_node_without_the_secret_says_is_not_heard() -> None:
    """Rule 17j: its place is announced in the same breath as its hello."""
    server = Server(secret="from the record", bounds=Bounds(1, 1))
    session = server.session("a")
    session.join(server.now, 60.0)
    server.connect(session)
    assert server.records == []
    assert not server.coordinator.runs.known["run"].state.life.signs
    assert not server.coordinator.met


# What must not be lost ------------------------------------------------------------------------------------------------


def messages_of(data: bytes) -> list[protocol.FromNode]:
    opened = data if data.startswith(protocol.MAGIC) else protocol.MAGIC + data
    return [protocol.read(body, protocol.FROM_NODE) for body in protocol.Reader().feed(opened)]


@pytest.mark.parametrize("kind", [Left, CloseAsked])
def test_a_reason_for_leaving_and_a_wish_to_close_are_part_of_every_announcement_until_acknowledged(
    kind: type[Left | CloseAsked],
) -> None:
    """Rule 17c: the acknowledgement follows the write, and a server that dies before it has said nothing."""
    server = Server(bounds=TWO)
    session, _ = placed(server)
    server.say(session, session.leave(Reason.FINISHED) if kind is Left else session.close_run())
    assert not is_heard(session)
    beat = session.beat(server.now)
    server.hang_up(session)
    for data in (beat, session.opening(server.now)):
        assert [type(message) for message in messages_of(data)].count(kind) == 1
        assert any(isinstance(message, protocol.AskHeard) for message in messages_of(data))
    server.connect(session)
    assert not is_heard(session)
    server.recorded()
    assert is_heard(session)
    assert not any(isinstance(message, kind) for message in messages_of(session.opening(server.now)))


def test_a_wish_to_close_that_one_server_did_not_acknowledge_reaches_the_next_one() -> None:
    """Rule 17c."""
    old = Server(bounds=TWO)
    session, _ = placed(old)
    old.say(session, session.close_run())
    new = Server(epoch=2, claim_id="c2", bounds=TWO)
    moves(session, old, new)
    assert not is_heard(session)
    new.recorded()
    assert is_heard(session)
    assert new.run.closing is not None


def test_a_leave_that_needs_no_record_is_acknowledged_at_once() -> None:
    """Rule 17c: the next server misses the rank."""
    server = Server(bounds=TWO)
    session, _ = placed(server)
    server.say(session, session.leave(Reason.WITHDREW))
    assert is_heard(session)
