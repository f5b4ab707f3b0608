"""A node that keeps crashing is kept out for a while, so that it does not restart the whole job for ever."""

from __future__ import annotations

from rallypoint.core import transition
from rallypoint.messages.notices import KeepWaiting
from rallypoint.messages.types import Role
from tests.support.run_driver import Stage, sealed


def crash(stage: Stage, node_id: str) -> None:
    """A member is lost, and the others regroup without it."""
    stage.lose(node_id)
    stage.join_again(*(name for name in ("a", "b") if name in stage.run.active))


def test_a_node_that_keeps_crashing_is_kept_out_for_longer_each_time() -> None:
    stage = sealed(2, 3, members="abc", crash_pause_s=1, crash_pause_limit_s=5, rank_policy="arrival")
    pauses = []
    lost = "c"
    for life in range(2, 8):
        crash(stage, lost)
        lost = f"c.{life}"
        stage.join(lost)
        waiter = stage.run.paused.get(lost)
        pauses.append(waiter.paused_until - stage.now if waiter is not None else 0.0)
        if waiter is not None:
            assert "lost or too late several times lately" in stage.answer(lost, KeepWaiting).why
            assert transition.waiting_count(stage.run, stage.now) == 0
            stage.wait(pauses[-1])
            assert "c may come in again" in stage.why
        stage.join_again("a", "b")
        assert lost in stage.ranked
    assert pauses == [0.0, 1.0, 2.0, 4.0, 5.0, 5.0]


def paused() -> Stage:
    """A run of a and b in which c, lost twice, is kept out as c.3."""
    stage = sealed(2, 3, members="abc", crash_pause_s=10)
    crash(stage, "c")
    stage.join("c.2")
    stage.join_again("a", "b")
    crash(stage, "c.2")
    stage.join("c.3")
    assert list(stage.run.paused) == ["c.3"], stage.why
    return stage


def test_a_pause_lasts_from_the_crash_so_asking_again_does_not_lengthen_it() -> None:
    stage = paused()
    stage.now += 4
    stage.join("c.3")
    assert stage.answer("c.3", KeepWaiting).at_most_s == 6


def test_a_paused_node_that_goes_is_forgotten() -> None:
    stage = paused()
    stage.lose("c.3")
    assert not stage.run.paused
    assert not stage.run.pauses


def test_a_paused_node_is_named_where_it_is_missing() -> None:
    stage = paused()
    stage.lose("b")
    stage.join_again("a")
    assert "1 must be replaced (c is kept out after crashing too often)" in stage.situation()


def test_a_spare_that_keeps_crashing_is_kept_out_and_then_stands_by_again() -> None:
    stage = sealed(2, crash_pause_s=10)
    stage.join("s", role=Role.SPARE)
    crash(stage, "b")
    crash(stage, "s")
    stage.join("s.2", role=Role.SPARE)
    crash(stage, "s.2")
    stage.join("s.3", role=Role.SPARE)
    assert list(stage.run.paused) == ["s.3"]
    assert transition.wake_at(stage.run, stage.now) == stage.now + 10
    stage.wait(10)
    assert stage.ranked == ["a", "s.3"]


def test_old_crashes_are_forgiven() -> None:
    stage = sealed(2, 3, members="abc", crash_memory_s=600)
    crash(stage, "c")
    stage.join("c.2")
    stage.join_again("a", "b")
    stage.wait(601)
    crash(stage, "c.2")
    assert stage.run.crashes["c"].count == 1
    stage.join("c.3")
    assert list(stage.run.queue) == ["c.3"]


def test_crashes_long_ago_do_not_pause_a_newcomer() -> None:
    stage = paused()
    stage.lose("c.3")
    stage.wait(601)
    stage.join("c.4")
    assert list(stage.run.queue) == ["c.4"]
