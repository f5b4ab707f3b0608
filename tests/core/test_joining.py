"""Joining and joining again: bounds, addresses, founding, names of worlds (rules 1, 2, 3, 6, 6a)."""

from __future__ import annotations

import pytest

from rallypoint.core import transition
from rallypoint.core.events import Lost
from rallypoint.core.model import Phase, Run
from rallypoint.messages.notices import Broken, KeepWaiting, Placed, Refused
from rallypoint.messages.requests import Seat
from rallypoint.messages.types import Bounds, Reason, Role
from tests.support.run_driver import RunDriver, sealed

# Bounds, addresses, founding (rules 1 and 2) --------------------------------------------------------------------------


@pytest.mark.parametrize(("low", "high"), [(0, 1), (3, 2), (-1, -1)])
def test_bounds_that_make_no_sense_are_refused_in_words(low: int, high: int) -> None:
    with pytest.raises(ValueError, match="1 <= min <= max, not"):
        Bounds(low, high)


def test_a_node_that_asks_for_other_bounds_is_refused_with_both_shown() -> None:
    driver = RunDriver(2, 4)
    driver.join("a")
    driver.bounds = Bounds(3, 3)
    driver.join("b")
    why = driver.answer("b", Refused).why
    assert "b asks for 3 nodes, but run 'run' was founded for 2:4 nodes" in why
    assert list(driver.run.queue) == ["a"]


def test_once_the_founder_is_gone_the_next_node_founds_the_run_with_its_own_bounds() -> None:
    driver = RunDriver(2, 4)
    driver.join("a")
    first = driver.run.incarnation
    driver.leave("a", Reason.WITHDREW)
    driver.bounds = Bounds(1, 1)
    driver.join("b")
    assert driver.run.incarnation != first
    assert driver.ranked == ["b"]


def test_a_run_whose_nodes_are_all_gone_is_founded_anew_and_rounds_go_on() -> None:
    driver = sealed(2)
    driver.lose("a", "b")
    assert driver.run.current is None
    assert transition.wake_at(driver.run, driver.now) is None
    driver.join("c", "d")
    assert driver.world.round == 2
    assert driver.world.incarnation == driver.run.incarnation
    assert not driver.run.crashes


@pytest.mark.parametrize("loopback", ["127.0.0.1", "127.8.0.1", "::1", "localhost", "::1%lo"])
def test_loopback_and_other_addresses_do_not_mix(loopback: str) -> None:
    for first, second in ((loopback, "10.0.0.1"), ("host-a", loopback)):
        driver = RunDriver(2)
        driver.join("a", address=first)
        driver.join("b", address=second)
        why = driver.answer("b", Refused).why
        assert first in why
        assert second in why


@pytest.mark.parametrize(
    ("first", "second"),
    [("127.0.0.1", "localhost"), ("10.0.0.1", "host-b"), ("", "127.0.0.1"), ("10.0.0.1", ""), ("fe80::1%eth0", "::2")],
)
def test_addresses_of_one_kind_mix_and_one_that_is_not_given_mixes_with_all(first: str, second: str) -> None:
    driver = RunDriver(2)
    driver.join("a", address=first)
    driver.join("b", address=second)
    assert driver.ranked == ["a", "b"]


def test_loopback_is_compared_with_members_of_a_running_world_too() -> None:
    driver = RunDriver(2, 3)
    driver.join("a", "b", address="10.0.0.1")
    driver.wait(30)
    driver.join("c", address="127.0.0.1")
    driver.answer("c", Refused)


# Names of worlds and joining again (rules 3, 6, 6a) -------------------------------------------------------------------


def test_a_world_is_named_by_incarnation_round_and_a_seal_id_of_its_own() -> None:
    driver = sealed(2)
    first = driver.world
    placed = driver.answer("b", Placed)
    assert (placed.incarnation, placed.round, placed.seal_id) == (first.incarnation, 1, first.seal_id)
    driver.join_again("a", "b")
    assert (driver.world.incarnation, driver.world.round) == (first.incarnation, 2)
    assert driver.world.seal_id != first.seal_id


