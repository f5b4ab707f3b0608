"""A server that has lost its memory listens before it seals (rule 14)."""

from __future__ import annotations

from typing import Any

import pytest

from rallypoint.core import recovery, transition
from rallypoint.core.model import Phase
from rallypoint.messages.notices import Broken, Fenced, KeepWaiting, Placed, Refused, RunClosed, StandBy
from rallypoint.messages.requests import Announced, Joined, Left, Seat, Standing
from rallypoint.messages.types import Bounds, Ending, Reason, Role, Settings
from tests.support.run_driver import RunDriver, member

HOLD_S = 7.0


def restarted(low: int = 2, high: int | None = None, **settings: Any) -> RunDriver:
    """A driver whose server has just started and knows nothing."""
    driver = RunDriver(low, high, **settings)
    driver.run = recovery.blank("run", driver.now, driver.now, HOLD_S)
    return driver


def claim(
    driver: RunDriver,
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
    driver.announce(node_id, standing, seat=seat, **{"incarnation": "old", **said})


# The hold -------------------------------------------------------------------------------------------------------------


def test_a_server_that_has_been_up_for_long_never_holds() -> None:
    assert recovery.blank("run", started_at=0.0, now=6.9, hold_s=7.0).phase is Phase.RECOVERING
    assert recovery.blank("run", started_at=0.0, now=7.0, hold_s=7.0).phase is Phase.GATHERING


def test_a_fresh_node_that_arrives_first_waits_for_the_earlier_life() -> None:
    driver = restarted(1)
    driver.bounds = Bounds(1, 3)
    driver.join("new")
    waits = driver.answer("new", KeepWaiting)
    assert "listens for nodes of an earlier life, at most 7.0 s more" in waits.why
    assert waits.at_most_s == HOLD_S
    assert transition.wake_at(driver.run, driver.now) == driver.now + HOLD_S
    claim(driver, "a", 0, size=1)
    assert driver.ranked == ["a"]
    assert list(driver.run.queue) == ["new"]


def test_when_the_hold_ends_and_nobody_spoke_of_a_world_the_run_starts_anew() -> None:
    driver = restarted(2, 3, last_call_s=30)
    driver.join("a", "b")
    driver.join("s", role=Role.SPARE)
    assert "standing by" in driver.answer("s", StandBy).why
    driver.wait(HOLD_S)
    assert "the run starts anew" in driver.why
    assert list(driver.run.spares) == ["s"]
    driver.join("c")
    assert driver.ranked == ["a", "b", "c"]
    assert driver.world.round == 1


def test_the_last_call_runs_together_with_the_hold_and_the_wait_says_how_many_are_here() -> None:
    """Rule 14: it does not begin after it."""
    driver = restarted(2, 3, last_call_s=30)
    driver.join("a")
    assert driver.run.last_call_ends is None
    driver.wait(2)
    driver.join("b")
    assert driver.answer("b", KeepWaiting).why == (
        "2 of 2:3 nodes are here (a, b); the server has just started and listens for nodes of an earlier life, "
        "at most 5.0 s more"
    )
    driver.wait(5)
    assert driver.situation() == "2 of at most 3 nodes are here (a, b); the last call ends in 25.0 s"
    driver.wait(25)
    assert driver.ranked == ["a", "b"]


def test_a_last_call_that_ended_before_the_hold_lets_the_round_be_sealed_with_its_end() -> None:
    driver = restarted(2, 3, last_call_s=5)
    driver.join("a", "b")
    driver.wait(5)
    assert driver.phase is Phase.RECOVERING
    driver.wait(2)
    assert driver.ranked == ["a", "b"]


def test_a_last_call_is_cancelled_by_falling_below_min_during_the_hold_too() -> None:
    driver = restarted(2, 3, last_call_s=5)
    driver.join("a", "b")
    driver.lose("b")
    assert driver.run.last_call_ends is None
    driver.wait(HOLD_S)
    assert driver.phase is Phase.GATHERING
    assert driver.situation() == "1 of at least 2 nodes are here (a); 1 more must come"


def test_the_last_call_is_not_that_of_a_founder_who_is_gone_when_the_hold_ends() -> None:
    """Rule 4: a node that is here founds the run, and its own settings make the last call."""
    driver = restarted(1, 3, last_call_s=0.0)
    driver.join("a")
    driver.settings = Settings(last_call_s=30.0)
    driver.join("b")
    driver.lose("a")
    driver.wait(HOLD_S)
    assert driver.phase is Phase.GATHERING


def test_when_the_hold_ends_and_nobody_spoke_at_all_nothing_is_said() -> None:
    driver = restarted()
    driver.wait(HOLD_S)
    assert (driver.phase, driver.why, driver.sends) == (Phase.GATHERING, "", [])


def test_max_nodes_that_never_heard_of_a_world_skip_the_hold() -> None:
    driver = restarted(2)
    driver.join("a")
    driver.announce("b", Standing.WAITING)
    assert driver.ranked == ["a", "b"]


def test_max_nodes_do_not_skip_the_hold_if_one_has_heard_of_a_round() -> None:
    driver = restarted(2)
    driver.join("a")
    driver.take(Joined(member("b"), driver.bounds, round_seen=9))
    assert driver.phase is Phase.RECOVERING
    driver.wait(HOLD_S)
    assert driver.world.round == 10


def test_nodes_that_ask_for_other_bounds_do_not_skip_the_hold() -> None:
    """Rule 14: they can never be in one world, and the members of a live one must not be fenced for them."""
    driver = restarted(2)
    driver.join("x")
    driver.bounds = Bounds(2, 3)
    driver.join("y")
    assert driver.phase is Phase.RECOVERING
    for rank, node_id in enumerate("abc"):
        claim(driver, node_id, rank)
    assert driver.ranked == ["a", "b", "c"]


def test_nodes_with_addresses_of_another_kind_do_not_skip_the_hold() -> None:
    """Rule 14: one of them will be refused by rule 2, and the members of a live world must not be fenced for them."""
    driver = restarted(2)
    driver.join("x", address="127.0.0.1")
    driver.join("y", address="10.0.0.1")
    assert driver.phase is Phase.RECOVERING


# The highest world ----------------------------------------------------------------------------------------------------


def test_a_world_that_every_rank_still_holds_goes_on_and_nobody_is_disturbed() -> None:
    driver = restarted(2, 3)
    claim(driver, "a", 0)
    claim(driver, "c", 2)
    assert "2 of 3 ranks of round 4 were heard, missing: rank 1; at most 7.0 s more" in driver.situation()
    claim(driver, "b", 1)
    assert driver.ranked == ["a", "b", "c"]
    assert (driver.world.incarnation, driver.world.round, driver.world.seal_id) == ("old", 4, "s4")
    assert driver.sends == []
    assert "all 3 ranks of round 4 still hold it" in driver.why


def test_an_announcement_made_twice_says_nothing_new() -> None:
    driver = restarted(2, 3)
    claim(driver, "a", 0)
    before = driver.run
    claim(driver, "a", 0)
    assert (driver.run, driver.why, driver.sends) == (before, "", [])


def test_ranks_that_were_not_heard_when_the_hold_ends_are_lost() -> None:
    driver = restarted(2, 3)
    claim(driver, "a", 0)
    claim(driver, "c", 2)
    driver.wait(HOLD_S)
    assert driver.phase is Phase.GATHERING
    assert dict(driver.sends) == dict.fromkeys("ac", Broken("s4", "only 2 of 3 ranks of round 4 still hold it"))
    driver.join_again("a", "c")
    assert driver.world.round == 5
    assert sorted(driver.ranked) == ["a", "c"]


def test_one_rank_that_knows_of_the_break_suffices_once_all_have_spoken() -> None:
    driver = restarted(2, 3)
    claim(driver, "a", 0, Standing.BROKEN)
    claim(driver, "b", 1)
    assert len(driver.run.heard) == 2
    claim(driver, "c", 2)
    assert driver.phase is Phase.GATHERING
    assert {to for to, _ in driver.sends} >= {"b", "c"}


def test_who_waits_for_the_next_world_is_back_when_the_hold_ends_and_keeps_its_rank() -> None:
    driver = restarted(2, 3)
    claim(driver, "c", 2, Standing.WAITING)
    assert "1 of 3 ranks" in driver.answer("c", KeepWaiting).why
    claim(driver, "c", 2, Standing.WAITING)
    driver.join("new")
    claim(driver, "a", 0)
    claim(driver, "b", 1)
    assert list(driver.run.returned) == ["c"]
    assert list(driver.run.queue) == ["new"]
    driver.join_again("b", "a")
    assert driver.ranked == ["a", "b", "c"]


def test_broken_is_sticky_an_older_announcement_does_not_mend_it() -> None:
    driver = restarted(2)
    claim(driver, "a", 0, Standing.BROKEN, size=2)
    claim(driver, "a", 0, Standing.HOLDS, size=2)
    claim(driver, "b", 1, size=2)
    assert driver.phase is Phase.GATHERING


def test_a_node_that_waited_and_then_holds_after_all_does_not_stand_in_two_places() -> None:
    driver = restarted(2)
    driver.join("a")
    claim(driver, "a", 0, size=2)
    assert not driver.run.queue
    claim(driver, "b", 1, size=2)
    assert driver.ranked == ["a", "b"]


def test_a_higher_world_supersedes_a_lower_one() -> None:
    driver = restarted(2)
    claim(driver, "a", 0, size=2, round_=4)
    claim(driver, "b", 1, size=2, round_=5)
    assert driver.heard("a") == [Broken("s4", "round 5 came after it")]
    claim(driver, "a", 0, size=2, round_=4)
    assert driver.heard("a") == [Broken("s4", "round 5 came after it")]
    claim(driver, "a", 0, Standing.WAITING, size=2, round_=5)
    driver.join_again("b")
    assert driver.world.round == 6


def test_a_rank_has_one_node_and_another_that_claims_it_is_fenced() -> None:
    driver = restarted(2)
    claim(driver, "a", 0, size=2)
    claim(driver, "impostor", 0, size=2)
    assert "rank 0 of round 4 is a" in driver.answer("impostor", Fenced).why
    claim(driver, "b", 1, size=2)
    assert driver.ranked == ["a", "b"]


# Finished -------------------------------------------------------------------------------------------------------------


def test_a_world_that_some_have_finished_goes_on_to_its_end() -> None:
    driver = restarted(2)
    claim(driver, "a", 0, Standing.FINISHED, size=2)
    claim(driver, "b", 1, size=2)
    assert driver.phase is Phase.SEALED
    driver.finish("b")
    assert driver.run.closing is not None
    assert driver.run.closing.ending is Ending.SUCCEEDED


def test_a_world_that_all_have_finished_closes_well() -> None:
    driver = restarted(2)
    claim(driver, "a", 0, Standing.FINISHED, size=2)
    claim(driver, "b", 1, Standing.FINISHED, size=2)
    assert driver.answer("a", RunClosed) == RunClosed("old", Ending.SUCCEEDED, "all members have finished")


def test_too_few_that_are_left_after_some_have_finished_close_the_run() -> None:
    driver = restarted(2, 3)
    claim(driver, "a", 0, Standing.FINISHED)
    claim(driver, "b", 1)
    driver.wait(HOLD_S)
    assert driver.answer("b", RunClosed).ending is Ending.FAILED


def test_finished_is_sticky_too() -> None:
    driver = restarted(2)
    claim(driver, "a", 0, Standing.FINISHED, size=2)
    claim(driver, "a", 0, Standing.HOLDS, size=2)
    driver.lose("a")
    driver.leave("a", Reason.WITHDREW)
    claim(driver, "b", 1, size=2)
    assert list(driver.run.finished) == ["a"]
    assert driver.phase is Phase.SEALED


# Going while it listens -----------------------------------------------------------------------------------------------


def test_a_rank_that_is_lost_while_the_server_listens_has_spoken_and_is_out() -> None:
    driver = restarted(2, 3)
    claim(driver, "a", 0)
    claim(driver, "b", 1)
    driver.lose("b")
    assert len(driver.run.heard) == 2
    claim(driver, "c", 2)
    assert driver.phase is Phase.GATHERING
    assert {to for to, _ in driver.sends} == {"a", "c"}


@pytest.mark.parametrize(("reason", "phase"), [(Reason.FINISHED, Phase.SEALED), (Reason.WITHDREW, Phase.GATHERING)])
def test_a_rank_that_leaves_while_the_server_listens_has_its_reason(reason: Reason, phase: Phase) -> None:
    driver = restarted(2)
    claim(driver, "a", 0, size=2)
    driver.take(Left("a", reason, "s4"))
    claim(driver, "b", 1, size=2)
    assert driver.phase is phase


@pytest.mark.parametrize(("low", "phase"), [(3, Phase.CLOSED), (2, Phase.RECOVERING)])
def test_a_rank_that_gives_up_while_the_server_listens_closes_a_run_of_a_fixed_size(low: int, phase: Phase) -> None:
    """Rule 8: as it does at any other time, and those who were heard are told."""
    driver = restarted(low, 3)
    claim(driver, "a", 0)
    claim(driver, "b", 1)
    driver.take(Left("a", Reason.GAVE_UP, "s4", "out of memory"))
    assert driver.phase is phase
    closed = [RunClosed("old", Ending.FAILED, "a gave up: out of memory")] if phase is Phase.CLOSED else []
    assert [said for said in driver.heard("b") if isinstance(said, RunClosed)] == closed


def test_a_fresh_node_that_goes_while_the_server_listens_is_simply_gone() -> None:
    driver = restarted(2)
    driver.join("a", "s", role=Role.SPARE)
    driver.lose("a")
    driver.leave("s", Reason.WITHDREW)
    assert driver.run.live == 0


# Closed ---------------------------------------------------------------------------------------------------------------


def test_one_node_that_knows_of_the_closing_suffices() -> None:
    driver = restarted(2)
    driver.join("new")
    driver.announce("a", Standing.CLOSED, incarnation="old", ending=Ending.SUCCEEDED, why="done")
    assert driver.answer("new", RunClosed) == RunClosed("old", Ending.SUCCEEDED, "done")


def test_those_who_still_hold_the_world_are_told_that_it_was_closed() -> None:
    driver = restarted(2)
    claim(driver, "a", 0, size=2)
    driver.announce("b", Standing.CLOSED, incarnation="old", why="enough")
    assert driver.answer("a", RunClosed) == RunClosed("old", Ending.FAILED, "enough")


def test_the_closing_of_an_earlier_incarnation_means_nothing() -> None:
    driver = restarted(2)
    claim(driver, "a", 0, size=2)
    driver.announce("x", Standing.CLOSED, incarnation="older")
    assert driver.phase is Phase.RECOVERING


@pytest.mark.parametrize("claims", [0, 1])
def test_a_run_can_be_closed_while_the_server_listens(claims: int) -> None:
    driver = restarted(2)
    driver.join("new")
    for rank in range(claims):
        claim(driver, "a", rank, size=2)
    driver.close("new", why="never mind")
    assert driver.answer("new", RunClosed).why == "never mind"
    assert len(driver.heard("a")) == 2 * claims


# Bounds ---------------------------------------------------------------------------------------------------------------


def test_the_first_to_come_sets_the_bounds_and_who_disagrees_is_refused_when_the_hold_is_over() -> None:
    """Rules 1 and 17f: nobody is refused for bounds during a hold."""
    driver = restarted(2, 4)
    driver.join("a")
    driver.bounds = Bounds(1, 1)
    driver.join("b")
    driver.answer("b", KeepWaiting)
    driver.announce("b", Standing.WAITING)
    driver.answer("b", KeepWaiting)
    driver.bounds = Bounds(2, 4)
    driver.join("c")
    driver.wait(HOLD_S)
    assert [to for to, _ in driver.sends] == ["b"]
    assert "b asks for 1 node, but run 'run' was founded for 2:4 nodes" in driver.answer("b", Refused).why
    assert list(driver.run.queue) == ["a", "c"]


def test_the_bounds_are_those_of_the_first_who_is_still_here_when_the_hold_is_over() -> None:
    """Rule 1: nothing was sealed, and the founder is gone."""
    driver = restarted(2, 3)
    driver.join("a")
    driver.bounds = Bounds(1, 1)
    driver.join("b")
    driver.lose("a")
    driver.wait(HOLD_S)
    assert driver.ranked == ["b"]
    assert driver.run.bounds == Bounds(1, 1)


def test_what_a_node_asked_for_last_counts_when_the_hold_is_over() -> None:
    driver = restarted(2, 3)
    driver.join("a")
    driver.bounds = Bounds(1, 1)
    driver.join("b")
    driver.bounds = Bounds(2, 3)
    driver.join("b")
    assert "b asked again" in driver.why
    driver.wait(HOLD_S)
    assert list(driver.run.queue) == ["a", "b"]


def test_the_first_who_was_in_a_world_corrects_the_bounds() -> None:
    driver = restarted(1)
    driver.bounds = Bounds(3, 3)
    driver.join("wrong")
    driver.take(Joined(member("also-wrong", role=Role.SPARE), driver.bounds))
    driver.bounds = Bounds(2, 3)
    driver.join("right")
    claim(driver, "a", 0)
    assert driver.run.bounds == Bounds(2, 3)
    assert driver.sends == []
    driver.wait(HOLD_S)
    for name in ("wrong", "also-wrong"):
        assert "was founded for 2:3 nodes" in driver.answer(name, Refused).why
    assert (list(driver.run.queue), list(driver.run.spares)) == (["right"], [])


def test_an_announced_world_with_an_unknown_rank_policy_regroups_by_the_usual_one() -> None:
    """Rule 15: the earlier server had a policy of its own, and a request of ours must not raise for it."""
    driver = restarted(2, 3)
    driver.join("x")
    driver.settings = Settings(rank_policy="fastest")
    claim(driver, "a", 0)
    claim(driver, "b", 1)
    driver.wait(HOLD_S)
    driver.join_again("a", "b")
    assert driver.ranked == ["a", "b", "x"]
    assert "there is no rank policy 'fastest' here: 'sticky' is used" in driver.why


def test_a_waiter_of_an_older_incarnation_founds_with_an_unknown_rank_policy_and_the_usual_one_is_used() -> None:
    """Rule 15: it has a seat, so that its settings are checked by nobody before it is the founder."""
    driver = restarted(1, 3)
    driver.join("x")
    driver.settings = Settings(rank_policy="fastest", last_call_s=0.0)
    claim(driver, "a", 0, Standing.WAITING)
    claim(driver, "b", 0, round_=5, incarnation="newer")
    driver.lose("b", "x")
    driver.wait(HOLD_S)
    assert (driver.ranked, driver.run.settings.rank_policy) == (["a"], "fastest")
    assert "there is no rank policy 'fastest' here: 'sticky' is used" in driver.why


@pytest.mark.parametrize("kinds", [("127.0.0.1", "10.0.0.1"), ("10.0.0.1", "127.0.0.1")])
@pytest.mark.parametrize("role", Role)
def test_loopback_does_not_mix_with_other_addresses_among_those_who_waited_through_the_hold(
    kinds: tuple[str, str], role: Role
) -> None:
    """Rule 2: the first to come counts, and one that gives no address mixes with all."""
    driver = restarted(2, 9)
    driver.join("x")
    driver.join("a", address=kinds[0])
    driver.join("b", address=kinds[1], role=role)
    driver.join("c", address=kinds[0])
    driver.join("y")
    assert "the server has just started" in driver.situation()
    driver.wait(HOLD_S)
    assert [to for to, _ in driver.sends] == ["b"]
    assert f"b gives its address as {kinds[1]} and a as {kinds[0]}" in driver.answer("b", Refused).why
    assert (list(driver.run.queue), list(driver.run.spares)) == (["a", "c", "x", "y"], [])


def test_a_rank_is_heard_whatever_bounds_it_asks_for() -> None:
    """Rule 17f: a world does not break because one of its members was started with another number."""
    driver = restarted(2, 3)
    claim(driver, "a", 0)
    claim(driver, "b", 1, bounds=Bounds(3, 3))
    claim(driver, "c", 2)
    assert driver.ranked == ["a", "b", "c"]
    assert driver.run.bounds == Bounds(2, 3)


def test_a_standing_in_a_world_that_is_not_named_means_nothing() -> None:
    driver = restarted()
    driver.take(Announced(member("a"), driver.bounds, Standing.HOLDS, incarnation="old"))
    assert "without naming it" in driver.why
    assert driver.run.live == 0


def test_the_new_world_reaches_everybody_and_its_round_is_above_all_announced() -> None:
    driver = restarted(2, 3)
    claim(driver, "a", 0, Standing.WAITING, round_=4)
    claim(driver, "b", 1, Standing.WAITING, round_=6)
    driver.wait(HOLD_S)
    assert driver.world.round == 7
    assert {driver.answer(name, Placed).seal_id for name in "ab"} == {driver.world.seal_id}


def test_who_waits_is_told_the_highest_round_spoken_of_so_that_it_can_tell_the_next_server() -> None:
    driver = restarted(2, 3)
    driver.join("new")
    assert driver.answer("new", KeepWaiting).round == 0
    claim(driver, "a", 0)
    driver.join("new")
    assert driver.answer("new", KeepWaiting).round == 4
