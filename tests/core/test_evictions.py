"""Rule 9a: an evicted node is told so at once, stays out for a while, and counts nowhere meanwhile."""

from __future__ import annotations

import pytest

from rallypoint import wording
from rallypoint.core import evictions, explain, transition
from rallypoint.core.events import Evicted, EvictionLifted
from rallypoint.core.model import Phase, Run, find_node, kept_out
from rallypoint.messages.notices import Fenced, KeepWaiting, Placed, RunClosed
from rallypoint.messages.requests import Standing
from rallypoint.messages.types import Ending, Node, Reason, Role
from rallypoint.server import liveness, run_state
from rallypoint.server.liveness import Liveness
from rallypoint.server.run_state import RunState, spell_out
from tests.support.run_driver import RunDriver, member, sealed


def evict(driver: RunDriver, node_id: str, for_s: float = 30.0, why: str = "") -> None:
    """An administrator evicts a node that is here."""
    node = find_node(driver.run, node_id)
    assert node is not None
    driver.take(Evicted(node, for_s, why))


def out(driver: RunDriver) -> list[str]:
    """The ids under which nodes were last seen that are kept out."""
    return [eviction.node.id for eviction in kept_out(driver.run, driver.now)]


def test_a_member_is_told_at_once_and_the_others_regroup_without_it() -> None:
    driver = sealed(2, 3, members="abc")
    evict(driver, "c", 600, "its disk fails")
    told = driver.answer("c", Fenced)
    assert told.why == "c was evicted by an administrator (its disk fails) and is kept out for another 10 min"
    driver.join_again("a", "b")
    assert driver.ranked == ["a", "b"]
    assert driver.situation() == "round 2 runs with 2 nodes (c is kept out by an administrator)"


def test_it_waits_counts_nowhere_and_is_let_in_when_its_time_is_over() -> None:
    driver = sealed(2, 3, members="abc")
    evict(driver, "c", 600)
    driver.join_again("a", "b")
    driver.now += 540
    driver.join("c.2")
    told = driver.answer("c.2", KeepWaiting)
    assert told.why == "c was evicted by an administrator and is kept out for another 1 min"
    assert (told.at_most_s, told.round) == (60.0, 2)
    assert transition.waiting_count(driver.run, driver.now) == 0
    assert driver.run.live == 2
    driver.wait(59.5)
    driver.announce("c.2", Standing.WAITING)
    assert driver.answer("c.2", KeepWaiting).at_most_s == 0.5
    driver.wait(0.5)
    driver.announce("c.2", Standing.WAITING)
    assert transition.waiting_count(driver.run, driver.now) == 1
    driver.join_again("a", "b")
    assert driver.ranked == ["a", "b", "c.2"]


@pytest.mark.parametrize("later_s", [1, 59, 60, 3000, 3599])
def test_what_it_waits_for_is_the_same_while_its_time_runs(later_s: float) -> None:
    driver = sealed(1, 2)
    evict(driver, "b", 3600, "10 errors")
    (eviction,) = kept_out(driver.run, driver.now)
    now, later = (explain.kept_out(eviction, driver.now + passed_s) for passed_s in (0, later_s))
    assert now != later
    assert wording.gist(now) == wording.gist(later)


def test_of_a_wait_one_line_is_logged() -> None:
    driver = sealed(1, 2)
    evict(driver, "b")
    driver.join("b.2")
    assert driver.why
    driver.announce("b.2", Standing.WAITING)
    assert not driver.why
    assert driver.heard("b.2")


@pytest.mark.parametrize("came_back", ["a process that was told", "another process", "a spare"])
def test_whoever_comes_under_its_name_from_its_address_is_kept_out(came_back: str) -> None:
    driver = RunDriver(1, 2, last_call_s=0)
    driver.join("a", address="10.0.0.1")
    driver.join("b", address="10.0.0.2")
    driver.wait(0)
    evict(driver, "b")
    if came_back == "a process that was told":
        driver.announce("b", Standing.HOLDS)  # the notice was lost
        driver.join("b.2", address="10.0.0.2")
    else:
        role = Role.SPARE if came_back == "a spare" else Role.MEMBER
        driver.join("b.2", address="10.0.0.2", role=role)
    assert driver.answer("b.2", KeepWaiting).why.startswith("b was evicted by an administrator")
    assert out(driver) == ["b.2"]
    driver.join("b.3", address="10.0.0.3")
    assert "b.3" in driver.run.queue, "another machine of that name"
    driver.join("c", address="10.0.0.2")
    assert "c" in driver.run.queue, "another name on that machine"


def test_a_member_that_missed_the_notice_is_fenced_with_the_reason() -> None:
    driver = sealed(1, 2)
    seat = driver.seat("b")
    evict(driver, "b", 600, "its disk fails")
    driver.announce("b", Standing.HOLDS, seat=seat)
    assert "its disk fails" in driver.answer("b", Fenced).why


def test_a_node_of_the_same_name_that_is_in_the_world_stays() -> None:
    driver = RunDriver(1, 3, last_call_s=1)
    driver.join("a", "b.1", "b.2")
    assert driver.phase is Phase.SEALED
    evict(driver, "b.2")
    driver.join_again("a", "b.1")
    assert driver.ranked == ["a", "b.1"]


