"""Which crashes are followed by another start."""

from __future__ import annotations

from rallypoint.launcher.restarts import RestartPolicy


def test_crashes_are_charged_until_they_are_used_up() -> None:
    policy = RestartPolicy(2, None, 0)
    assert [policy.crashed(f"bug {n}", n).restart for n in range(3)] == [True, True, False]


def test_old_crashes_do_not_count_within_a_window() -> None:
    policy = RestartPolicy(1, 60.0, 0)
    assert policy.crashed("a", 0.0).restart
    assert not policy.crashed("b", 59.0).restart
    assert policy.crashed("c", 61.0).restart


def test_the_same_failure_in_a_row_ends_it() -> None:
    policy = RestartPolicy(100, None, 3)
    assert [policy.crashed("ValueError: nan", n).restart for n in range(3)] == [True, True, False]
    assert "came 4 times in a row: ValueError: nan" in policy.crashed("ValueError: nan", 4).why


def test_another_failure_between_starts_the_row_anew() -> None:
    policy = RestartPolicy(100, None, 2)
    assert policy.crashed("a", 0).restart
    assert policy.crashed("b", 1).restart
    policy.progressed()
    assert policy.crashed("b", 2).restart
    assert not policy.crashed("b", 3).restart


def test_without_restarts_the_first_crash_is_the_last() -> None:
    decision = RestartPolicy(0, None, 3).crashed("a", 0)
    assert (decision.restart, decision.why) == (False, "all 0 restarts are used up")


def test_failures_on_other_nodes_are_in_the_row() -> None:
    policy = RestartPolicy(1, None, 3)
    assert policy.failed("a") is None
    assert policy.crashed("a", 0).restart
    decision = policy.failed("a")
    assert decision is not None
    assert not decision.restart


def test_failures_on_other_nodes_are_not_charged() -> None:
    policy = RestartPolicy(1, None, 0)
    assert [policy.failed(f"bug {n}") for n in range(5)] == [None] * 5
    assert policy.crashed("a", 0).restart
    assert not policy.crashed("b", 1).restart
