"""The transition: purity, what is always true, when it wakes, and the waiting counts (rule 6b)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import settings as effort

from rallypoint.core import recovery, transition
from rallypoint.core.model import PHASE_CHANGES, Phase
from rallypoint.messages.notices import KeepWaiting, StandBy, WaitingCount
from rallypoint.messages.requests import Standing
from rallypoint.messages.types import Role
from simulation.check import complaints
from tests.core.random_histories import History, histories
from tests.support.run_driver import RunDriver, sealed

# Purity and what is always true ---------------------------------------------------------------------------------------


@effort(max_examples=60)
@given(histories())
def test_a_step_depends_on_nothing_but_its_arguments_and_leaves_the_old_run_alone(history: History) -> None:
    for i, moment in enumerate(history.moments):
        before = repr(moment.before)
        again = transition.step(moment.before, moment.event, moment.now, str(i))
        assert again == moment.step
        assert repr(moment.before) == before


@effort(max_examples=200)
@given(histories())
def test_whatever_happens_a_run_holds_together(history: History) -> None:
    for moment in history.moments:
        run = moment.step.run
        assert list(complaints(run)) == []
        assert moment.before.phase is run.phase or _leads(moment.before.phase, run.phase)
        assert transition.situation(run, moment.now)
        due = transition.wake_at(run, moment.now)
        assert due is None or due > moment.now


def _leads(a: Phase, b: Phase) -> bool:
    """Whether one step can lead there, maybe by way of gathering."""
    return (a, b) in PHASE_CHANGES or {(a, Phase.GATHERING), (Phase.GATHERING, b)} <= PHASE_CHANGES.keys()


@effort(max_examples=100)
@given(histories())
def test_a_seal_id_names_one_roster_and_rounds_only_grow(history: History) -> None:
    rosters: dict[str, list[str]] = {}
    for moment in history.moments:
        sealed_before, world = moment.before.current, moment.step.run.current
        if world is None:
            continue
        if sealed_before is not None and sealed_before.incarnation == world.incarnation:
            assert world.round > sealed_before.round or world.seal_id == sealed_before.seal_id
        if all(not node.id.startswith("rank-") for node in world.members):
            roster = [node.id for node in world.members]
            assert rosters.setdefault(world.seal_id, roster) == roster


# Waking ---------------------------------------------------------------------------------------------------------------


def test_a_run_wakes_for_whatever_is_due_next() -> None:
    driver = RunDriver(2, 4, last_call_s=30, regroup_s=60, closed_ttl_s=50)
    assert transition.wake_at(driver.run, driver.now) is None
    driver.join("a")
    assert transition.wake_at(driver.run, driver.now) is None
    driver.join("b")
    assert transition.wake_at(driver.run, driver.now) == driver.now + 30
    driver.wait(30)
    driver.wait(1)
    assert transition.wake_at(driver.run, driver.now) is None
    driver.join_again("a")
    assert transition.wake_at(driver.run, driver.now) == driver.now + 60
    driver.close()
    assert transition.wake_at(driver.run, driver.now) == driver.now + 50


def test_the_end_of_a_wait_is_known_while_a_run_gathers_or_recovers() -> None:
    driver = RunDriver(2, 4, last_call_s=30)
    assert transition.wait_ends(driver.run, driver.now) is None
    driver.join("a", "b")
    assert transition.wait_ends(driver.run, driver.now) == driver.now + 30
    driver.wait(30)
    assert transition.wait_ends(driver.run, driver.now) is None
    holding = recovery.blank("run", started_at=100.0, now=100.0, hold_s=7.0)
    assert transition.wait_ends(holding, 100.0) == 107.0


# Waiting counts (rule 6b) ---------------------------------------------------------------------------------------------


def test_the_first_newcomer_is_told_of_at_once_and_more_within_a_second() -> None:
    driver = sealed(2, 5)
    seal_id = driver.world.seal_id
    driver.join("c")
    assert driver.heard("a") == driver.heard("b") == [WaitingCount(seal_id, 1)]
    told_at = driver.now
    driver.now += 0.25
    driver.join("d")
    assert driver.heard("a") == []
    assert transition.wake_at(driver.run, driver.now) == told_at + 1.0
    driver.wait(0.75)
    assert driver.heard("a") == [WaitingCount(seal_id, 2)]


def test_that_nobody_waits_any_more_is_told_at_once() -> None:
    driver = sealed(2, 5)
    driver.join("c")
    driver.lose("c")
    assert driver.answer("a", WaitingCount).count == 0


def test_no_more_are_counted_than_there_is_room_for_and_spares_never() -> None:
    driver = sealed(2, 3)
    driver.join("s", role=Role.SPARE)
    assert transition.waiting_count(driver.run, driver.now) == 0
    driver.join("c", "d")
    assert transition.waiting_count(driver.run, driver.now) == 1
    full = sealed(2)
    full.join("c")
    assert full.heard("a") == []
    assert "round 1 runs with 2 of at most 2 nodes" in full.answer("c", StandBy).why


def test_newcomers_do_not_count_before_the_round_is_old_enough() -> None:
    driver = sealed(2, 3, admit_delay_s=10)
    driver.wait(4)
    driver.join("c")
    assert "in 6.0 s, when this round is old enough" in driver.answer("c", KeepWaiting).why
    assert driver.heard("a") == []
    assert transition.wake_at(driver.run, driver.now) == driver.world.sealed_at + 10
    driver.wait(6)
    assert driver.answer("a", WaitingCount).count == 1


def test_newcomers_do_not_count_once_a_member_has_finished() -> None:
    driver = sealed(2, 3)
    driver.join("c")
    driver.finish("b")
    assert driver.answer("a", WaitingCount).count == 0
    assert transition.waiting_count(driver.run, driver.now) == 0


def test_a_count_that_a_member_missed_is_told_again_when_it_announces_itself() -> None:
    driver = sealed(2, 3)
    driver.join("c")
    driver.announce("a", Standing.HOLDS, waiting=0)
    assert driver.answer("a", WaitingCount).count == 1
    driver.announce("a", Standing.HOLDS, waiting=1)
    assert driver.sends == []


def test_a_broken_or_closed_run_counts_nobody() -> None:
    driver = sealed(2, 3)
    driver.join("c")
    driver.lose("a")
    assert transition.waiting_count(driver.run, driver.now) == 0