def test_the_store_of_a_world_is_that_of_its_rank_0() -> None:
    driver = RunDriver(2)
    driver.join("b", store="host-b:1")
    driver.join("a", store="host-a:2")
    assert {driver.answer(name, Placed).store for name in "ab"} == {"host-a:2"}


def test_a_join_sent_twice_keeps_its_place() -> None:
    driver = RunDriver(3, rank_policy="arrival")
    driver.join("a", "b", "a")
    assert "a" not in driver.why
    driver.answer("a", KeepWaiting)
    driver.join("c")
    assert driver.ranked == ["a", "b", "c"]


def test_the_latest_word_of_a_waiting_node_counts() -> None:
    driver = RunDriver(2)
    driver.join("a")
    driver.join("a", wanted_rank=1)
    assert "a asked again" in driver.why
    driver.join("b")
    assert driver.ranked == ["b", "a"]


def test_a_node_whose_answer_was_lost_is_answered_with_its_world() -> None:
    driver = sealed(2)
    driver.join("a")
    assert driver.answer("a", Placed) == Placed(driver.run.incarnation, 1, driver.world.seal_id, 0, 2, "")
    assert driver.heard("b") == []


def test_a_node_that_last_heard_of_an_earlier_world_is_answered_with_its_own() -> None:
    driver = sealed(2)
    first = driver.seat("a")
    driver.join_again("a", "b")
    driver.join("a", seat=first, incarnation=driver.run.incarnation)
    assert driver.answer("a", Placed).round == 2


def test_joining_after_the_current_world_withdraws_from_it() -> None:
    driver = sealed(2)
    driver.join_again("a")
    assert driver.phase is Phase.GATHERING
    assert "a joined again" in driver.answer("b", Broken).why
    driver.answer("a", KeepWaiting)


def test_a_loss_is_told_to_every_other_member_at_once() -> None:
    driver = sealed(3, members="abc")
    driver.join("s", role=Role.SPARE)
    seal_id = driver.world.seal_id
    driver.lose("b")
    assert dict(driver.sends) == {name: Broken(seal_id, "b was lost: it fell silent") for name in "ac"}


def test_the_loss_of_a_node_that_nobody_knows_changes_nothing() -> None:
    driver = sealed(2)
    before = driver.run
    driver.lose("nobody")
    assert driver.run is before
    assert driver.sends == []


def test_losses_of_one_moment_are_taken_together_so_that_no_dead_node_is_sealed_in() -> None:
    driver = sealed(1, 4, members="abcd")
    driver.join_again("a", "b", "c")
    losses = (Lost("d", "its rack died"), Lost("a", "its rack died"))
    driver.settle(transition.time_passed(driver.run, losses, driver.now, driver.mint()))
    assert sorted(driver.ranked) == ["b", "c"]
    assert driver.world.round == 2


def test_who_waits_is_told_the_last_round_of_this_incarnation() -> None:
    driver = RunDriver(2, 3)
    driver.run = Run(run_id="run", round=7)
    driver.join("a")
    assert driver.answer("a", KeepWaiting).round == 0
    driver.join("b")
    driver.wait(30)
    driver.join("c")
    assert driver.answer("c", KeepWaiting).round == 8


def test_a_member_that_was_in_another_world_of_this_round_is_not_told_its_place_for_ever() -> None:
    """Rule 17d: a register forgot, two servers sealed the same round; a node takes no world that is not above its own."""
    driver = sealed(2)
    world = driver.run.world
    assert world is not None
    driver.join("a", seat=Seat(world.round, "another", 2, 0), incarnation=world.incarnation)
    assert driver.phase is Phase.GATHERING
    driver.join("b", seat=Seat(world.round, world.seal_id, 2, 1), incarnation=world.incarnation)
    assert driver.run.round > world.round
