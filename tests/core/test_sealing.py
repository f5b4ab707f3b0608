"""When a world is sealed, and with whom (rules 4, 6c, 7)."""

from __future__ import annotations

from rallypoint.core.model import Phase
from rallypoint.messages.notices import Broken, KeepWaiting, Placed, StandBy
from rallypoint.messages.types import Reason, Role
from tests.support.run_driver import RunDriver, sealed

# The first round ------------------------------------------------------------------------------------------------------


def test_max_nodes_are_sealed_at_once() -> None:
    driver = RunDriver(2, 3)
    driver.join("a", "b", "c")
    assert driver.ranked == ["a", "b", "c"]
    assert "all 3 nodes are here" in driver.why


def test_a_world_of_one_is_sealed_at_once() -> None:
    driver = RunDriver(1)
    driver.join("a")
    assert driver.answer("a", Placed).size == 1
    assert "its only node is here" in driver.why


def test_below_min_nothing_is_sealed_and_the_missing_are_counted() -> None:
    driver = RunDriver(3, 4)
    driver.join("a", "b")
    driver.wait(10_000)
    assert driver.phase is Phase.GATHERING
    assert driver.situation() == "2 of at least 3 nodes are here (a, b); 1 more must come"


def test_the_last_call_ends_a_fixed_time_after_min_was_reached() -> None:
    driver = RunDriver(2, 4, last_call_s=30)
    driver.join("a", "b")
    assert driver.answer("b", KeepWaiting).at_most_s == 30
    driver.wait(20)
    driver.join("c")
    assert driver.answer("c", KeepWaiting).at_most_s == 10
    assert "the last call ends in 10.0 s" in driver.situation()
    driver.wait(9.9)
    assert driver.phase is Phase.GATHERING
    driver.wait(0.1)
    assert driver.ranked == ["a", "b", "c"]
    assert "the last call ended" in driver.why


def test_falling_below_min_cancels_the_last_call_and_reaching_it_again_starts_another() -> None:
    driver = RunDriver(2, 4, last_call_s=30)
    driver.join("a", "b")
    driver.wait(29)
    driver.leave("b", Reason.WITHDREW)
    driver.wait(60)
    assert driver.phase is Phase.GATHERING
    driver.join("c")
    assert driver.answer("c", KeepWaiting).at_most_s == 30
    driver.wait(30)
    assert driver.ranked == ["a", "c"]


def test_spares_make_up_the_numbers_of_a_first_round_only_to_min_and_as_they_came() -> None:
    driver = RunDriver(2, 4, last_call_s=5)
    driver.join("s", "r", role=Role.SPARE)
    assert "only spares are here (r, s); a member must come first" in driver.situation()
    driver.wait(60)
    assert driver.phase is Phase.GATHERING
    driver.join("a")
    assert "1 of the spares would make up the numbers" in driver.situation()
    driver.wait(5)
    assert driver.ranked == ["a", "s"]
    assert list(driver.run.spares) == ["r"]


def test_surplus_stands_by_and_the_first_to_come_are_in() -> None:
    driver = RunDriver(2, 3)
    driver.join("a")
    driver.join("p", "q", role=Role.SPARE)
    driver.join("b", "c", "d")
    assert driver.ranked == ["a", "b", "c"]
    assert "3 of at most 3 nodes" in driver.answer("d", StandBy).why
    assert sorted(driver.run.spares) == ["p", "q"]


# Regrouping -----------------------------------------------------------------------------------------------------------


def test_survivors_regroup_at_once_when_all_are_back() -> None:
    driver = sealed(2, 4, members="abc")
    driver.lose("b")
    assert {to for to, _ in driver.sends} == {"a", "c"}
    driver.join_again("a")
    waits = driver.answer("a", KeepWaiting)
    assert "c still has to stop and come back" in waits.why
    assert waits.at_most_s == 60
    driver.join_again("c")
    assert driver.ranked == ["a", "c"]
    assert "everyone who is left is here" in driver.why


