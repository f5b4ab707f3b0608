"""A server that has lost its memory listens before it seals (rule 14)."""

from __future__ import annotations

from typing import Any

import pytest

from rallypoint.core import recovery, transition
from rallypoint.core.model import Phase
from rallypoint.messages.notices import Broken, Fenced, KeepWaiting, Placed, Refused, RunClosed, StandBy
from rallypoint.messages.requests import Announced, Joined, Left, Seat, Standing
from rallypoint.messages.types import Bounds, Ending, Reason, Role, Settings
from tests.support.run_driver import Stage, member

HOLD_S = 7.0


def restarted(low: int = 2, high: int | None = None, **settings: Any) -> Stage:
    """A stage whose server has just started and knows nothing."""
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


def test_a_server_that_has_been_up_for_long_never_holds() -> None:
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
    assert list(stage.run.spares) == ["s"]
    stage.join("c")
    assert stage.ranked == ["a", "b", "c"]
    assert stage.world.round == 1


def test_the_last_call_runs_together_with_the_hold_and_the_wait_says_how_many_are_here() -> None:
    """Rule 14: it does not begin after it."""
    stage = restarted(2, 3, last_call_s=30)
    stage.join("a")
    assert stage.run.last_call_ends is None
    stage.wait(2)
    stage.join("b")
    assert stage.answer("b", KeepWaiting).why == (
        "2 of 2:3 nodes are here (a, b); the server has just started and listens for nodes of an earlier life, "
        "at most 5.0 s more"
    )
    stage.wait(5)
    assert stage.situation() == "2 of at most 3 nodes are here (a, b); the last call ends in 25.0 s"
    stage.wait(25)
    assert stage.ranked == ["a", "b"]


def test_a_last_call_that_ended_before_the_hold_lets_the_round_be_sealed_with_its_end() -> None:
    stage = restarted(2, 3, last_call_s=5)
    stage.join("a", "b")
    stage.wait(5)
    assert stage.phase is Phase.RECOVERING
    stage.wait(2)
    assert stage.ranked == ["a", "b"]


def test_a_last_call_is_cancelled_by_falling_below_min_during_the_hold_too() -> None:
    stage = restarted(2, 3, last_call_s=5)
    stage.join("a", "b")
    stage.lose("b")
    assert stage.run.last_call_ends is None
    stage.wait(HOLD_S)
    assert stage.phase is Phase.GATHERING
    assert stage.situation() == "1 of at least 2 nodes are here (a); 1 more must come"


def test_the_last_call_is_not_that_of_a_founder_who_is_gone_when_the_hold_ends() -> None:
    """Rule 4: whoever is here founds the run, and its own settings make the last call."""
    stage = restarted(1, 3, last_call_s=0.0)
    stage.join("a")
    stage.settings = Settings(last_call_s=30.0)
    stage.join("b")
    stage.lose("a")
    stage.wait(HOLD_S)
    assert stage.phase is Phase.GATHERING


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


def test_nodes_that_ask_for_other_bounds_do_not_skip_the_hold() -> None:
    """Rule 14: they can never be in one world, and the members of a live one must not be fenced for them."""
    stage = restarted(2)
    stage.join("x")
    stage.bounds = Bounds(2, 3)
    stage.join("y")
    assert stage.phase is Phase.RECOVERING
    for rank, node_id in enumerate("abc"):
        claim(stage, node_id, rank)
    assert stage.ranked == ["a", "b", "c"]


def test_nodes_with_addresses_of_another_kind_do_not_skip_the_hold() -> None:
    """Rule 14: one of them will be refused by rule 2, and the members of a live world must not be fenced for them."""
    stage = restarted(2)
    stage.join("x", address="127.0.0.1")
    stage.join("y", address="10.0.0.1")
    assert stage.phase is Phase.RECOVERING


# The highest world ----------------------------------------------------------------------------------------------------


