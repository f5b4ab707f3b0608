"""When a world is sealed, and with whom (rules 4, 6c, 7)."""

from __future__ import annotations

from rallypoint.core.model import Phase
from rallypoint.messages.notices import Broken, KeepWaiting, Placed, StandBy
from rallypoint.messages.types import Reason, Role
from tests.support.run_driver import Stage, sealed

# The first round ------------------------------------------------------------------------------------------------------


def test_max_nodes_are_sealed_at_once() -> None:
    stage = Stage(2, 3)
    stage.join("a", "b", "c")
    assert stage.ranked == ["a", "b", "c"]
    assert "all 3 nodes are here" in stage.why


def test_a_world_of_one_is_sealed_at_once() -> None:
    stage = Stage(1)
    stage.join("a")
    assert stage.answer("a", Placed).size == 1
    assert "its only node is here" in stage.why


def test_below_min_nothing_is_sealed_and_the_missing_are_counted() -> None:
    stage = Stage(3, 4)
    stage.join("a", "b")
    stage.wait(10_000)
    assert stage.phase is Phase.GATHERING
    assert stage.situation() == "2 of at least 3 nodes are here (a, b); 1 more must come"


def test_the_last_call_ends_a_fixed_time_after_min_was_reached() -> None:
    stage = Stage(2, 4, last_call_s=30)
    stage.join("a", "b")
    assert stage.answer("b", KeepWaiting).at_most_s == 30
    stage.wait(20)
    stage.join("c")
    assert stage.answer("c", KeepWaiting).at_most_s == 10
    assert "the last call ends in 10.0 s" in stage.situation()
    stage.wait(9.9)
    assert stage.phase is Phase.GATHERING
    stage.wait(0.1)
    assert stage.ranked == ["a", "b", "c"]
    assert "the last call ended" in stage.why


def test_falling_below_min_cancels_the_last_call_and_reaching_it_again_starts_another() -> None:
    stage = Stage(2, 4, last_call_s=30)
    stage.join("a", "b")
    stage.wait(29)
    stage.leave("b", Reason.WITHDREW)
    stage.wait(60)
    assert stage.phase is Phase.GATHERING
    stage.join("c")
    assert stage.answer("c", KeepWaiting).at_most_s == 30
    stage.wait(30)
    assert stage.ranked == ["a", "c"]


def test_spares_make_up_the_numbers_of_a_first_round_only_to_min_and_as_they_came() -> None:
    stage = Stage(2, 4, last_call_s=5)
    stage.join("s", "r", role=Role.SPARE)
    assert "only spares are here (r, s); a member must come first" in stage.situation()
    stage.wait(60)
    assert stage.phase is Phase.GATHERING
    stage.join("a")
    assert "1 of the spares would make up the numbers" in stage.situation()
    stage.wait(5)
    assert stage.ranked == ["a", "s"]
    assert list(stage.run.spares) == ["r"]


def test_surplus_stands_by_and_the_first_to_come_are_in() -> None:
    stage = Stage(2, 3)
    stage.join("a")
    stage.join("p", "q", role=Role.SPARE)
    stage.join("b", "c", "d")
    assert stage.ranked == ["a", "b", "c"]
    assert "3 of at most 3 nodes" in stage.answer("d", StandBy).why
    assert sorted(stage.run.spares) == ["p", "q"]


# Regrouping -----------------------------------------------------------------------------------------------------------


def test_survivors_regroup_at_once_when_all_are_back() -> None:
    stage = sealed(2, 4, members="abc")
    stage.lose("b")
    assert {to for to, _ in stage.sends} == {"a", "c"}
    stage.join_again("a")
    waits = stage.answer("a", KeepWaiting)
    assert "c still has to stop and come back" in waits.why
    assert waits.at_most_s == 60
    stage.join_again("c")
    assert stage.ranked == ["a", "c"]
    assert "everyone who is left is here" in stage.why


