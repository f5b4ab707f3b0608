"""Joining and joining again: bounds, addresses, founding, names of worlds (rules 1, 2, 3, 6, 6a)."""

from __future__ import annotations

import pytest

from rallypoint.core import transition
from rallypoint.core.events import Lost
from rallypoint.core.model import Phase, Run
from rallypoint.messages.notices import Broken, KeepWaiting, Placed, Refused
from rallypoint.messages.requests import Seat
from rallypoint.messages.types import Bounds, Reason, Role
from tests.support.run_driver import Stage, sealed

# Bounds, addresses, founding (rules 1 and 2) --------------------------------------------------------------------------


@pytest.mark.parametrize(("low", "high"), [(0, 1), (3, 2), (-1, -1)])
def test_bounds_that_make_no_sense_are_refused_in_words(low: int, high: int) -> None:
    with pytest.raises(ValueError, match="1 <= min <= max, not"):
        Bounds(low, high)


def test_a_node_that_asks_for_other_bounds_is_refused_with_both_shown() -> None:
    stage = Stage(2, 4)
    stage.join("a")
    stage.bounds = Bounds(3, 3)
    stage.join("b")
    why = stage.answer("b", Refused).why
    assert "b asks for 3 nodes, but run 'run' was founded for 2:4 nodes" in why
    assert list(stage.run.queue) == ["a"]


def test_once_the_founder_is_gone_the_next_node_founds_the_run_with_its_own_bounds() -> None:
    stage = Stage(2, 4)
    stage.join("a")
    first = stage.run.incarnation
    stage.leave("a", Reason.WITHDREW)
    stage.bounds = Bounds(1, 1)
    stage.join("b")
    assert stage.run.incarnation != first
    assert stage.ranked == ["b"]


def test_a_run_whose_nodes_are_all_gone_is_founded_anew_and_rounds_go_on() -> None:
    stage = sealed(2)
    stage.lose("a", "b")
    assert stage.run.current is None
    assert transition.wake_at(stage.run, stage.now) is None
    stage.join("c", "d")
    assert stage.world.round == 2
    assert stage.world.incarnation == stage.run.incarnation
    assert not stage.run.crashes


@pytest.mark.parametrize("loopback", ["127.0.0.1", "127.8.0.1", "::1", "localhost", "::1%lo"])
def test_loopback_and_other_addresses_do_not_mix(loopback: str) -> None:
    for first, second in ((loopback, "10.0.0.1"), ("host-a", loopback)):
        stage = Stage(2)
        stage.join("a", address=first)
        stage.join("b", address=second)
        why = stage.answer("b", Refused).why
        assert first in why
        assert second in why


@pytest.mark.parametrize(
    ("first", "second"),
    [("127.0.0.1", "localhost"), ("10.0.0.1", "host-b"), ("", "127.0.0.1"), ("10.0.0.1", ""), ("fe80::1%eth0", "::2")],
)
def test_addresses_of_one_kind_mix_and_one_that_is_not_given_mixes_with_all(first: str, second: str) -> None:
    stage = Stage(2)
    stage.join("a", address=first)
    stage.join("b", address=second)
    assert stage.ranked == ["a", "b"]


def test_loopback_is_compared_with_members_of_a_running_world_too() -> None:
    stage = Stage(2, 3)
    stage.join("a", "b", address="10.0.0.1")
    stage.wait(30)
    stage.join("c", address="127.0.0.1")
    stage.answer("c", Refused)


# Names of worlds and joining again (rules 3, 6, 6a) -------------------------------------------------------------------


def test_a_world_is_named_by_incarnation_round_and_a_seal_id_of_its_own() -> None:
    stage = sealed(2)
    first = stage.world
    placed = stage.answer("b", Placed)
    assert (placed.incarnation, placed.round, placed.seal_id) == (first.incarnation, 1, first.seal_id)
    stage.join_again("a", "b")
    assert (stage.world.incarnation, stage.world.round) == (first.incarnation, 2)
    assert stage.world.seal_id != first.seal_id


