"""A node that keeps crashing is kept out for a while, so that it does not restart the whole job for ever."""

from __future__ import annotations

from rallypoint.core import transition
from rallypoint.messages.notices import KeepWaiting
from rallypoint.messages.types import Role
from tests.support.run_driver import RunDriver, sealed


def crash(driver: RunDriver, node_id: str) -> None:
    """A member is lost, and the others regroup without it."""
    driver.lose(node_id)
    driver.join_again(*(name for name in ("a", "b") if name in driver.run.active))


def test_a_node_that_keeps_crashing_is_kept_out_for_longer_each_time() -> None:
    driver = sealed(2, 3, members="abc", crash_pause_s=1, crash_pause_limit_s=5, rank_policy="arrival")
    pauses = []
    lost = "c"
    for life in range(2, 8):
        crash(driver, lost)
        lost = f"c.{life}"
        driver.join(lost)
        waiter = driver.run.paused.get(lost)
        pauses.append(waiter.paused_until - driver.now if waiter is not None else 0.0)
        if waiter is not None:
            assert "lost or too late several times lately" in driver.answer(lost, KeepWaiting).why
            assert transition.waiting_count(driver.run, driver.now) == 0
            driver.wait(pauses[-1])
            assert "c may come in again" in driver.why
        driver.join_again("a", "b")
        assert lost in driver.ranked
    assert pauses == [0.0, 1.0, 2.0, 4.0, 5.0, 5.0]


def paused() -> RunDriver:
    """A run of a and b in which c, lost twice, is kept out as c.3."""
    driver = sealed(2, 3, members="abc", crash_pause_s=10)
    crash(driver, "c")
    driver.join("c.2")
    driver.join_again("a", "b")
    crash(driver, "c.2")
    driver.join("c.3")
    assert list(driver.run.paused) == ["c.3"], driver.why
    return driver


def test_a_pause_lasts_from_the_crash_so_asking_again_does_not_lengthen_it() -> None:
    driver = paused()
    driver.now += 4
    driver.join("c.3")
    assert driver.answer("c.3", KeepWaiting).at_most_s == 6


def test_a_paused_node_that_goes_is_forgotten() -> None:
    driver = paused()
    driver.lose("c.3")
    assert not driver.run.paused
    assert not driver.run.pauses


def test_a_paused_node_is_named_where_it_is_missing() -> None:
    driver = paused()
    driver.lose("b")
    driver.join_again("a")
    assert "1 must be replaced (c is kept out after crashing too often)" in driver.situation()


def test_a_spare_that_keeps_crashing_is_kept_out_and_then_stands_by_again() -> None:
    driver = sealed(2, crash_pause_s=10)
    driver.join("s", role=Role.SPARE)
    crash(driver, "b")
    crash(driver, "s")
    driver.join("s.2", role=Role.SPARE)
    crash(driver, "s.2")
    driver.join("s.3", role=Role.SPARE)
    assert list(driver.run.paused) == ["s.3"]
    assert transition.wake_at(driver.run, driver.now) == driver.now + 10
    driver.wait(10)
    assert driver.ranked == ["a", "s.3"]


def test_old_crashes_are_forgiven() -> None:
    driver = sealed(2, 3, members="abc", crash_memory_s=600)
    crash(driver, "c")
    driver.join("c.2")
    driver.join_again("a", "b")
    driver.wait(601)
    crash(driver, "c.2")
    assert driver.run.crashes["c"].count == 1
    driver.join("c.3")
    assert list(driver.run.queue) == ["c.3"]


def test_crashes_long_ago_do_not_pause_a_newcomer() -> None:
    driver = paused()
    driver.lose("c.3")
    driver.wait(601)
    driver.join("c.4")
    assert list(driver.run.queue) == ["c.4"]


def test_crashes_that_are_forgiven_take_no_memory() -> None:
    """As where each new node has a name of its own."""
    driver = sealed(2, 3, members="abc", crash_memory_s=10, rank_policy="arrival")
    for number in range(50):
        crash(driver, "c" if number == 0 else f"c{number - 1}")
        driver.join(f"c{number}")
        driver.join_again("a", "b")
        driver.now += 4
    assert len(driver.run.crashes) == len(driver.run.crashes_by_age) <= 4
    assert set(driver.run.crashes) == {name for _, name in driver.run.crashes_by_age}
