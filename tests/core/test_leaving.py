"""Leaving has a reason, and closing is final (rules 1 and 8)."""

from __future__ import annotations

import pytest

from rallypoint.core.model import EndedIncarnation, Phase, Run
from rallypoint.messages.notices import Broken, Refused, RunClosed
from rallypoint.messages.requests import Left, Standing
from rallypoint.messages.types import Ending, OnGiveUp, Reason, Role
from tests.support.run_driver import Stage, sealed


def test_who_finishes_does_not_break_the_world_and_the_last_one_closes_it_well() -> None:
    stage = sealed(3, members="abc")
    stage.join("s", role=Role.SPARE)
    stage.finish("a")
    assert stage.phase is Phase.SEALED
    assert "2 nodes, 1 node finished" in stage.situation()
    stage.finish("b", "c")
    closed = stage.answer("s", RunClosed)
    assert (closed.ending, closed.why) == (Ending.SUCCEEDED, "all members have finished")
    assert {to for to, _ in stage.sends} == {"a", "b", "c", "s"}


def test_who_has_finished_may_say_so_again_and_cannot_come_back() -> None:
    stage = sealed(2)
    stage.announce("a", Standing.FINISHED)
    assert list(stage.run.finished) == ["a"]
    stage.announce("a", Standing.FINISHED)
    assert stage.sends == []
    stage.join("a")
    assert "a new process must join in its place" in stage.answer("a", Refused).why


def test_finishing_in_a_world_that_is_broken_counts() -> None:
    stage = sealed(1, 3, members="abc")
    stage.lose("c")
    stage.finish("a")
    assert list(stage.run.finished) == ["a"]
    assert stage.phase is Phase.GATHERING
    stage.join_again("b")
    assert stage.ranked == ["b"]
    stage.finish("b")
    assert stage.run.closing is not None
    assert stage.run.closing.ending is Ending.SUCCEEDED


def test_finishing_in_another_world_than_the_current_one_is_leaving() -> None:
    stage = sealed(1, 2)
    stage.take(Left("a", Reason.FINISHED, "another"))
    assert "a finished" in stage.answer("b", Broken).why
    assert not stage.run.finished


def test_a_world_that_breaks_after_some_have_finished_closes_when_too_few_are_left() -> None:
    stage = sealed(3, members="abc")
    stage.finish("a")
    stage.lose("b")
    closed = stage.answer("c", RunClosed)
    assert closed.ending is Ending.FAILED
    assert closed.why == "1 finished, and of the rest 1 are left where 3 are needed"


def test_a_waiting_survivor_that_goes_may_leave_too_few() -> None:
    stage = sealed(2, 3, members="abc")
    stage.finish("a")
    stage.join_again("b")
    stage.lose("b")
    assert stage.answer("c", RunClosed).ending is Ending.FAILED


def test_withdrawing_breaks_the_world_and_is_no_crash() -> None:
    stage = sealed(2)
    stage.leave("b", Reason.WITHDREW, "preempted")
    assert stage.answer("a", Broken).why == "b withdrew: preempted"
    assert not stage.run.crashes


def test_a_waiting_node_that_leaves_is_simply_gone() -> None:
    stage = Stage(2)
    stage.join("a", "s", role=Role.SPARE)
    stage.leave("a", Reason.GAVE_UP)
    assert list(stage.run.spares) == ["s"]
    assert stage.phase is Phase.GATHERING


@pytest.mark.parametrize(
    ("low", "high", "on_give_up", "closes"),
    [
        (2, 2, OnGiveUp.AUTO, True),
        (1, 2, OnGiveUp.AUTO, False),
        (1, 2, OnGiveUp.CLOSE, True),
        (2, 2, OnGiveUp.WAIT, False),
    ],
)
def test_giving_up_closes_the_run_or_waits_for_a_replacement(
    low: int, high: int, on_give_up: OnGiveUp, closes: bool
) -> None:
    stage = sealed(low, high, on_give_up=on_give_up)
    stage.leave("b", Reason.GAVE_UP, "out of memory")
    assert stage.run.crashes["b"].count == 1
    if closes:
        assert stage.answer("a", RunClosed) == RunClosed(
            stage.run.incarnation, Ending.FAILED, "b gave up: out of memory"
        )
    else:
        assert stage.answer("a", Broken).why == "b gave up: out of memory"