def test_waiting_newcomers_are_sealed_in_when_the_members_are_back() -> None:
    driver = sealed(2, 4)
    driver.join("c")
    driver.join_again("a", "b")
    assert driver.ranked == ["a", "b", "c"]


def test_live_members_are_awaited_for_the_regroup_time_not_for_a_last_call() -> None:
    driver = sealed(1, 3, members="abc", last_call_s=1, regroup_s=60)
    driver.lose("c")
    driver.join_again("a")
    driver.wait(59.9)
    assert driver.phase is Phase.GATHERING
    driver.wait(0.1)
    assert driver.ranked == ["a"]
    assert "b did not come back in time" in driver.why


def test_the_place_of_a_member_that_still_stops_is_kept() -> None:
    driver = sealed(2, 3, members="abc")
    driver.lose("c")
    driver.join("d", "e")
    driver.join_again("a")
    assert driver.phase is Phase.GATHERING
    driver.join_again("b")
    assert driver.ranked == ["a", "b", "d"]
    driver.answer("e", StandBy)


def test_newcomers_may_take_the_places_of_members_who_are_too_late() -> None:
    driver = sealed(2, regroup_s=60)
    driver.join("c", "d")
    driver.join_again("a")
    driver.wait(60)
    assert driver.ranked == ["a", "c"]


def test_members_who_are_too_late_are_charged_with_it() -> None:
    driver = sealed(1, 3, members="abc")
    driver.lose("c")
    driver.join_again("a")
    driver.wait(60)
    assert {name: crash.count for name, crash in driver.run.crashes.items()} == {"b": 1, "c": 1}


def test_spares_fill_the_gaps_that_lost_members_left() -> None:
    driver = sealed(2, 4, members="abc")
    driver.join("s", "r", role=Role.SPARE)
    driver.lose("b")
    driver.join_again("a", "c")
    assert driver.ranked == ["a", "s", "c"]


def test_a_newcomer_goes_before_a_spare() -> None:
    driver = sealed(2)
    driver.join("s", role=Role.SPARE)
    driver.join("c")
    driver.lose("b")
    driver.join_again("a")
    assert driver.ranked == ["a", "c"]


def test_spares_alone_can_carry_on_when_every_member_is_lost() -> None:
    driver = sealed(2)
    driver.join("s", "r", role=Role.SPARE)
    driver.lose("a", "b")
    assert driver.ranked == ["r", "s"]


def test_below_min_the_survivors_wait_for_replacements_and_say_so() -> None:
    driver = sealed(3, members="abc")
    driver.lose("b", "c")
    driver.join_again("a")
    assert "1 of at least 3 nodes are left (a); 2 must be replaced" in driver.answer("a", KeepWaiting).why
    driver.wait(10_000)
    assert driver.phase is Phase.GATHERING
    driver.join("d", "e")
    assert driver.ranked == ["a", "d", "e"]


def test_a_late_member_still_has_its_place_while_the_survivors_are_below_min() -> None:
    driver = sealed(2, members="ab", regroup_s=60)
    driver.join_again("a")
    driver.wait(61)
    assert driver.phase is Phase.GATHERING
    driver.join_again("b")
    assert driver.ranked == ["a", "b"]


def test_a_second_loss_while_regrouping_is_only_one_less_to_wait_for() -> None:
    driver = sealed(1, 3, members="abc")
    driver.lose("c")
    driver.join_again("a")
    driver.lose("b")
    assert driver.ranked == ["a"]


def test_once_a_member_has_finished_only_survivors_regroup() -> None:
    driver = sealed(2, 4, members="abcd")
    driver.finish("d")
    driver.join("e")
    assert "the run is ending" in driver.answer("e", StandBy).why
    driver.lose("c")
    assert driver.heard("e") == []
    driver.answer("a", Broken)
    driver.join_again("a", "b")
    assert driver.ranked == ["a", "b"]
    assert "e" in driver.run.queue
