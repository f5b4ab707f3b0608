"""Rule 9a: an evicted node is told so at once, stays out for a while, and counts nowhere meanwhile."""

from __future__ import annotations

import pytest

from rallypoint import wording
from rallypoint.core import evictions, explain, transition
from rallypoint.core.events import Evicted, EvictionLifted
from rallypoint.core.model import Phase, Run, find_node, kept_out
from rallypoint.core.notices import spell_out
from rallypoint.messages.notices import Fenced, KeepWaiting, Placed, RunClosed
from rallypoint.messages.requests import Standing
from rallypoint.messages.types import Ending, Node, Reason, Role
from rallypoint.server import liveness, run_state
from rallypoint.server.liveness import Liveness
from rallypoint.server.run_state import RunState
from tests.support.run_driver import Stage, member, sealed


def evict(stage: Stage, node_id: str, for_s: float = 30.0, why: str = "") -> None:
    """An administrator evicts a node that is here."""
    node = find_node(stage.run, node_id)
    assert node is not None
    stage.take(Evicted(node, for_s, why))


def out(stage: Stage) -> list[str]:
    """The ids under which nodes were last seen that are kept out."""
    return [eviction.node.id for eviction in kept_out(stage.run, stage.now)]


def test_a_member_is_told_at_once_and_the_others_regroup_without_it() -> None:
    stage = sealed(2, 3, members="abc")
    evict(stage, "c", 600, "its disk fails")
    told = stage.answer("c", Fenced)
    assert told.why == "c was evicted by an administrator (its disk fails) and is kept out for another 10 min"
    stage.join_again("a", "b")
    assert stage.ranked == ["a", "b"]
    assert stage.situation() == "round 2 runs with 2 nodes (c is kept out by an administrator)"


def test_it_waits_counts_nowhere_and_is_let_in_when_its_time_is_over() -> None:
    stage = sealed(2, 3, members="abc")
    evict(stage, "c", 600)
    stage.join_again("a", "b")
    stage.now += 540
    stage.join("c.2")
    told = stage.answer("c.2", KeepWaiting)
    assert told.why == "c was evicted by an administrator and is kept out for another 1 min"
    assert (told.at_most_s, told.round) == (60.0, 2)
    assert transition.waiting_count(stage.run, stage.now) == 0
    assert stage.run.live == 2
    stage.wait(59.5)
    stage.announce("c.2", Standing.WAITING)
    assert stage.answer("c.2", KeepWaiting).at_most_s == 0.5
    stage.wait(0.5)
    stage.announce("c.2", Standing.WAITING)
    assert transition.waiting_count(stage.run, stage.now) == 1
    stage.join_again("a", "b")
    assert stage.ranked == ["a", "b", "c.2"]


@pytest.mark.parametrize("later_s", [1, 59, 60, 3000, 3599])
def test_what_it_waits_for_is_the_same_while_its_time_runs(later_s: float) -> None:
    stage = sealed(1, 2)
    evict(stage, "b", 3600, "10 errors")
    (eviction,) = kept_out(stage.run, stage.now)
    now, later = (explain.kept_out(eviction, stage.now + passed_s) for passed_s in (0, later_s))
    assert now != later
    assert wording.gist(now) == wording.gist(later)


def test_of_a_wait_one_line_is_logged() -> None:
    stage = sealed(1, 2)
    evict(stage, "b")
    stage.join("b.2")
    assert stage.why
    stage.announce("b.2", Standing.WAITING)
    assert not stage.why
    assert stage.heard("b.2")


@pytest.mark.parametrize("came_back", ["a process that was told", "another process", "a spare"])
def test_whoever_comes_under_its_name_from_its_address_is_kept_out(came_back: str) -> None:
    stage = Stage(1, 2, last_call_s=0)
    stage.join("a", address="10.0.0.1")
    stage.join("b", address="10.0.0.2")
    stage.wait(0)
    evict(stage, "b")
    if came_back == "a process that was told":
        stage.announce("b", Standing.HOLDS)  # the notice was lost
        stage.join("b.2", address="10.0.0.2")
    else:
        role = Role.SPARE if came_back == "a spare" else Role.MEMBER
        stage.join("b.2", address="10.0.0.2", role=role)
    assert stage.answer("b.2", KeepWaiting).why.startswith("b was evicted by an administrator")
    assert out(stage) == ["b.2"]
    stage.join("b.3", address="10.0.0.3")
    assert "b.3" in stage.run.queue, "another machine of that name"
    stage.join("c", address="10.0.0.2")
    assert "c" in stage.run.queue, "another name on that machine"


def test_a_member_that_missed_the_notice_is_fenced_with_the_reason() -> None:
    stage = sealed(1, 2)
    seat = stage.seat("b")
    evict(stage, "b", 600, "its disk fails")
    stage.announce("b", Standing.HOLDS, seat=seat)
    assert "its disk fails" in stage.answer("b", Fenced).why


def test_a_node_of_the_same_name_that_is_in_the_world_stays() -> None:
    stage = Stage(1, 3, last_call_s=1)
    stage.join("a", "b.1", "b.2")
    assert stage.phase is Phase.SEALED
    evict(stage, "b.2")
    stage.join_again("a", "b.1")
    assert stage.ranked == ["a", "b.1"]


def test_a_waiting_node_is_evicted_where_it_stands() -> None:
    stage = Stage(2)
    stage.join("a")
    evict(stage, "a", 5)
    assert stage.answer("a", KeepWaiting).at_most_s == 5
    assert stage.run.live == 0
    stage.announce("a", Standing.WAITING)
    assert stage.run.live == 0
    stage.join("b")
    assert stage.answer("b", KeepWaiting).why == (
        "1 of at least 2 nodes are here (b); 1 more must come (a is kept out by an administrator)"
    )
    stage.wait(5)
    stage.announce("a", Standing.WAITING, incarnation="")
    assert sorted(stage.ranked) == ["a", "b"]


