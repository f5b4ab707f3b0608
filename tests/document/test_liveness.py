"""The document's clock, who is silent, and how often to look: each by itself."""

from __future__ import annotations

from rallypoint.document import clock as clocks
from rallypoint.document import silence as silences
from rallypoint.document.clock import DocumentClock
from rallypoint.document.pace import FIRST_POLL_S, LONGEST_STEP_BACK_S, Pace, step_back_s
from rallypoint.document.silence import EVICTED, Silence


def test_the_clock_runs_on_between_looks_and_stands_still_in_a_stall() -> None:
    clock = clocks.look(DocumentClock(), 100.0, 2.0)
    assert clock.time == 0.0
    clock = clocks.look(clock, 101.5, 2.0)
    assert clock.time == 1.5
    clock = clocks.look(clock, 161.5, 2.0)
    assert clock.time == 3.5


def test_the_higher_time_is_right() -> None:
    clock = clocks.heard(DocumentClock(5.0, 1.0), 3.0, 1.0, 2.0)
    assert clock.time == 5.0
    assert clocks.heard(clock, 9.0, 1.0, 2.0).time == 9.0


def test_what_was_heard_is_not_counted_again() -> None:
    """Two editors whose calls take long would drive each other's clock."""
    clock = clocks.heard(DocumentClock(5.0, 1.0), 6.5, 2.5, 2.0)
    assert clock.time == 6.5
    assert clocks.look(clock, 3.0, 2.0).time == 7.0


def _look(silence: Silence, now: float, beating: bool = True, **signs: str) -> Silence:
    return silences.look(silence, signs, now, 1.0, beating=beating)


def test_silence_is_counted_between_reads_that_are_near_each_other() -> None:
    silence = Silence()
    for now in (0.0, 1.0, 2.0, 3.0):
        silence = _look(silence, now, a="1", b=str(now))
    assert silences.silent(silence, 3.0) == {"a": "1"}
    assert silences.anyone_spoke(silence)


def test_a_gap_between_reads_starts_all_over() -> None:
    silence = _look(_look(_look(Silence(), 0.0, a="1"), 2.0, a="1"), 4.5, a="1")
    assert silences.silent(silence, 0.1) == {}


def test_who_does_not_get_through_itself_counts_nobodys_silence() -> None:
    silence = _look(_look(Silence(), 0.0, a="1"), 1.0, beating=False, a="1")
    assert silences.silent(silence, 0.1) == {}


def test_who_was_given_up_by_another_is_silent_at_once() -> None:
    silence = _look(Silence(), 0.0, a=f"{EVICTED} by b")
    assert silences.silent(silence, 60.0) == {"a": f"{EVICTED} by b"}


def test_pauses_grow_while_nothing_happens() -> None:
    pace = Pace(0.5)
    pauses = [pace.pause_s(0.5) for _ in range(30)]
    assert pauses[0] == FIRST_POLL_S
    assert pauses == sorted(pauses)
    assert pauses[-1] == 0.5
    assert pace.pause_s(0.5, 0.25) == 0.25
    pace.reset()
    assert pace.pause_s(0.5) == FIRST_POLL_S


def test_who_meets_many_others_steps_back_further() -> None:
    assert step_back_s(1, 0.001, 1.0) < step_back_s(4, 0.001, 1.0) < step_back_s(9, 0.01, 1.0) <= LONGEST_STEP_BACK_S
    assert step_back_s(5, 0.01, 0.0) == 0.0
