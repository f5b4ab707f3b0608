"""An authority that has lost its memory listens before it seals (rule 14)."""

from __future__ import annotations

from typing import Any

import pytest

from rallypoint.core import recovery, transition
from rallypoint.core.events import Announced, Joined, Left, Seat, Standing
from rallypoint.core.model import Bounds, Ending, Phase, Reason, Role
from rallypoint.core.notices import Broken, Fenced, KeepWaiting, Placed, Refused, RunClosed, StandBy
from tests.core.stage import Stage, member

HOLD_S = 7.0


def restarted(low: int = 2, high: int | None = None, **settings: Any) -> Stage:
    """A stage whose authority has just started and knows nothing."""
    stage = Stage(low, high, **settings)
    stage.run = recovery.blank("run", stage.now, stage.now, HOLD_S)
    return stage


def claim(
    stage: Stage,
    node_id: str,
    rank: int,
    standing: Standing = Standing.HOLDS,
    *,
    size: int = 3,
    round_: int = 4,
    seal_id: str = "",
    **said: Any,
) -> None:
    """A node speaks of its place in a world of the incarnation `old`."""
    seat = Seat(round_, seal_id or f"s{round_}", size, rank)
    stage.announce(node_id, standing, seat=seat, **{"incarnation": "old", **said})


# The hold -------------------------------------------------------------------------------------------------------------


def test_an_authority_that_has_been_up_for_long_never_holds() -> None:
    assert recovery.blank("run", started_at=0.0, now=6.9, hold_s=7.0).phase is Phase.RECOVERING
    assert recovery.blank("run", started_at=0.0, now=7.0, hold_s=7.0).phase is Phase.GATHERING


def test_a_fresh_node_that_arrives_first_waits_for_the_earlier_life() -> None:
    stage = restarted(1)
    stage.bounds = Bounds(1, 3)
    stage.join("new")
    waits = stage.answer("new", KeepWaiting)
    assert "listens for nodes of an earlier life, at most 7.0 s more" in waits.why
    assert waits.at_most_s == HOLD_S
    assert transition.wake_at(stage.run, stage.now) == stage.now + HOLD_S
    claim(stage, "a", 0, size=1)
    assert stage.ranked == ["a"]
    assert list(stage.run.queue) == ["new"]


def test_when_the_hold_ends_and_nobody_spoke_of_a_world_the_run_starts_anew() -> None:
    stage = restarted(2, 3, last_call_s=30)
    stage.join("a", "b")
    stage.join("s", role=Role.SPARE)
    assert "standing by" in stage.answer("s", StandBy).why
    stage.wait(HOLD_S)
    assert "the run starts anew" in stage.why
    assert "the last call ends in 30.0 s" in stage.situation()
    stage.join("c")
    assert stage.ranked == ["a", "b", "c"]
    assert stage.world.round == 1


def test_when_the_hold_ends_and_nobody_spoke_at_all_nothing_is_said() -> None:
    stage = restarted()
    stage.wait(HOLD_S)
    assert (stage.phase, stage.why, stage.sends) == (Phase.GATHERING, "", [])


def test_max_nodes_that_never_heard_of_a_world_skip_the_hold() -> None:
    stage = restarted(2)
    stage.join("a")
    stage.announce("b", Standing.WAITING)
    assert stage.ranked == ["a", "b"]


def test_max_nodes_do_not_skip_the_hold_if_one_has_heard_of_a_round() -> None:
    stage = restarted(2)
    stage.join("a")
    stage.take(Joined(member("b"), stage.bounds, round_seen=9))
    assert stage.phase is Phase.RECOVERING
    stage.wait(HOLD_S)
    assert stage.world.round == 10


# The highest world ----------------------------------------------------------------------------------------------------


def test_a_world_that_every_rank_still_holds_goes_on_and_nobody_is_disturbed() -> None:
    stage = restarted(2, 3)
    claim(stage, "a", 0)
    claim(stage, "c", 2)
    assert "2 of 3 ranks of round 4 have spoken, missing: rank 1; at most 7.0 s more" in stage.situation()
    claim(stage, "b", 1)
    assert stage.ranked == ["a", "b", "c"]
    assert (stage.world.incarnation, stage.world.round, stage.world.seal_id) == ("old", 4, "s4")
    assert stage.sends == []
    assert "all 3 ranks of round 4 still hold it" in stage.why


def test_an_announcement_made_twice_says_nothing_new() -> None:
    stage = restarted(2, 3)
    claim(stage, "a", 0)
    before = stage.run
    claim(stage, "a", 0)
    assert (stage.run, stage.why, stage.sends) == (before, "", [])


