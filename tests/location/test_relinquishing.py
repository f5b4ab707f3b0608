"""What a server does that most of its nodes cannot reach, while the register can be (rule 17e)."""

from __future__ import annotations

from typing import Any

import pytest

from rallypoint import protocol
from rallypoint.client.session import Session
from rallypoint.client.view import State
from rallypoint.location.actions import ClaimedAgain, Doubt, ReadRecord, Renewed, Stop, WriteRecord
from rallypoint.location.held_claim import OTHERS_FIRST_S
from rallypoint.messages.notices import Broken, KeepWaiting
from rallypoint.messages.types import Bounds
from rallypoint.record import Record
from tests.location.sans_io_drivers import REST_S, SETTINGS, Process, ScriptedRegister, Server, elected, state_of
from tests.location.test_serving import a_server_with_a_world, successor_of
from tests.support.run_driver import RunDriver

TIMEOUT_S = SETTINGS.heartbeat_timeout_s
OTHERS_S = SETTINGS.reconnect_backoff_s + OTHERS_FIRST_S

# The server -----------------------------------------------------------------------------------------------------------


def served(nodes: int, **kind: Any) -> tuple[Server, list[Session]]:
    """A server, and a world of so many nodes that was recorded and told."""
    server = Server(bounds=Bounds(1, nodes), **kind)
    sessions = server.join(*"abcdefgh"[:nodes])
    server.recorded()
    assert {state_of(session) for session in sessions} == {State.HOLDS}
    return server, sessions


@pytest.mark.parametrize(("nodes", "heard"), [(3, 1), (4, 1), (5, 2), (8, 3)])
def test_a_server_that_most_nodes_cannot_reach_breaks_no_world(nodes: int, heard: int) -> None:
    """Rule 17e: another process may hear them; those that it hears itself are answered, and told nothing."""
    server, sessions = served(nodes)
    server.wait(TIMEOUT_S + 1.0, *sessions[:heard])
    assert server.deserted == [server.run]
    server.wait(60.0, *sessions[:heard])
    assert len(server.deserted) == 1
    assert server.run.current is not None
    for session in sessions[:heard]:
        assert server.told(session.view.node.id, Broken) == []
        assert isinstance(server.heard[session.view.node.id][-1], protocol.Pong)
        assert not session.serving.in_doubt, "or it would claim before the others do"


def test_nodes_that_were_cut_off_together_are_silent_for_the_time_out_one_after_the_other() -> None:
    """Rule 17e: the world is not broken for the first of them."""
    server, sessions = served(5)
    for session in sessions[1:]:
        server.wait(0.4, sessions[0])
        server.say(session, session.beat(server.now))
    server.wait(TIMEOUT_S - 0.3, sessions[0])
    assert (server.run.current is not None, server.deserted) == (True, [])
    server.wait(0.5, sessions[0])
    assert (server.run.current is not None, server.deserted) == (True, [server.run])


def test_who_speaks_in_time_is_not_cut_off() -> None:
    """Rule 17e: the others are lost, as a few are."""
    server, (a, b, c, d) = served(4)
    server.wait(TIMEOUT_S / 2, a, c)
    server.wait(TIMEOUT_S / 2 - 0.5, a)
    server.say(d, d.beat(server.now))
    server.wait(1.0, a, c)
    assert server.deserted == []
    assert list(server.run.active) == ["a", "c", "d"]
    assert state_of(b) is State.HOLDS


@pytest.mark.parametrize(
    ("nodes", "heard", "claim_id"),
    [
        pytest.param(2, 1, "c1", id="one is not many"),
        pytest.param(4, 2, "c1", id="half is not most"),
        pytest.param(4, 1, "", id="at a fixed address"),
    ],
)
def test_where_nobody_would_be_better_off_the_silent_are_lost(nodes: int, heard: int, claim_id: str) -> None:
    """Rules 6 and 17e."""
    server, sessions = served(nodes, claim_id=claim_id)
    server.wait(TIMEOUT_S + 0.5, *sessions[:heard])
    assert server.deserted == []
    assert {state_of(session) for session in sessions[:heard]} == {State.BROKEN}


def test_closed_connections_are_no_silence() -> None:
    """Rule 17e: most processes were killed, and the rest is told so as early as ever (rule 14)."""
    server, sessions = served(4)
    for session in sessions[1:]:
        server.hang_up(session)
    server.wait(TIMEOUT_S + 0.5, sessions[0])
    assert server.deserted == []
    assert state_of(sessions[0]) is State.BROKEN


def test_when_nobody_else_claims_the_silent_are_lost_and_the_others_told_at_once() -> None:
    """Rule 17e."""
    server, sessions = served(8)
    server.wait(TIMEOUT_S + 0.5, *sessions[:2])
    server.wait(OTHERS_S, *sessions[:2])
    server.coordinator.claimed_again(2)
    server.renewed(server.now)
    assert [state_of(session) for session in sessions[:2]] == [State.BROKEN, State.BROKEN]
    assert list(server.run.active) == ["a", "b"]
    server.wait(60.0, *sessions[:2])
    assert len(server.deserted) == 1


def test_who_is_heard_again_before_the_server_claims_again_is_not_lost() -> None:
    """Rule 17e: on its old connection, or with something to say on a new one."""
    server, sessions = served(4)
    server.wait(TIMEOUT_S + 0.5, sessions[0])
    server.say(sessions[1], sessions[1].beat(server.now))
    server.connect(sessions[2])
    server.say(sessions[3], sessions[3].close_run())
    server.renewed(server.now)
    server.recorded()
    assert server.run.current is None, "it was closed"
    assert {state_of(session) for session in sessions} == {State.CLOSED}


