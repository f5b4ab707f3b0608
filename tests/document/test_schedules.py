"""Seeded schedules for the document hosting: whatever happens, its invariants hold; and mistakes break them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from rallypoint.core.node import State
from rallypoint.document import clock as clocks
from rallypoint.document import silence as silences
from rallypoint.document.clock import DocumentClock
from rallypoint.document.editor import Editor
from rallypoint.document.silence import Silence
from rallypoint.simulation.documents import play

CHUNK = 125
QUICK = range(0, 250, CHUNK)
LONG = range(250, 12_000, CHUNK)


@pytest.mark.parametrize("first", [*QUICK, *(pytest.param(first, marks=pytest.mark.soak) for first in LONG)])
def test_every_schedule_holds_its_invariants(first: int) -> None:
    happened: Counter[str] = Counter()
    for seed in range(first, first + CHUNK):
        played = play(seed)
        assert not played.failure, "\n".join([*played.log[-40:], f"seed {seed}: {played.failure}"])
        happened += played.events
    # They are about something.
    for what in ("kill", "pause", "cut", "away", "loss", "finish", "withdraw", "close", "BROKEN", "FENCED", "SPARE"):
        assert happened[what], what
    assert happened["sealed"] > 2 * CHUNK


def test_a_schedule_is_the_same_each_time() -> None:
    assert play(7).log == play(7).log


def _counts_any_gap(silence: Any, signs: Any, now: float, interval_s: float, *, beating: bool) -> Any:
    """Silence counts however long ago the last look was, and whether or not one is heard oneself."""
    return _LOOK(silence, signs, now, 1e9, beating=True)


def _counts_twice(clock: DocumentClock, time: float, monotonic: float, longest_s: float) -> DocumentClock:
    """What was heard is counted once more at the next look."""
    return DocumentClock(max(time, clock.time), clock.looked)


def _stays_under_its_name(self: Editor, sign: str, now: float) -> None:
    """Who was given up while it waited joins again as if nothing had been."""
    self.life.beat(sign, now, self.settings.heartbeat_interval_s)


def _looks_away(self: Editor, time: float) -> bool:
    """Who has once seen that there is nothing to do does not look at the document again."""
    page, view, _ = self._settled
    return page is not None and view is self.view and view.state is not State.WAITING


def _has_no_patience(silence: Silence, timeout_s: float) -> dict[str, str]:
    """One beat that is late is enough."""
    return _SILENT(silence, timeout_s / 3)


_LOOK, _SILENT = silences.look, silences.silent

# Where, what, what instead, and a seed from which on it is soon noticed.  Some were made in earnest once.
MISTAKES: dict[str, tuple[Any, str, Any, int]] = {
    "any gap counts": (silences, "look", _counts_any_gap, 2798),
    "no patience": (silences, "silent", _has_no_patience, 0),
    "a clock that counts twice": (clocks, "heard", _counts_twice, 0),
    "a name that was given up": (Editor, "beat", _stays_under_its_name, 0),
    "a look away": (Editor, "_is_settled", _looks_away, 0),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, what, wrong, first = MISTAKES[mistake]
    monkeypatch.setattr(where, what, wrong)
    assert any(play(seed).failure for seed in range(first, first + 100)), "no seed of a hundred noticed"