def test_ranks_that_were_not_heard_when_the_hold_ends_are_lost() -> None:
    stage = restarted(2, 3)
    claim(stage, "a", 0)
    claim(stage, "c", 2)
    stage.wait(HOLD_S)
    assert stage.phase is Phase.GATHERING
    assert dict(stage.sends) == dict.fromkeys("ac", Broken("s4", "only 2 of 3 ranks of round 4 still hold it"))
    stage.join_again("a", "c")
    assert stage.world.round == 5
    assert sorted(stage.ranked) == ["a", "c"]


def test_one_rank_that_knows_of_the_break_suffices_once_all_have_spoken() -> None:
    stage = restarted(2, 3)
    claim(stage, "a", 0, Standing.BROKEN)
    claim(stage, "b", 1)
    assert len(stage.run.claims) == 2
    claim(stage, "c", 2)
    assert stage.phase is Phase.GATHERING
    assert {to for to, _ in stage.sends} >= {"b", "c"}


def test_who_waits_for_the_next_world_is_back_when_the_hold_ends_and_keeps_its_rank() -> None:
    stage = restarted(2, 3)
    claim(stage, "c", 2, Standing.WAITING)
    assert "1 of 3 ranks" in stage.answer("c", KeepWaiting).why
    claim(stage, "c", 2, Standing.WAITING)
    stage.join("new")
    claim(stage, "a", 0)
    claim(stage, "b", 1)
    assert list(stage.run.returned) == ["c"]
    assert list(stage.run.queue) == ["new"]
    stage.join_again("b", "a")
    assert stage.ranked == ["a", "b", "c"]


def test_broken_is_sticky_an_older_announcement_does_not_mend_it() -> None:
    stage = restarted(2)
    claim(stage, "a", 0, Standing.BROKEN, size=2)
    claim(stage, "a", 0, Standing.HOLDS, size=2)
    claim(stage, "b", 1, size=2)
    assert stage.phase is Phase.GATHERING


def test_a_node_that_waited_and_then_holds_after_all_does_not_stand_in_two_places() -> None:
    stage = restarted(2)
    stage.join("a")
    claim(stage, "a", 0, size=2)
    assert not stage.run.queue
    claim(stage, "b", 1, size=2)
    assert stage.ranked == ["a", "b"]


def test_a_higher_world_supersedes_a_lower_one() -> None:
    stage = restarted(2)
    claim(stage, "a", 0, size=2, round_=4)
    claim(stage, "b", 1, size=2, round_=5)
    assert stage.heard("a") == [Broken("s4", "round 5 came after it")]
    claim(stage, "a", 0, size=2, round_=4)
    assert stage.heard("a") == [Broken("s4", "round 5 came after it")]
    claim(stage, "a", 0, Standing.WAITING, size=2, round_=5)
    stage.join_again("b")
    assert stage.world.round == 6


def test_a_rank_has_one_node_and_another_that_claims_it_is_fenced() -> None:
    stage = restarted(2)
    claim(stage, "a", 0, size=2)
    claim(stage, "impostor", 0, size=2)
    assert "rank 0 of round 4 is a" in stage.answer("impostor", Fenced).why
    claim(stage, "b", 1, size=2)
    assert stage.ranked == ["a", "b"]


# Finished -------------------------------------------------------------------------------------------------------------


def test_a_world_that_some_have_finished_goes_on_to_its_end() -> None:
    stage = restarted(2)
    claim(stage, "a", 0, Standing.FINISHED, size=2)
    claim(stage, "b", 1, size=2)
    assert stage.phase is Phase.SEALED
    stage.finish("b")
    assert stage.run.closing is not None
    assert stage.run.closing.ending is Ending.SUCCEEDED


def test_a_world_that_all_have_finished_closes_well() -> None:
    stage = restarted(2)
    claim(stage, "a", 0, Standing.FINISHED, size=2)
    claim(stage, "b", 1, Standing.FINISHED, size=2)
    assert stage.answer("a", RunClosed) == RunClosed("old", Ending.SUCCEEDED, "all members have finished")


def test_too_few_that_are_left_after_some_have_finished_close_the_run() -> None:
    stage = restarted(2, 3)
    claim(stage, "a", 0, Standing.FINISHED)
    claim(stage, "b", 1)
    stage.wait(HOLD_S)
    assert stage.answer("b", RunClosed).ending is Ending.FAILED


def test_finished_is_sticky_too() -> None:
    stage = restarted(2)
    claim(stage, "a", 0, Standing.FINISHED, size=2)
    claim(stage, "a", 0, Standing.HOLDS, size=2)
    stage.lose("a")
    stage.leave("a", Reason.WITHDREW)
    claim(stage, "b", 1, size=2)
    assert list(stage.run.finished) == ["a"]
    assert stage.phase is Phase.SEALED


# Going while it listens -----------------------------------------------------------------------------------------------