def test_a_waiting_node_is_evicted_where_it_stands() -> None:
    driver = RunDriver(2)
    driver.join("a")
    evict(driver, "a", 5)
    assert driver.answer("a", KeepWaiting).at_most_s == 5
    assert driver.run.live == 0
    driver.announce("a", Standing.WAITING)
    assert driver.run.live == 0
    driver.join("b")
    assert driver.answer("b", KeepWaiting).why == (
        "1 of at least 2 nodes are here (b); 1 more must come (a is kept out by an administrator)"
    )
    driver.wait(5)
    driver.announce("a", Standing.WAITING, incarnation="")
    assert sorted(driver.ranked) == ["a", "b"]


def test_a_node_that_is_kept_out_founds_no_run() -> None:
    driver = sealed(1, 1, members="a")
    evict(driver, "a", 30)
    before = driver.run.incarnation
    driver.join("a.2")
    assert driver.run.incarnation == before
    driver.answer("a.2", KeepWaiting)
    driver.join("b")
    assert driver.ranked == ["b"]
    assert driver.run.incarnation != before
    driver.finish("b")
    driver.join("a.2")
    assert driver.phase is Phase.CLOSED, "the eviction outlives the incarnation"
    driver.answer("a.2", KeepWaiting)


def test_a_node_that_is_kept_out_is_told_that_its_run_is_closed() -> None:
    driver = sealed(1, 2)
    evict(driver, "b", 600)
    driver.join_again("a")
    driver.join("b.2")
    told = driver.answer("b.2", KeepWaiting)
    driver.finish("a")
    driver.announce("b.2", Standing.WAITING, incarnation=told.incarnation)
    assert driver.answer("b.2", RunClosed).ending is Ending.SUCCEEDED


def test_each_eviction_lasts_twice_as_long_up_to_an_hour() -> None:
    driver = RunDriver(1, 2)
    node = Node("a.1", "a")
    lasted = []
    for _ in range(9):
        lasted.append(evictions.lasts_s(driver.run, node))
        driver.take(Evicted(node, lasted[-1]))
    assert lasted == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]
    driver.take(EvictionLifted("a"))
    assert evictions.lasts_s(driver.run, node) == 30


def test_for_no_time_it_may_come_straight_back() -> None:
    driver = sealed(1, 2)
    for identity in ("b", "b.2", "b.3"):
        evict(driver, identity, 0)
        assert driver.answer(identity, Fenced).why == "b was evicted by an administrator and may come back"
        driver.join_again("a")
        following = {"b": "b.2", "b.2": "b.3", "b.3": "b.4"}[identity]
        driver.join(following)
        driver.join_again("a")
        assert driver.ranked == ["a", following], "an eviction is no crash, and earns no pause"


def test_a_later_eviction_takes_the_place_of_an_earlier_one() -> None:
    driver = sealed(1, 2)
    evict(driver, "b", 600)
    driver.take(Evicted(member("b.2"), 5))
    driver.now += 5
    driver.join("b.2")
    assert "b.2" in driver.run.queue


@pytest.mark.parametrize("name", ["b", "b.2"])
def test_an_eviction_is_lifted_by_name_or_id(name: str) -> None:
    driver = sealed(1, 2)
    evict(driver, "b", 600)
    driver.join_again("a")
    driver.join("b.2")
    driver.take(EvictionLifted(name))
    assert driver.why == "an administrator lets b in again"
    driver.announce("b.2", Standing.WAITING)
    driver.join_again("a")
    assert driver.answer("b.2", Placed).round == 3


def test_lifting_what_is_over_changes_nothing() -> None:
    driver = sealed(1, 2)
    before = driver.run
    driver.take(EvictionLifted("b"))
    assert driver.run == before


def test_a_node_that_is_gone_when_the_order_is_carried_out_stays_out() -> None:
    """The order may have waited for a record."""
    driver = sealed(1, 2)
    node = find_node(driver.run, "b")
    assert node is not None
    driver.leave("b", Reason.WITHDREW)
    driver.take(Evicted(node, 600))
    assert out(driver) == ["b"]


def test_while_the_server_recovers_a_node_is_kept_out_too() -> None:
    driver = RunDriver(3, run=Run(run_id="run", phase=Phase.RECOVERING, hold_ends=107.0))
    driver.join("a", "b")
    evict(driver, "b", 600)
    driver.join("b.2")
    driver.answer("b.2", KeepWaiting)
    assert list(driver.run.queue) == ["a"]
    driver.wait(7)
    assert out(driver) == ["b.2"]


def test_a_run_is_remembered_until_its_last_eviction_has_ended() -> None:
    driver = sealed(1, 1, members="a")
    evict(driver, "a", 30)
    assert not run_state.is_idle(RunState(driver.run))
    assert transition.wake_at(driver.run, driver.now) == driver.now + 30
    driver.wait(30)
    assert run_state.is_idle(RunState(driver.run))
    assert transition.wake_at(driver.run, driver.now) is None


def test_whoever_is_evicted_is_not_listened_for() -> None:
    driver = sealed(1, 2)
    life, _ = liveness.heard(Liveness(), "b", 1, driver.settings, driver.now)
    output = run_state.apply(RunState(driver.run, life), Evicted(member("b"), 30.0), driver.now, "m")
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
    driver = sealed(2, 3, members="abc")
    evict(driver, "c", 600)
    driver.announce("c.2", Standing.CLOSED)
    assert not [
        said for notice in driver.step.notices for _, said in spell_out(notice) if isinstance(said, KeepWaiting)
    ]
