"""Leaving has a reason, and closing is final (rules 1 and 8)."""

from __future__ import annotations

import pytest

from rallypoint.core.model import EndedIncarnation, Phase, Run
from rallypoint.messages.notices import Broken, Refused, RunClosed
from rallypoint.messages.requests import Left, Standing
from rallypoint.messages.types import Ending, OnGiveUp, Reason, Role
from tests.support.run_driver import RunDriver, sealed


def test_who_finishes_does_not_break_the_world_and_the_last_one_closes_it_well() -> None:
    driver = sealed(3, members="abc")
    driver.join("s", role=Role.SPARE)
    driver.finish("a")
    assert driver.phase is Phase.SEALED
    assert "2 nodes, 1 node finished" in driver.situation()
    driver.finish("b", "c")
    closed = driver.answer("s", RunClosed)
    assert (closed.ending, closed.why) == (Ending.SUCCEEDED, "all members have finished")
    assert {to for to, _ in driver.sends} == {"a", "b", "c", "s"}


def test_who_has_finished_may_say_so_again_and_cannot_come_back() -> None:
    driver = sealed(2)
    driver.announce("a", Standing.FINISHED)
    assert list(driver.run.finished) == ["a"]
    driver.announce("a", Standing.FINISHED)
    assert driver.sends == []
    driver.join("a")
    assert "a new process must join in its place" in driver.answer("a", Refused).why


def test_finishing_in_a_world_that_is_broken_counts() -> None:
    driver = sealed(1, 3, members="abc")
    driver.lose("c")
    driver.finish("a")
    assert list(driver.run.finished) == ["a"]
    assert driver.phase is Phase.GATHERING
    driver.join_again("b")
    assert driver.ranked == ["b"]
    driver.finish("b")
    assert driver.run.closing is not None
    assert driver.run.closing.ending is Ending.SUCCEEDED


def test_finishing_in_another_world_than_the_current_one_is_leaving() -> None:
    driver = sealed(1, 2)
    driver.take(Left("a", Reason.FINISHED, "another"))
    assert "a finished" in driver.answer("b", Broken).why
    assert not driver.run.finished


def test_a_world_that_breaks_after_some_have_finished_closes_when_too_few_are_left() -> None:
    driver = sealed(3, members="abc")
    driver.finish("a")
    driver.lose("b")
    closed = driver.answer("c", RunClosed)
    assert closed.ending is Ending.FAILED
    assert closed.why == "1 finished, and of the rest 1 are left where 3 are needed"


def test_a_waiting_survivor_that_goes_may_leave_too_few() -> None:
    driver = sealed(2, 3, members="abc")
    driver.finish("a")
    driver.join_again("b")
    driver.lose("b")
    assert driver.answer("c", RunClosed).ending is Ending.FAILED


def test_withdrawing_breaks_the_world_and_is_no_crash() -> None:
    driver = sealed(2)
    driver.leave("b", Reason.WITHDREW, "preempted")
    assert driver.answer("a", Broken).why == "b withdrew: preempted"
    assert not driver.run.crashes


def test_a_waiting_node_that_leaves_is_simply_gone() -> None:
    driver = RunDriver(2)
    driver.join("a", "s", role=Role.SPARE)
    driver.leave("a", Reason.GAVE_UP)
    assert list(driver.run.spares) == ["s"]
    assert driver.phase is Phase.GATHERING


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
    driver = sealed(low, high, on_give_up=on_give_up)
    driver.leave("b", Reason.GAVE_UP, "out of memory")
    assert driver.run.crashes["b"].count == 1
    if closes:
        assert driver.answer("a", RunClosed) == RunClosed(
            driver.run.incarnation, Ending.FAILED, "b gave up: out of memory"
        )
    else:
        assert driver.answer("a", Broken).why == "b gave up: out of memory"


def test_giving_up_while_regrouping_closes_the_run_too() -> None:
    driver = sealed(2)
    driver.join_again("b")
    driver.leave("b", Reason.GAVE_UP)
    assert driver.answer("a", RunClosed).ending is Ending.FAILED


def test_anybody_can_close_the_run_for_everybody() -> None:
    driver = sealed(2, 3)
    driver.join("c")
    driver.close("a", why="enough", ending=Ending.SUCCEEDED)
    everyone = dict.fromkeys("abc", RunClosed(driver.run.incarnation, Ending.SUCCEEDED, "enough"))
    assert dict(driver.sends) == everyone
    assert driver.situation() == "closed as succeeded: enough"


def test_closing_what_is_closed_or_gone_changes_nothing() -> None:
    driver = sealed(2)
    driver.close("a", incarnation="another")
    assert driver.phase is Phase.SEALED
    driver.close("a", incarnation=driver.run.incarnation)
    assert driver.run.closing is not None
    assert driver.run.closing.why == "a closed it"
    first = driver.run
    driver.close("b")
    assert driver.run is first


def test_closed_is_final_and_a_tombstone_answers() -> None:
    driver = sealed(2)
    incarnation = driver.run.incarnation
    driver.close()
    for node_id, standing in (("a", Standing.HOLDS), ("a", Standing.WAITING), ("newcomer", Standing.WAITING)):
        driver.announce(node_id, standing)
        assert [type(what) for _, what in driver.sends] == [RunClosed]
    driver.join("newcomer")
    assert driver.answer("newcomer", RunClosed).incarnation == incarnation
    assert driver.phase is Phase.CLOSED
    driver.announce("b", Standing.CLOSED)
    assert driver.sends == []


def test_members_may_still_leave_a_closed_run_and_it_stays_closed() -> None:
    driver = sealed(3, members="abc")
    driver.close()
    driver.finish("a")
    driver.leave("b", Reason.GAVE_UP)
    driver.lose("c")
    assert driver.phase is Phase.CLOSED
    assert driver.run.live == 0


def test_a_fresh_node_founds_a_new_incarnation_once_the_old_ones_are_gone() -> None:
    driver = sealed(2)
    old = driver.run.incarnation
    driver.close()
    driver.lose("a", "b")
    driver.join("c", incarnation=old)
    driver.answer("c", RunClosed)
    driver.join("c", "d")
    assert driver.world.round == 2
    assert driver.run.incarnation not in ("", old)


def test_a_tombstone_is_forgotten_after_its_time_but_not_the_round() -> None:
    driver = sealed(2, closed_ttl_s=60)
    ended = EndedIncarnation(driver.run.incarnation, Ending.FAILED, "somebody closed it")
    driver.close()
    driver.wait(59.9)
    assert driver.phase is Phase.CLOSED
    driver.wait(0.1)
    assert driver.run == Run(run_id="run", round=1, arrivals=driver.run.arrivals, last=ended)


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_member_that_missed_the_close_is_told_of_it_by_the_next_incarnation(forgotten: bool) -> None:
    """Rules 1 and 17h: it is told how its own incarnation ended, and is not fenced."""
    driver = sealed(2)
    seat, incarnation = driver.seat("a"), driver.run.incarnation
    driver.close(why="enough", ending=Ending.SUCCEEDED)
    if forgotten:
        driver.wait(60)
    else:
        driver.lose("a", "b")
    driver.join("c", "d")
    assert driver.ranked == ["c", "d"]
    before = driver.run
    driver.announce("a", Standing.HOLDS, seat=seat, incarnation=incarnation)
    assert driver.heard("a") == [RunClosed(incarnation, Ending.SUCCEEDED, "enough")]
    assert driver.run is before
    driver.join("a", seat=seat, incarnation=incarnation)
    assert driver.heard("a") == [RunClosed(incarnation, Ending.SUCCEEDED, "enough")]
    assert driver.run is before
