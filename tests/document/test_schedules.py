"""Seeded schedules for the document hosting: whatever happens, its invariants hold; and they are worth something."""

from __future__ import annotations

from collections import Counter

import pytest

from rallypoint.simulation.documents import play

CHUNK = 250
QUICK = range(0, 2000, CHUNK)
LONG = range(2000, 20_000, CHUNK)


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
