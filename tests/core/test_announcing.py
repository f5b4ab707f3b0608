"""What a run with a memory makes of announcements: fencing, strangers, repairs (rules 9 and 14)."""

from __future__ import annotations

import pytest

from rallypoint.core.events import Lost, TimePassed
from rallypoint.core.model import Phase
from rallypoint.messages.notices import Broken, Fenced, KeepWaiting, RunClosed, StandBy
from rallypoint.messages.requests import Announced, CloseAsked, Left, Seat, Standing
from rallypoint.messages.types import Ending, Reason, Role
from tests.support.run_driver import Stage, member, sealed


def test_an_announcement_of_what_is_known_changes_nothing() -> None:
    stage = sealed(2, 3)
    stage.join("c")
    stage.join("s", role=Role.SPARE)
    before = stage.run
    stage.announce("a", Standing.HOLDS, waiting=1)
    assert (stage.run, stage.sends, stage.why) == (before, [], "")
    stage.take(Announced(member("s", role=Role.SPARE), stage.bounds, Standing.SPARE))
    assert (stage.run, stage.sends, stage.why) == (before, [], "")


def test_a_waiting_node_that_announces_itself_is_told_what_it_waits_for() -> None:
    stage = sealed(2, 3)
    stage.announce("c", Standing.WAITING)
    assert "newcomers are admitted when its members regroup" in stage.answer("c", KeepWaiting).why
    stage.announce("c", Standing.WAITING)
    stage.answer("c", KeepWaiting)


def test_a_spare_that_is_needed_after_all_hears_that_it_waits() -> None:
    stage = sealed(2)
    stage.join("c")
    stage.answer("c", StandBy)
    stage.lose("b")
    stage.announce("c", Standing.SPARE)
    assert "a still has to stop" in stage.answer("c", KeepWaiting).why


def test_a_node_that_was_given_up_learns_so_on_its_next_contact() -> None:
    stage = sealed(2, 3, members="abc")
    seat, incarnation = stage.seat("c"), stage.run.incarnation
    stage.lose("c")
    stage.announce("c", Standing.HOLDS, seat=seat)
    fenced = stage.answer("c", Fenced)
    assert fenced.seal_id == seat.seal_id
    assert "given up or left behind" in fenced.why
    stage.join("c", seat=seat, incarnation=incarnation)
    assert stage.answer("c", Fenced) == fenced


def test_a_fenced_node_may_know_of_a_later_round_than_the_record_and_it_counts() -> None:
    stage = sealed(2)
    later = Seat(7, "later", 2, 0)
    stage.announce("x", Standing.HOLDS, seat=later)
    assert stage.answer("x", Fenced).seal_id == "later"
    stage.join("y", seat=Seat(8, "later still", 2, 0), incarnation=stage.run.incarnation)
    stage.join_again("a", "b")
    assert stage.world.round == 9


def test_a_stranger_from_another_incarnation_is_fenced_and_its_round_counts() -> None:
    stage = sealed(2)
    stage.join("x", seat=Seat(5, "old", 2, 0), incarnation="gone")
    assert "an incarnation of the run that is gone" in stage.answer("x", Fenced).why
    stage.join_again("a", "b")
    assert stage.world.round == 6


def test_a_member_that_speaks_of_another_incarnation_is_lost() -> None:
    stage = sealed(2)
    stage.announce("a", Standing.HOLDS, seat=Seat(1, "old", 2, 0), incarnation="gone")
    stage.answer("a", Fenced)
    assert "a was lost: it speaks of another incarnation" in stage.answer("b", Broken).why


def test_a_member_that_missed_the_break_is_told_when_it_announces_itself() -> None:
    stage = sealed(3, members="abc")
    stage.lose("c")
    stage.announce("a", Standing.HOLDS)
    assert stage.answer("a", Broken).seal_id == stage.seat("a").seal_id
    stage.announce("b", Standing.BROKEN)
    assert stage.sends == []


def test_a_member_that_speaks_of_the_world_before_is_told_that_it_is_broken() -> None:
    stage = sealed(2)
    old = stage.seat("a")
    stage.join_again("a", "b")
    stage.announce("a", Standing.HOLDS, seat=old)
    assert stage.heard("a") == [Broken(old.seal_id, "round 2 came after it")]
    assert stage.phase is Phase.SEALED


def test_one_member_that_knows_of_the_break_suffices() -> None:
    stage = sealed(2)
    stage.announce("a", Standing.BROKEN)
    stage.answer("b", Broken)
    assert stage.phase is Phase.GATHERING


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_spare_that_missed_the_close_is_told_of_it_by_the_next_incarnation(forgotten: bool) -> None:
    """Rules 1 and 7: it ends as the run that it stood by for."""
    stage = sealed(2)
    spare = member("s", role=Role.SPARE)
    stage.join("s", role=Role.SPARE)
    incarnation = stage.run.incarnation
    stage.close(ending=Ending.SUCCEEDED, why="done")
    stage.lose("a", "b", "s")
    if forgotten:
        stage.wait(60)
    stage.join("c", "d")
    before = stage.run
    stage.take(Announced(spare, stage.bounds, Standing.SPARE, incarnation=incarnation))
    assert stage.heard("s") == [RunClosed(incarnation, Ending.SUCCEEDED, "done")]
    assert stage.run == before
    stage.take(Announced(spare, stage.bounds, Standing.SPARE, incarnation="older"))
    assert (stage.sends, list(stage.run.spares)) == ([], ["s"])


def test_one_node_that_knows_of_the_closing_suffices() -> None:
    stage = sealed(2)
    stage.announce("a", Standing.CLOSED, ending=Ending.SUCCEEDED, why="done")
    assert stage.answer("b", RunClosed) == RunClosed(stage.run.incarnation, Ending.SUCCEEDED, "done")


def test_the_closing_of_another_incarnation_means_nothing() -> None:
    stage = sealed(2)
    stage.announce("x", Standing.CLOSED, incarnation="gone")
    assert stage.phase is Phase.SEALED
    empty = Stage(2)
    empty.announce("x", Standing.CLOSED, incarnation="")
    assert empty.phase is Phase.GATHERING


def test_a_node_that_came_back_and_only_then_remembers_its_world_is_told_that_it_broke() -> None:
    stage = sealed(2, 3, members="abc")
    seat = stage.seat("c")
    stage.lose("c")
    stage.join("c")
    stage.announce("c", Standing.HOLDS, seat=seat)
    assert stage.heard("c") == [Broken(seat.seal_id, "round 1 is broken")]


def test_a_standing_in_a_world_that_is_not_named_means_nothing() -> None:
    stage = sealed(2)
    stage.announce("a", Standing.HOLDS, seat=None)
    assert stage.sends == []
    assert "without naming it" in stage.why


@pytest.mark.parametrize(("round_", "seal_id", "size", "rank"), [(0, "s", 1, 0), (1, "", 1, 0), (1, "s", 2, 2)])
def test_a_seat_outside_of_any_world_cannot_be_said(round_: int, seal_id: str, size: int, rank: int) -> None:
    with pytest.raises(ValueError, match="must name its world and lie inside it"):
        Seat(round_, seal_id, size, rank)


def test_whoever_says_nothing_new_gets_no_answer() -> None:
    stage = sealed(2)
    for event in (TimePassed(), Lost("x", "?"), Left("x", Reason.WITHDREW), CloseAsked("x", incarnation="gone")):
        stage.take(event)
        assert stage.sends == []
