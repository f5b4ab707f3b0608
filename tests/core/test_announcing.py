"""What a run with a memory makes of announcements: fencing, nodes of other incarnations, repairs (rules 9 and 14)."""

from __future__ import annotations

import pytest

from rallypoint.core.events import Lost, TimePassed
from rallypoint.core.model import Phase
from rallypoint.messages.notices import Broken, Fenced, KeepWaiting, RunClosed, StandBy
from rallypoint.messages.requests import Announced, CloseAsked, Left, Seat, Standing
from rallypoint.messages.types import Ending, Reason, Role
from tests.support.run_driver import RunDriver, member, sealed


def test_an_announcement_of_what_is_known_changes_nothing() -> None:
    driver = sealed(2, 3)
    driver.join("c")
    driver.join("s", role=Role.SPARE)
    before = driver.run
    driver.announce("a", Standing.HOLDS, waiting=1)
    assert (driver.run, driver.sends, driver.why) == (before, [], "")
    driver.take(Announced(member("s", role=Role.SPARE), driver.bounds, Standing.SPARE))
    assert (driver.run, driver.sends, driver.why) == (before, [], "")


def test_a_waiting_node_that_announces_itself_is_told_what_it_waits_for() -> None:
    driver = sealed(2, 3)
    driver.announce("c", Standing.WAITING)
    assert "newcomers are admitted when its members regroup" in driver.answer("c", KeepWaiting).why
    driver.announce("c", Standing.WAITING)
    driver.answer("c", KeepWaiting)


def test_a_spare_that_is_needed_after_all_hears_that_it_waits() -> None:
    driver = sealed(2)
    driver.join("c")
    driver.answer("c", StandBy)
    driver.lose("b")
    driver.announce("c", Standing.SPARE)
    assert "a still has to stop" in driver.answer("c", KeepWaiting).why


def test_a_node_that_was_given_up_learns_so_on_its_next_contact() -> None:
    driver = sealed(2, 3, members="abc")
    seat, incarnation = driver.seat("c"), driver.run.incarnation
    driver.lose("c")
    driver.announce("c", Standing.HOLDS, seat=seat)
    fenced = driver.answer("c", Fenced)
    assert fenced.seal_id == seat.seal_id
    assert "given up or left behind" in fenced.why
    driver.join("c", seat=seat, incarnation=incarnation)
    assert driver.answer("c", Fenced) == fenced


def test_a_fenced_node_may_know_of_a_later_round_than_the_record_and_it_counts() -> None:
    driver = sealed(2)
    later = Seat(7, "later", 2, 0)
    driver.announce("x", Standing.HOLDS, seat=later)
    assert driver.answer("x", Fenced).seal_id == "later"
    driver.join("y", seat=Seat(8, "later still", 2, 0), incarnation=driver.run.incarnation)
    driver.join_again("a", "b")
    assert driver.world.round == 9


def test_a_stranger_from_another_incarnation_is_fenced_and_its_round_counts() -> None:
    driver = sealed(2)
    driver.join("x", seat=Seat(5, "old", 2, 0), incarnation="gone")
    assert "an incarnation of the run that is gone" in driver.answer("x", Fenced).why
    driver.join_again("a", "b")
    assert driver.world.round == 6


def test_a_member_that_speaks_of_another_incarnation_is_lost() -> None:
    driver = sealed(2)
    driver.announce("a", Standing.HOLDS, seat=Seat(1, "old", 2, 0), incarnation="gone")
    driver.answer("a", Fenced)
    assert "a was lost: it speaks of another incarnation" in driver.answer("b", Broken).why


def test_a_member_that_missed_the_break_is_told_when_it_announces_itself() -> None:
    driver = sealed(3, members="abc")
    driver.lose("c")
    driver.announce("a", Standing.HOLDS)
    assert driver.answer("a", Broken).seal_id == driver.seat("a").seal_id
    driver.announce("b", Standing.BROKEN)
    assert driver.sends == []


def test_a_member_that_speaks_of_the_world_before_is_told_that_it_is_broken() -> None:
    driver = sealed(2)
    old = driver.seat("a")
    driver.join_again("a", "b")
    driver.announce("a", Standing.HOLDS, seat=old)
    assert driver.heard("a") == [Broken(old.seal_id, "round 2 came after it")]
    assert driver.phase is Phase.SEALED


def test_one_member_that_knows_of_the_break_suffices() -> None:
    driver = sealed(2)
    driver.announce("a", Standing.BROKEN)
    driver.answer("b", Broken)
    assert driver.phase is Phase.GATHERING


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_spare_that_missed_the_close_is_told_of_it_by_the_next_incarnation(forgotten: bool) -> None:
    """Rules 1 and 7: it ends as the run that it stood by for."""
    driver = sealed(2)
    spare = member("s", role=Role.SPARE)
    driver.join("s", role=Role.SPARE)
    incarnation = driver.run.incarnation
    driver.close(ending=Ending.SUCCEEDED, why="done")
    driver.lose("a", "b", "s")
    if forgotten:
        driver.wait(60)
    driver.join("c", "d")
    before = driver.run
    driver.take(Announced(spare, driver.bounds, Standing.SPARE, incarnation=incarnation))
    assert driver.heard("s") == [RunClosed(incarnation, Ending.SUCCEEDED, "done")]
    assert driver.run == before
    driver.take(Announced(spare, driver.bounds, Standing.SPARE, incarnation="older"))
    assert (driver.sends, list(driver.run.spares)) == ([], ["s"])


def test_one_node_that_knows_of_the_closing_suffices() -> None:
    driver = sealed(2)
    driver.announce("a", Standing.CLOSED, ending=Ending.SUCCEEDED, why="done")
    assert driver.answer("b", RunClosed) == RunClosed(driver.run.incarnation, Ending.SUCCEEDED, "done")


def test_the_closing_of_another_incarnation_means_nothing() -> None:
    driver = sealed(2)
    driver.announce("x", Standing.CLOSED, incarnation="gone")
    assert driver.phase is Phase.SEALED
    empty = RunDriver(2)
    empty.announce("x", Standing.CLOSED, incarnation="")
    assert empty.phase is Phase.GATHERING


def test_a_node_that_came_back_and_only_then_remembers_its_world_is_told_that_it_broke() -> None:
    driver = sealed(2, 3, members="abc")
    seat = driver.seat("c")
    driver.lose("c")
    driver.join("c")
    driver.announce("c", Standing.HOLDS, seat=seat)
    assert driver.heard("c") == [Broken(seat.seal_id, "round 1 is broken")]


def test_a_standing_in_a_world_that_is_not_named_means_nothing() -> None:
    driver = sealed(2)
    driver.announce("a", Standing.HOLDS, seat=None)
    assert driver.sends == []
    assert "without naming it" in driver.why


@pytest.mark.parametrize(("round_", "seal_id", "size", "rank"), [(0, "s", 1, 0), (1, "", 1, 0), (1, "s", 2, 2)])
def test_a_seat_outside_of_any_world_cannot_be_said(round_: int, seal_id: str, size: int, rank: int) -> None:
    with pytest.raises(ValueError, match="must name its world and lie inside it"):
        Seat(round_, seal_id, size, rank)


def test_whoever_says_nothing_new_gets_no_answer() -> None:
    driver = sealed(2)
    for event in (TimePassed(), Lost("x", "?"), Left("x", Reason.WITHDREW), CloseAsked("x", incarnation="gone")):
        driver.take(event)
        assert driver.sends == []