def test_giving_up_while_regrouping_closes_the_run_too() -> None:
    stage = sealed(2)
    stage.join_again("b")
    stage.leave("b", Reason.GAVE_UP)
    assert stage.answer("a", RunClosed).ending is Ending.FAILED


def test_anybody_can_close_the_run_for_everybody() -> None:
    stage = sealed(2, 3)
    stage.join("c")
    stage.close("a", why="enough", ending=Ending.SUCCEEDED)
    everyone = dict.fromkeys("abc", RunClosed(stage.run.incarnation, Ending.SUCCEEDED, "enough"))
    assert dict(stage.sends) == everyone
    assert stage.situation() == "closed as succeeded: enough"


def test_closing_what_is_closed_or_gone_changes_nothing() -> None:
    stage = sealed(2)
    stage.close("a", incarnation="another")
    assert stage.phase is Phase.SEALED
    stage.close("a", incarnation=stage.run.incarnation)
    assert stage.run.closing is not None
    assert stage.run.closing.why == "a closed it"
    first = stage.run
    stage.close("b")
    assert stage.run is first


def test_closed_is_final_and_a_tombstone_answers() -> None:
    stage = sealed(2)
    incarnation = stage.run.incarnation
    stage.close()
    for node_id, standing in (("a", Standing.HOLDS), ("a", Standing.WAITING), ("newcomer", Standing.WAITING)):
        stage.announce(node_id, standing)
        assert [type(what) for _, what in stage.sends] == [RunClosed]
    stage.join("newcomer")
    assert stage.answer("newcomer", RunClosed).incarnation == incarnation
    assert stage.phase is Phase.CLOSED
    stage.announce("b", Standing.CLOSED)
    assert stage.sends == []


def test_members_may_still_leave_a_closed_run_and_it_stays_closed() -> None:
    stage = sealed(3, members="abc")
    stage.close()
    stage.finish("a")
    stage.leave("b", Reason.GAVE_UP)
    stage.lose("c")
    assert stage.phase is Phase.CLOSED
    assert stage.run.live == 0


def test_a_fresh_node_founds_a_new_incarnation_once_the_old_ones_are_gone() -> None:
    stage = sealed(2)
    old = stage.run.incarnation
    stage.close()
    stage.lose("a", "b")
    stage.join("c", incarnation=old)
    stage.answer("c", RunClosed)
    stage.join("c", "d")
    assert stage.world.round == 2
    assert stage.run.incarnation not in ("", old)


def test_a_tombstone_is_forgotten_after_its_time_but_not_the_round() -> None:
    stage = sealed(2, closed_ttl_s=60)
    ended = EndedIncarnation(stage.run.incarnation, Ending.FAILED, "somebody closed it")
    stage.close()
    stage.wait(59.9)
    assert stage.phase is Phase.CLOSED
    stage.wait(0.1)
    assert stage.run == Run(run_id="run", round=1, arrivals=stage.run.arrivals, last=ended)


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_member_that_missed_the_close_is_told_of_it_by_the_next_incarnation(forgotten: bool) -> None:
    """Rules 1 and 17h: it is told how its own incarnation ended, and is not fenced."""
    stage = sealed(2)
    seat, incarnation = stage.seat("a"), stage.run.incarnation
    stage.close(why="enough", ending=Ending.SUCCEEDED)
    if forgotten:
        stage.wait(60)
    else:
        stage.lose("a", "b")
    stage.join("c", "d")
    assert stage.ranked == ["c", "d"]
    before = stage.run
    stage.announce("a", Standing.HOLDS, seat=seat, incarnation=incarnation)
    assert stage.heard("a") == [RunClosed(incarnation, Ending.SUCCEEDED, "enough")]
    assert stage.run is before
    stage.join("a", seat=seat, incarnation=incarnation)
    assert stage.heard("a") == [RunClosed(incarnation, Ending.SUCCEEDED, "enough")]
    assert stage.run is before
