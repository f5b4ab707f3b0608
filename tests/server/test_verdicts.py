"""The verdict that a server gives on how workers failed: the same for every node, and bounded."""

from __future__ import annotations

from rallypoint.core.model import Phase, Run
from rallypoint.protocol import AskVerdict
from rallypoint.server import verdicts
from rallypoint.server.verdicts import Verdicts
from rallypoint.verdict import Failure

RESET = ("RuntimeError: Connection closed by peer",)
BUG = ("ValueError: loss is nan",)


def failed(rank: int, ago: float, tail: tuple[str, ...]) -> Failure:
    return Failure(rank, f"n{rank}", 1, at=ago, tail=tail)


def hear(cases: Verdicts, node: str, *failures: Failure, now: float, awaited: str = "ab") -> int | None:
    """The rank that failed first, as a node is told; None while it is not."""
    case = cases.hear("run", "s1", node, failures, now, awaited=set(awaited), lost=())
    return case.verdict.first.rank if case and case.verdict and case.verdict.first else None


def test_the_verdict_waits_for_every_node_that_is_here_and_then_stands() -> None:
    cases = Verdicts()
    assert hear(cases, "a", failed(0, 0.0, RESET), now=10.0) is None
    assert hear(cases, "b", failed(1, 0.5, BUG), now=10.1) == 1
    assert hear(cases, "a", failed(0, 5.0, BUG), now=15.0) == 1


def test_a_failure_that_explains_itself_waits_for_a_moment_only() -> None:
    cases = Verdicts()
    assert hear(cases, "a", failed(0, 0.0, BUG), now=10.0) is None
    assert hear(cases, "a", failed(0, 0.0, BUG), now=10.0 + verdicts.CLEAR_S) == 0


def test_one_that_names_a_peer_waits_longer() -> None:
    cases = Verdicts()
    assert hear(cases, "a", failed(0, 0.0, RESET), now=10.0) is None
    assert hear(cases, "a", now=10.0 + verdicts.CLEAR_S) is None
    assert hear(cases, "a", now=10.0 + verdicts.WAIT_S) == 0


def test_times_are_those_of_the_server_whenever_a_report_arrives() -> None:
    cases = Verdicts()
    hear(cases, "a", failed(0, 0.1, BUG), now=10.0)
    assert hear(cases, "b", failed(1, 0.4, BUG), now=10.2) == 1


def test_where_nothing_failed_there_is_no_case() -> None:
    assert Verdicts().hear("run", "s1", "a", (), 1.0, awaited={"a"}, lost=()) is None


def test_a_server_that_has_just_started_asks_for_the_report_once_more() -> None:
    """It has yet to hear which world there is: a launcher that took this for an answer would charge a guess."""
    ask, asker = AskVerdict(1, "s1", (failed(0, 0.0, ()),)), ("run", "a")
    for run in (None, Run(run_id="run", phase=Phase.RECOVERING, hold_ends=9.0)):
        answer = Verdicts().answer(ask, asker, run, (), 1.0)
        assert (answer.verdict, answer.is_awaited) == (None, True)
    assert not Verdicts().answer(ask, asker, Run(run_id="run"), (), 1.0).is_awaited


def test_the_lost_explain_what_names_a_peer() -> None:
    case = Verdicts().hear("run", "s1", "a", (failed(0, 0.0, RESET),), 1.0, awaited={"a"}, lost=("n9",))
    assert case is not None
    assert case.verdict is not None
    assert (case.verdict.first, case.verdict.lost) == (None, ("n9",))


def test_what_is_kept_is_bounded() -> None:
    cases = Verdicts()
    for world in range(20):
        for rank in range(verdicts.FAILURES + 50):
            cases.hear("run", f"s{world}", "a", (failed(rank, 0.0, BUG),), 1.0, awaited={"a", "b"}, lost=())
    assert len(cases._cases) == verdicts.CASES
    case = cases._cases["run", "s19"]
    assert sum(bool(failure.tail) for failure in case.failures.values()) == verdicts.FAILURES
    cases.forget("run")
    assert not cases._cases