def test_waiting_newcomers_are_sealed_in_when_the_members_are_back() -> None:
    stage = sealed(2, 4)
    stage.join("c")
    stage.join_again("a", "b")
    assert stage.ranked == ["a", "b", "c"]


def test_live_members_are_awaited_for_the_regroup_time_not_for_a_last_call() -> None:
    stage = sealed(1, 3, members="abc", last_call_s=1, regroup_s=60)
    stage.lose("c")
    stage.join_again("a")
    stage.wait(59.9)
    assert stage.phase is Phase.GATHERING
    stage.wait(0.1)
    assert stage.ranked == ["a"]
    assert "b did not come back in time" in stage.why


def test_the_place_of_a_member_that_still_stops_is_kept() -> None:
    stage = sealed(2, 3, members="abc")
    stage.lose("c")
    stage.join("d", "e")
    stage.join_again("a")
    assert stage.phase is Phase.GATHERING
    stage.join_again("b")
    assert stage.ranked == ["a", "b", "d"]
    stage.answer("e", StandBy)


def test_newcomers_may_take_the_places_of_members_who_are_too_late() -> None:
    stage = sealed(2, regroup_s=60)
    stage.join("c", "d")
    stage.join_again("a")
    stage.wait(60)
    assert stage.ranked == ["a", "c"]


def test_members_who_are_too_late_are_charged_with_it() -> None:
    stage = sealed(1, 3, members="abc")
    stage.lose("c")
    stage.join_again("a")
    stage.wait(60)
    assert {name: crash.count for name, crash in stage.run.crashes.items()} == {"b": 1, "c": 1}


def test_spares_fill_the_gaps_that_lost_members_left() -> None:
    stage = sealed(2, 4, members="abc")
    stage.join("s", "r", role=Role.SPARE)
    stage.lose("b")
    stage.join_again("a", "c")
    assert stage.ranked == ["a", "s", "c"]


def test_a_newcomer_goes_before_a_spare() -> None:
    stage = sealed(2)
    stage.join("s", role=Role.SPARE)
    stage.join("c")
    stage.lose("b")
    stage.join_again("a")
    assert stage.ranked == ["a", "c"]


def test_spares_alone_can_carry_on_when_every_member_is_lost() -> None:
    stage = sealed(2)
    stage.join("s", "r", role=Role.SPARE)
    stage.lose("a", "b")
    assert stage.ranked == ["r", "s"]


def test_below_min_the_survivors_wait_for_replacements_and_say_so() -> None:
    stage = sealed(3, members="abc")
    stage.lose("b", "c")
    stage.join_again("a")
    assert "1 of at least 3 nodes are left (a); 2 must be replaced" in stage.answer("a", KeepWaiting).why
    stage.wait(10_000)
    assert stage.phase is Phase.GATHERING
    stage.join("d", "e")
    assert stage.ranked == ["a", "d", "e"]


def test_a_late_member_still_has_its_place_while_the_survivors_are_below_min() -> None:
    stage = sealed(2, members="ab", regroup_s=60)
    stage.join_again("a")
    stage.wait(61)
    assert stage.phase is Phase.GATHERING
    stage.join_again("b")
    assert stage.ranked == ["a", "b"]


def test_a_second_loss_while_regrouping_is_only_one_less_to_wait_for() -> None:
    stage = sealed(1, 3, members="abc")
    stage.lose("c")
    stage.join_again("a")
    stage.lose("b")
    assert stage.ranked == ["a"]


def test_once_a_member_has_finished_only_survivors_regroup() -> None:
    stage = sealed(2, 4, members="abcd")
    stage.finish("d")
    stage.join("e")
    assert "the run is ending" in stage.answer("e", StandBy).why
    stage.lose("c")
    assert stage.heard("e") == []
    stage.answer("a", Broken)
    stage.join_again("a", "b")
    assert stage.ranked == ["a", "b"]
    assert "e" in stage.run.queue