def test_who_waits_is_told_what_for() -> None:
    """Rule 11."""
    server, sessions = served(4)
    server.wait(TIMEOUT_S + 0.5, sessions[0])
    server.wait(2.0, sessions[0])
    server.join("z")
    assert server.told("z", KeepWaiting)[-1].why == (
        "the server does not hear most of its nodes, and waits whether another process serves them"
    )


# Its claim ------------------------------------------------------------------------------------------------------------


def relinquished(*, leases: bool = False) -> tuple[Process, RunDriver, Record]:
    """A server that has just removed its claim for the sake of others; the record before that."""
    register = ScriptedRegister()
    process, driver = a_server_with_a_world() if not leases else _with_leases(register)
    before = process.register.record
    process.serving.relinquish(driver.run, process.now)
    process.tick()
    process.answer(WriteRecord)
    return process, driver, before


def _with_leases(register: ScriptedRegister) -> tuple[Process, RunDriver]:
    register.claim_lives = True
    process, run = elected(register)
    driver = RunDriver(2, 3, run=run)
    driver.join("a", "b", "c")
    process.serving.want(driver.run, (0,))
    process.tick()
    process.settle()
    process.forget()
    return process, driver


@pytest.mark.parametrize("leases", [False, True])
def test_the_claim_is_removed_and_the_world_is_not_broken(leases: bool) -> None:
    """Rules 17e, 17g: and the server does not end."""
    process, _, before = relinquished(leases=leases)
    after = process.register.record
    assert (after.claim, after.world, after.epoch) == (None, before.world, before.epoch)
    assert after.world is not None
    assert not after.world.broken
    process.wait(OTHERS_S - 0.1)
    assert process.register.record.claim is None
    assert process.told == []


@pytest.mark.parametrize("leases", [False, True])
def test_when_nobody_else_has_claimed_the_server_claims_again_and_goes_on(leases: bool) -> None:
    """Rules 17d, 17e: the same claim with the next epoch."""
    process, _, before = relinquished(leases=leases)
    process.wait(OTHERS_S + 0.1)
    after = process.register.record
    assert before.claim is not None
    assert after.claim is not None
    assert (after.claim.id, after.claim.ranks, after.epoch) == (before.claim.id, before.claim.ranks, before.epoch + 1)
    assert [type(action) for action in process.told] == [ClaimedAgain, Renewed]


def test_a_server_whose_nodes_another_one_serves_is_deposed() -> None:
    """Rule 17d: at the latest when it would claim again; at once where it hears of changes."""
    process, _, before = relinquished()
    process.register.put(successor_of(process.register.record))
    process.wait(OTHERS_S + 0.1)
    assert [type(action) for action in process.told] == [Stop]
    assert process.register.record.epoch == before.epoch + 1
    heard, _, _ = relinquished()
    heard.register.put(successor_of(heard.register.record))
    heard.check()
    assert not heard.only(Stop).handed_over


def test_a_server_that_another_one_follows_at_that_very_moment_is_deposed() -> None:
    """Rule 17d: by compare-and-set."""
    process, _, _ = relinquished()
    process.now += OTHERS_S
    process.tick()
    process.answer(ReadRecord)
    process.register.put(successor_of(process.register.record))
    process.answer(WriteRecord)
    process.settle()
    assert [type(action) for action in process.told] == [Stop]


def test_a_removal_whose_answer_was_lost_is_looked_up() -> None:
    """Rule 17c: and the others have their time from then on."""
    process, driver = a_server_with_a_world()
    process.serving.relinquish(driver.run, process.now)
    process.tick()
    process.lose_answer(applied=True)
    process.wait(OTHERS_S)
    assert process.told == []
    process.wait(0.2)
    assert [type(action) for action in process.told] == [ClaimedAgain, Renewed]


def test_a_claim_that_still_stands_lets_nobody_go_on_while_it_is_to_be_removed() -> None:
    """Rule 17e: the register did not answer, and then shows the claim."""
    process, driver = a_server_with_a_world()
    process.serving.relinquish(driver.run, process.now)
    process.tick()
    process.lose_answer(applied=False)
    process.now += 0.1
    process.tick()
    process.answer(ReadRecord)
    assert process.told == []
    process.answer(WriteRecord)
    assert process.register.record.claim is None


def test_a_world_that_is_broken_is_said_to_be() -> None:
    """Rule 17g: with who is gone from it."""
    process, driver = a_server_with_a_world()
    driver.lose("b")
    process.serving.relinquish(driver.run, process.now)
    process.tick()
    process.answer(WriteRecord)
    world = process.register.record.world
    assert world is not None
    assert world.broken


def test_a_process_that_leaves_while_others_may_claim_claims_nothing() -> None:
    """Rule 17g."""
    process, driver, _ = relinquished()
    process.leave(driver.run)
    process.settle()
    assert process.only(Stop).handed_over
    assert process.register.record.claim is None
    assert process.election.is_done


def test_a_server_that_cannot_claim_again_is_in_doubt() -> None:
    """Rule 17e: the register went away meanwhile; then its nodes may look for themselves, and not before."""
    process, _, _ = relinquished()
    until = process.now + OTHERS_S + REST_S
    while process.now < until - 0.6:
        process.now += 0.5
        process.tick()
        if process.call is not None:
            process.lose_answer()
    assert process.told == []
    process.now = until
    process.tick()
    assert isinstance(process.only(Doubt), Doubt)