def test_a_rank_that_is_lost_while_the_authority_listens_has_spoken_and_is_out() -> None:
    stage = restarted(2, 3)
    claim(stage, "a", 0)
    claim(stage, "b", 1)
    stage.lose("b")
    assert len(stage.run.claims) == 2
    claim(stage, "c", 2)
    assert stage.phase is Phase.GATHERING
    assert {to for to, _ in stage.sends} == {"a", "c"}


@pytest.mark.parametrize(("reason", "phase"), [(Reason.FINISHED, Phase.SEALED), (Reason.WITHDREW, Phase.GATHERING)])
def test_a_rank_that_leaves_while_the_authority_listens_has_its_reason(reason: Reason, phase: Phase) -> None:
    stage = restarted(2)
    claim(stage, "a", 0, size=2)
    stage.take(Left("a", reason, "s4"))
    claim(stage, "b", 1, size=2)
    assert stage.phase is phase


def test_a_fresh_node_that_goes_while_the_authority_listens_is_simply_gone() -> None:
    stage = restarted(2)
    stage.join("a", "s", role=Role.SPARE)
    stage.lose("a")
    stage.leave("s", Reason.WITHDREW)
    assert stage.run.live == 0


# Closed ---------------------------------------------------------------------------------------------------------------


def test_one_node_that_knows_of_the_closing_suffices() -> None:
    stage = restarted(2)
    stage.join("new")
    stage.announce("a", Standing.CLOSED, incarnation="old", ending=Ending.SUCCEEDED, why="done")
    assert stage.answer("new", RunClosed) == RunClosed("old", Ending.SUCCEEDED, "done")


def test_those_who_still_hold_the_world_are_told_that_it_was_closed() -> None:
    stage = restarted(2)
    claim(stage, "a", 0, size=2)
    stage.announce("b", Standing.CLOSED, incarnation="old", why="enough")
    assert stage.answer("a", RunClosed) == RunClosed("old", Ending.FAILED, "enough")


def test_the_closing_of_an_earlier_incarnation_means_nothing() -> None:
    stage = restarted(2)
    claim(stage, "a", 0, size=2)
    stage.announce("x", Standing.CLOSED, incarnation="older")
    assert stage.phase is Phase.RECOVERING


@pytest.mark.parametrize("claims", [0, 1])
def test_a_run_can_be_closed_while_the_authority_listens(claims: int) -> None:
    stage = restarted(2)
    stage.join("new")
    for rank in range(claims):
        claim(stage, "a", rank, size=2)
    stage.close("new", why="never mind")
    assert stage.answer("new", RunClosed).why == "never mind"
    assert len(stage.heard("a")) == 2 * claims


# Bounds ---------------------------------------------------------------------------------------------------------------


def test_the_first_to_speak_sets_the_bounds_and_who_disagrees_is_refused() -> None:
    stage = restarted(2, 3)
    stage.join("a")
    stage.bounds = Bounds(1, 1)
    stage.join("b")
    assert "b asks for 1 node" in stage.answer("b", Refused).why
    stage.announce("b", Standing.WAITING)
    stage.answer("b", Refused)
    assert list(stage.run.queue) == ["a"]


def test_the_first_who_was_in_a_world_corrects_the_bounds() -> None:
    stage = restarted(1)
    stage.bounds = Bounds(2, 2)
    stage.join("wrong")
    stage.take(Joined(member("also-wrong", role=Role.SPARE), stage.bounds))
    stage.bounds = Bounds(2, 3)
    claim(stage, "a", 0)
    for name in ("wrong", "also-wrong"):
        assert "was founded for 2:3 nodes" in stage.answer(name, Refused).why
    assert stage.run.bounds == Bounds(2, 3)
    claim(stage, "b", 1, bounds=Bounds(3, 3))
    stage.answer("b", Refused)
    assert len(stage.run.claims) == 1


def test_a_standing_in_a_world_that_is_not_named_means_nothing() -> None:
    stage = restarted()
    stage.take(Announced(member("a"), stage.bounds, Standing.HOLDS, incarnation="old"))
    assert "without naming it" in stage.why
    assert stage.run.live == 0


def test_the_new_world_reaches_everybody_and_its_round_is_above_all_announced() -> None:
    stage = restarted(2, 3)
    claim(stage, "a", 0, Standing.WAITING, round_=4)
    claim(stage, "b", 1, Standing.WAITING, round_=6)
    stage.wait(HOLD_S)
    assert stage.world.round == 7
    assert {stage.answer(name, Placed).seal_id for name in "ab"} == {stage.world.seal_id}


def test_who_waits_is_told_the_highest_round_spoken_of_so_that_it_can_tell_the_next_authority() -> None:
    stage = restarted(2, 3)
    stage.join("new")
    assert stage.answer("new", KeepWaiting).round == 0
    claim(stage, "a", 0)
    stage.join("new")
    assert stage.answer("new", KeepWaiting).round == 4
