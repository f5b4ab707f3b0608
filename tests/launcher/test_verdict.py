"""Which worker failed first."""

from __future__ import annotations

import random
import signal
from typing import Any

import msgspec
import pytest

from rallypoint.verdict import LARGEST, Failure, judge, shortened, summary_of

RESET = (
    "Traceback (most recent call last):",
    "RuntimeError: [../gloo/pair.cc:534] Connection closed by peer [10.0.0.1]",
)
BUG = ("Traceback (most recent call last):", '  File "train.py", line 7, in <module>', "ValueError: loss is nan")


STACKS = (
    "Fatal Python error: Aborted",
    "",
    "Current thread 0x00007fee097ff6c0 (most recent call first):",
    *(f'  File "threading.py", line {line} in run' for line in range(982, 1002)),
    "",
    "Thread 0x00007fee0ae14b80 (most recent call first):",
    "  <no Python frame>",
    "  ...",
    "",
    "Extension modules: numpy._core._multiarray_umath, msgspec._core (total: 2)",
)


def failed(rank: int, at: float, tail: tuple[str, ...] = (), **more: object) -> Failure:
    return Failure(rank, f"n{rank}", more.pop("exit_code", 1), at=at, tail=tail, **more)  # type: ignore[arg-type]


def test_the_rank_that_raised_is_first_although_its_peers_ended_sooner() -> None:
    verdict = judge([failed(0, 1.0, RESET), failed(1, 1.4, BUG), failed(2, 1.1, exit_code=None, signal=6, tail=RESET)])
    assert verdict.first is not None
    assert (verdict.first.rank, verdict.followed, verdict.independent) == (1, (0, 2), ())
    assert verdict.lines()[0] == "rank 1 on n1 failed first: it ended with code 1: ValueError: loss is nan"
    assert "ranks 0, 2 failed only because of it" in verdict.lines()


def test_of_two_that_fail_by_themselves_the_earlier_is_first() -> None:
    verdict = judge([failed(3, 2.0, BUG), failed(1, 1.0, BUG)])
    assert verdict.first is not None
    assert (verdict.first.rank, verdict.independent) == (1, (3,))


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ({"exit_code": None, "signal": signal.SIGSEGV}, "was ended by SIGSEGV"),
        ({"exit_code": None, "signal": signal.SIGABRT}, "was ended by SIGABRT"),
        ({"exit_code": None, "signal": signal.SIGKILL, "out_of_memory": True}, "was killed because memory ran out"),
        ({"exit_code": 17}, "ended with code 17"),
    ],
)
def test_every_kind_of_end_has_its_words(fault: dict[str, Any], sentence: str) -> None:
    verdict = judge([failed(0, 1.0, **fault), failed(1, 0.9, RESET)])
    assert verdict.first is not None
    assert verdict.first.rank == 0
    assert sentence in verdict.lines()[0]


def test_what_the_launcher_ended_is_never_first() -> None:
    verdict = judge([failed(0, 1.0, exit_code=None, signal=15, stopped=True), failed(1, 2.0, BUG)])
    assert verdict.first is not None
    assert verdict.first.rank == 1


def test_a_lost_node_explains_what_its_peers_say() -> None:
    verdict = judge([failed(0, 1.0, RESET), failed(2, 1.1, RESET)], lost=["n1"])
    assert (verdict.first, verdict.followed) == (None, (0, 2))
    assert verdict.lines() == ["no worker failed by itself: n1 was lost"]


def test_a_failure_after_a_loss_is_one_of_its_consequences_unless_nothing_else_is_there() -> None:
    assert judge([failed(0, 1.0, BUG, after_loss=True)], lost=["n1"]).first is None
    first = judge([failed(0, 1.0, BUG, after_loss=True)]).first
    assert first is not None
    assert first.rank == 0


def test_where_all_name_the_network_the_earliest_is_the_best_guess() -> None:
    first = judge([failed(1, 2.0, RESET), failed(0, 1.0, ("ConnectionRefusedError: the database",))]).first
    assert first is not None
    assert first.rank == 0


def test_the_line_that_counts_is_the_last_exception() -> None:
    assert summary_of([*BUG, "", "[W] some warning of a library"]) == "ValueError: loss is nan"
    assert summary_of(["one", "two", ""]) == "two"
    assert summary_of([]) == ""


def test_the_stacks_of_a_crash_do_not_hide_what_the_program_said() -> None:
    said = "[E ProcessGroupNCCL.cpp:616] watchdog: Connection closed by peer [127.0.0.1]"
    aborted = failed(1, 1.0, (said, *STACKS), exit_code=None, signal=signal.SIGABRT)
    assert aborted.why == f"was ended by SIGABRT: {said}"
    assert judge([aborted, failed(3, 2.0, BUG)]).followed == (1,)
    bare = failed(1, 1.0, STACKS, exit_code=None, signal=signal.SIGABRT)
    assert bare.why == "was ended by SIGABRT"
    assert judge([bare, failed(3, 2.0, RESET)]).followed == (3,)


def test_a_report_has_at_most_16_kb_and_keeps_the_last_lines() -> None:
    large = failed(0, 1.0, ("x" * 1000,) * 49 + ("ValueError: the end",))
    small = shortened(large)
    assert len(msgspec.json.encode(small)) <= LARGEST
    assert small.tail[-1] == "ValueError: the end"
    assert len(msgspec.json.encode(shortened(failed(0, 1.0, ("y" * 100_000,))))) <= LARGEST


def test_the_order_of_reports_does_not_matter() -> None:
    failures = [failed(rank, rank / 10, BUG if rank == 3 else RESET) for rank in range(8)]
    expected = judge(failures)
    for seed in range(20):
        random.Random(seed).shuffle(failures)
        assert judge(failures) == expected


def test_two_failures_are_the_same_if_they_say_the_same_at_the_same_place() -> None:
    def bug(line: int, address: str) -> Failure:
        return failed(0, 1.0, ("Traceback:", f'  File "/job/train.py", line {line}, in step', f"ValueError: {address}"))

    assert bug(7, "in <Batch at 0x7f00>").signature == bug(7, "in <Batch at 0x7f99>").signature
    assert bug(7, "a").signature != bug(8, "a").signature
    assert bug(7, "a").signature == "ended with code 1: ValueError: a (train.py, line 7)"
    assert failed(0, 1.0, exit_code=None, signal=9).signature == "was ended by SIGKILL"