def test_a_node_that_is_kept_out_founds_no_run() -> None:
    stage = sealed(1, 1, members="a")
    evict(stage, "a", 30)
    before = stage.run.incarnation
    stage.join("a.2")
    assert stage.run.incarnation == before
    stage.answer("a.2", KeepWaiting)
    stage.join("b")
    assert stage.ranked == ["b"]
    assert stage.run.incarnation != before
    stage.finish("b")
    stage.join("a.2")
    assert stage.phase is Phase.CLOSED, "the eviction outlives the incarnation"
    stage.answer("a.2", KeepWaiting)


def test_a_node_that_is_kept_out_is_told_that_its_run_is_closed() -> None:
    stage = sealed(1, 2)
    evict(stage, "b", 600)
    stage.join_again("a")
    stage.join("b.2")
    told = stage.answer("b.2", KeepWaiting)
    stage.finish("a")
    stage.announce("b.2", Standing.WAITING, incarnation=told.incarnation)
    assert stage.answer("b.2", RunClosed).ending is Ending.SUCCEEDED


def test_each_eviction_lasts_twice_as_long_up_to_an_hour() -> None:
    stage = Stage(1, 2)
    node = Node("a.1", "a")
    lasted = []
    for _ in range(9):
        lasted.append(evictions.lasts_s(stage.run, node))
        stage.take(Evicted(node, lasted[-1]))
    assert lasted == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]
    stage.take(EvictionLifted("a"))
    assert evictions.lasts_s(stage.run, node) == 30


def test_for_no_time_it_may_come_straight_back() -> None:
    stage = sealed(1, 2)
    for identity in ("b", "b.2", "b.3"):
        evict(stage, identity, 0)
        assert stage.answer(identity, Fenced).why == "b was evicted by an administrator and may come back"
        stage.join_again("a")
        following = {"b": "b.2", "b.2": "b.3", "b.3": "b.4"}[identity]
        stage.join(following)
        stage.join_again("a")
        assert stage.ranked == ["a", following], "an eviction is no crash, and earns no pause"


def test_a_later_eviction_takes_the_place_of_an_earlier_one() -> None:
    stage = sealed(1, 2)
    evict(stage, "b", 600)
    stage.take(Evicted(member("b.2"), 5))
    stage.now += 5
    stage.join("b.2")
    assert "b.2" in stage.run.queue


@pytest.mark.parametrize("name", ["b", "b.2"])
def test_an_eviction_is_lifted_by_name_or_id(name: str) -> None:
    stage = sealed(1, 2)
    evict(stage, "b", 600)
    stage.join_again("a")
    stage.join("b.2")
    stage.take(EvictionLifted(name))
    assert stage.why == "an administrator lets b in again"
    stage.announce("b.2", Standing.WAITING)
    stage.join_again("a")
    assert stage.answer("b.2", Placed).round == 3


def test_lifting_what_is_over_changes_nothing() -> None:
    stage = sealed(1, 2)
    before = stage.run
    stage.take(EvictionLifted("b"))
    assert stage.run == before


def test_a_node_that_is_gone_when_the_order_is_carried_out_stays_out() -> None:
    """The order may have waited for a record."""
    stage = sealed(1, 2)
    node = find_node(stage.run, "b")
    assert node is not None
    stage.leave("b", Reason.WITHDREW)
    stage.take(Evicted(node, 600))
    assert out(stage) == ["b"]


def test_while_the_server_recovers_a_node_is_kept_out_too() -> None:
    stage = Stage(3, run=Run(run_id="run", phase=Phase.RECOVERING, hold_ends=107.0))
    stage.join("a", "b")
    evict(stage, "b", 600)
    stage.join("b.2")
    stage.answer("b.2", KeepWaiting)
    assert list(stage.run.queue) == ["a"]
    stage.wait(7)
    assert out(stage) == ["b.2"]


def test_a_run_is_remembered_until_its_last_eviction_has_ended() -> None:
    stage = sealed(1, 1, members="a")
    evict(stage, "a", 30)
    assert not run_state.is_idle(RunState(stage.run))
    assert transition.wake_at(stage.run, stage.now) == stage.now + 30
    stage.wait(30)
    assert run_state.is_idle(RunState(stage.run))
    assert transition.wake_at(stage.run, stage.now) is None


def test_whoever_is_evicted_is_not_listened_for() -> None:
    stage = sealed(1, 2)
    life, _ = liveness.heard(Liveness(), "b", 1, stage.settings, stage.now)
    output = run_state.apply(RunState(stage.run, life), Evicted(member("b"), 30.0), stage.now, "m")
    assert "b" not in output.state.life.signs


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (0.2, "1 s"),
        (29.9996, "30 s"),
        (60, "1 min"),
        (61, "1 min 1 s"),
        (3600, "1 h"),
        (3601, "1 h"),
        (5400, "1 h 30 min"),
        (90000, "1 d 1 h"),
    ],
)
def test_a_duration_is_told_in_its_two_largest_units(seconds: float, words: str) -> None:
    assert wording.duration(seconds) == words


def test_one_that_takes_no_part_any_more_is_not_kept_waiting() -> None:
    """It announces that it has finished, or knows that the run is closed: there is nothing to keep it out of."""
    stage = sealed(2, 3, members="abc")
    evict(stage, "c", 600)
    stage.announce("c.2", Standing.CLOSED)
    assert not [said for notice in stage.step.notices for _, said in spell_out(notice) if isinstance(said, KeepWaiting)]