def test_a_world_that_every_rank_still_holds_goes_on_and_nobody_is_disturbed() -> None:
    stage = restarted(2, 3)
    claim(stage, "a", 0)
    claim(stage, "c", 2)
    assert "2 of 3 ranks of round 4 were heard, missing: rank 1; at most 7.0 s more" in stage.situation()
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
    assert len(stage.run.heard) == 2
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


def test_a_rank_that_is_lost_while_the_server_listens_has_spoken_and_is_out() -> None:
    stage = restarted(2, 3)
    claim(stage, "a", 0)
    claim(stage, "b", 1)
    stage.lose("b")
    assert len(stage.run.heard) == 2
    claim(stage, "c", 2)
    assert stage.phase is Phase.GATHERING
    assert {to for to, _ in stage.sends} == {"a", "c"}


@pytest.mark.parametrize(("reason", "phase"), [(Reason.FINISHED, Phase.SEALED), (Reason.WITHDREW, Phase.GATHERING)])
def test_a_rank_that_leaves_while_the_server_listens_has_its_reason(reason: Reason, phase: Phase) -> None:
    stage = restarted(2)
    claim(stage, "a", 0, size=2)
    stage.take(Left("a", reason, "s4"))
    claim(stage, "b", 1, size=2)
    assert stage.phase is phase


@pytest.mark.parametrize(("low", "phase"), [(3, Phase.CLOSED), (2, Phase.RECOVERING)])
def test_a_rank_that_gives_up_while_the_server_listens_closes_a_run_of_a_fixed_size(low: int, phase: Phase) -> None:
    """Rule 8: as it does at any other time, and those who were heard are told."""
    stage = restarted(low, 3)
    claim(stage, "a", 0)
    claim(stage, "b", 1)
    stage.take(Left("a", Reason.GAVE_UP, "s4", "out of memory"))
    assert stage.phase is phase
    closed = [RunClosed("old", Ending.FAILED, "a gave up: out of memory")] if phase is Phase.CLOSED else []
    assert [said for said in stage.heard("b") if isinstance(said, RunClosed)] == closed


def test_a_fresh_node_that_goes_while_the_server_listens_is_simply_gone() -> None:
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
def test_a_run_can_be_closed_while_the_server_listens(claims: int) -> None:
    stage = restarted(2)
    stage.join("new")
    for rank in range(claims):
        claim(stage, "a", rank, size=2)
    stage.close("new", why="never mind")
    assert stage.answer("new", RunClosed).why == "never mind"
    assert len(stage.heard("a")) == 2 * claims


# Bounds ---------------------------------------------------------------------------------------------------------------


def test_the_first_to_come_sets_the_bounds_and_who_disagrees_is_refused_when_the_hold_is_over() -> None:
    """Rules 1 and 17f: nobody is refused for bounds during a hold."""
    stage = restarted(2, 4)
    stage.join("a")
    stage.bounds = Bounds(1, 1)
    stage.join("b")
    stage.answer("b", KeepWaiting)
    stage.announce("b", Standing.WAITING)
    stage.answer("b", KeepWaiting)
    stage.bounds = Bounds(2, 4)
    stage.join("c")
    stage.wait(HOLD_S)
    assert [to for to, _ in stage.sends] == ["b"]
    assert "b asks for 1 node, but run 'run' was founded for 2:4 nodes" in stage.answer("b", Refused).why
    assert list(stage.run.queue) == ["a", "c"]


def test_the_bounds_are_those_of_the_first_who_is_still_here_when_the_hold_is_over() -> None:
    """Rule 1: nothing was sealed, and the founder is gone."""
    stage = restarted(2, 3)
    stage.join("a")
    stage.bounds = Bounds(1, 1)
    stage.join("b")
    stage.lose("a")
    stage.wait(HOLD_S)
    assert stage.ranked == ["b"]
    assert stage.run.bounds == Bounds(1, 1)


def test_what_a_node_asked_for_last_counts_when_the_hold_is_over() -> None:
    stage = restarted(2, 3)
    stage.join("a")
    stage.bounds = Bounds(1, 1)
    stage.join("b")
    stage.bounds = Bounds(2, 3)
    stage.join("b")
    assert "b asked again" in stage.why
    stage.wait(HOLD_S)
    assert list(stage.run.queue) == ["a", "b"]