def test_the_store_of_a_world_is_that_of_its_rank_0() -> None:
    stage = Stage(2)
    stage.join("b", store="host-b:1")
    stage.join("a", store="host-a:2")
    assert {stage.answer(name, Placed).store for name in "ab"} == {"host-a:2"}


def test_a_join_sent_twice_keeps_its_place() -> None:
    stage = Stage(3, rank_policy="arrival")
    stage.join("a", "b", "a")
    assert "a" not in stage.why
    stage.answer("a", KeepWaiting)
    stage.join("c")
    assert stage.ranked == ["a", "b", "c"]


def test_the_latest_word_of_a_waiting_node_counts() -> None:
    stage = Stage(2)
    stage.join("a")
    stage.join("a", wanted_rank=1)
    assert "a asked again" in stage.why
    stage.join("b")
    assert stage.ranked == ["b", "a"]


def test_a_node_whose_answer_was_lost_is_answered_with_its_world() -> None:
    stage = sealed(2)
    stage.join("a")
    assert stage.answer("a", Placed) == Placed(stage.run.incarnation, 1, stage.world.seal_id, 0, 2, "")
    assert stage.heard("b") == []


def test_a_node_that_last_heard_of_an_earlier_world_is_answered_with_its_own() -> None:
    stage = sealed(2)
    first = stage.seat("a")
    stage.join_again("a", "b")
    stage.join("a", seat=first, incarnation=stage.run.incarnation)
    assert stage.answer("a", Placed).round == 2


def test_joining_after_the_current_world_withdraws_from_it() -> None:
    stage = sealed(2)
    stage.join_again("a")
    assert stage.phase is Phase.GATHERING
    assert "a joined again" in stage.answer("b", Broken).why
    stage.answer("a", KeepWaiting)


def test_a_loss_is_told_to_every_other_member_at_once() -> None:
    stage = sealed(3, members="abc")
    stage.join("s", role=Role.SPARE)
    seal_id = stage.world.seal_id
    stage.lose("b")
    assert dict(stage.sends) == {name: Broken(seal_id, "b was lost: it fell silent") for name in "ac"}


def test_the_loss_of_a_node_that_nobody_knows_changes_nothing() -> None:
    stage = sealed(2)
    before = stage.run
    stage.lose("nobody")
    assert stage.run is before
    assert stage.sends == []


def test_losses_of_one_moment_are_taken_together_so_that_no_dead_node_is_sealed_in() -> None:
    stage = sealed(1, 4, members="abcd")
    stage.join_again("a", "b", "c")
    losses = (Lost("d", "its rack died"), Lost("a", "its rack died"))
    stage.settle(transition.time_passed(stage.run, losses, stage.now, stage.mint()))
    assert sorted(stage.ranked) == ["b", "c"]
    assert stage.world.round == 2


def test_who_waits_is_told_the_last_round_of_this_incarnation() -> None:
    stage = Stage(2, 3)
    stage.run = Run(run_id="run", round=7)
    stage.join("a")
    assert stage.answer("a", KeepWaiting).round == 0
    stage.join("b")
    stage.wait(30)
    stage.join("c")
    assert stage.answer("c", KeepWaiting).round == 8


def test_a_member_that_was_in_another_world_of_this_round_is_not_told_its_place_for_ever() -> None:
    """Rule 17d: a register forgot, two servers sealed the same round; a node takes no world that is not above its own."""
    stage = sealed(2)
    world = stage.run.world
    assert world is not None
    stage.join("a", seat=Seat(world.round, "another", 2, 0), incarnation=world.incarnation)
    assert stage.phase is Phase.GATHERING
    stage.join("b", seat=Seat(world.round, world.seal_id, 2, 1), incarnation=world.incarnation)
    assert stage.run.round > world.round