def test_the_first_who_was_in_a_world_corrects_the_bounds() -> None:
    stage = restarted(1)
    stage.bounds = Bounds(3, 3)
    stage.join("wrong")
    stage.take(Joined(member("also-wrong", role=Role.SPARE), stage.bounds))
    stage.bounds = Bounds(2, 3)
    stage.join("right")
    claim(stage, "a", 0)
    assert stage.run.bounds == Bounds(2, 3)
    assert stage.sends == []
    stage.wait(HOLD_S)
    for name in ("wrong", "also-wrong"):
        assert "was founded for 2:3 nodes" in stage.answer(name, Refused).why
    assert (list(stage.run.queue), list(stage.run.spares)) == (["right"], [])


def test_an_announced_world_with_an_unknown_rank_policy_regroups_by_the_usual_one() -> None:
    """Rule 15: the earlier server had a policy of its own, and a request of ours must not raise for it."""
    stage = restarted(2, 3)
    stage.join("x")
    stage.settings = Settings(rank_policy="fastest")
    claim(stage, "a", 0)
    claim(stage, "b", 1)
    stage.wait(HOLD_S)
    stage.join_again("a", "b")
    assert stage.ranked == ["a", "b", "x"]
    assert "there is no rank policy 'fastest' here: 'sticky' is used" in stage.why


def test_a_waiter_of_an_older_incarnation_founds_with_an_unknown_rank_policy_and_the_usual_one_is_used() -> None:
    """Rule 15: it has a seat, so that its settings are checked by nobody before it is the founder."""
    stage = restarted(1, 3)
    stage.join("x")
    stage.settings = Settings(rank_policy="fastest", last_call_s=0.0)
    claim(stage, "a", 0, Standing.WAITING)
    claim(stage, "b", 0, round_=5, incarnation="newer")
    stage.lose("b", "x")
    stage.wait(HOLD_S)
    assert (stage.ranked, stage.run.settings.rank_policy) == (["a"], "fastest")
    assert "there is no rank policy 'fastest' here: 'sticky' is used" in stage.why


@pytest.mark.parametrize("kinds", [("127.0.0.1", "10.0.0.1"), ("10.0.0.1", "127.0.0.1")])
@pytest.mark.parametrize("role", Role)
def test_loopback_does_not_mix_with_other_addresses_among_those_who_waited_through_the_hold(
    kinds: tuple[str, str], role: Role
) -> None:
    """Rule 2: the first to come counts, and one that gives no address mixes with all."""
    stage = restarted(2, 9)
    stage.join("x")
    stage.join("a", address=kinds[0])
    stage.join("b", address=kinds[1], role=role)
    stage.join("c", address=kinds[0])
    stage.join("y")
    assert "the server has just started" in stage.situation()
    stage.wait(HOLD_S)
    assert [to for to, _ in stage.sends] == ["b"]
    assert f"b gives its address as {kinds[1]} and a as {kinds[0]}" in stage.answer("b", Refused).why
    assert (list(stage.run.queue), list(stage.run.spares)) == (["a", "c", "x", "y"], [])


def test_a_rank_is_heard_whatever_bounds_it_asks_for() -> None:
    """Rule 17f: a world does not break because one of its members was started with another number."""
    stage = restarted(2, 3)
    claim(stage, "a", 0)
    claim(stage, "b", 1, bounds=Bounds(3, 3))
    claim(stage, "c", 2)
    assert stage.ranked == ["a", "b", "c"]
    assert stage.run.bounds == Bounds(2, 3)


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


def test_who_waits_is_told_the_highest_round_spoken_of_so_that_it_can_tell_the_next_server() -> None:
    stage = restarted(2, 3)
    stage.join("new")
    assert stage.answer("new", KeepWaiting).round == 0
    claim(stage, "a", 0)
    stage.join("new")
    assert stage.answer("new", KeepWaiting).round == 4
