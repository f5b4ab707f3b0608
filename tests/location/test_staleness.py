"""Whether a claim is stale, by what one reader has seen (rule 17a)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from rallypoint.location.claiming import SeenClaim, seen
from tests.location.sans_io_drivers import a_claim, a_record

REST_S = 6.0


def read(watched: SeenClaim, started: float, ended: float | None = None, *, epoch: int = 3, **claim: Any) -> SeenClaim:
    """A read shows the claim."""
    record = a_record(epoch=epoch, claim=a_claim(**{"rest_s": REST_S, **claim}))
    return seen(watched, record, None, started, started if ended is None else ended)


def rested(until: float, **claim: Any) -> SeenClaim:
    """What a reader knows that has seen the same beat from 100.0 to this time, every second."""
    watched = read(SeenClaim(), 99.0, 100.0, **claim)
    for moment in itertools.count(101.0):
        if moment >= until:
            return read(watched, until, **claim)
        watched = read(watched, moment, **claim)
    raise AssertionError("it never ends")


@pytest.mark.parametrize("rest_s", [1.0, 6.0, 50.0])
def test_a_beat_that_rests_for_longer_than_the_claim_itself_allows_is_stale(rest_s: float) -> None:
    """Rule 17a: the claim's own `rest_s` counts, and not a time-out of the reader."""
    step = rest_s / 4
    watched = read(SeenClaim(), 100.0, rest_s=rest_s)
    for count in range(1, 5):
        watched = read(watched, 100.0 + count * step, rest_s=rest_s)
        assert not watched.stale
    assert read(watched, 100.0 + 4 * step + 0.125, rest_s=rest_s).stale


def test_the_rest_is_measured_from_the_end_of_one_read_to_the_start_of_a_later_one() -> None:
    """Rule 17a: the beat may have been raised while a read was under way."""
    assert not rested(106.0).stale
    assert rested(106.5).stale
    assert not read(rested(105.0), 105.5, 110.0).stale


@pytest.mark.parametrize("shown", [{"beat": 1}, {"epoch": 4}, {"claim_id": "c2"}], ids=["beat", "epoch", "claim"])
def test_whatever_changes_starts_the_measurement_over(shown: dict[str, Any]) -> None:
    """Rule 17a: a claim that was stale lives again by a raised beat."""
    watched = rested(106.5)
    assert watched.stale
    watched = read(watched, 107.0, 107.5, **shown)
    assert (watched.stale, watched.resting_since) == (False, 107.5)
    for moment in (109.5, 111.5, 113.5):
        watched = read(watched, moment, **shown)
        assert not watched.stale
    assert read(watched, 113.75, **shown).stale


def test_a_gap_in_the_readers_own_reading_starts_the_measurement_over() -> None:
    """Rule 17a: a reader that was paused, or could not reach the register, has not seen the beat rest."""
    watched = rested(105.0)
    assert read(watched, 105.0 + REST_S / 2).stale
    away = read(watched, 105.0 + REST_S / 2 + 0.125)
    assert (away.stale, away.resting_since) == (False, 108.125)


def test_a_read_that_took_long_is_no_gap_by_itself() -> None:
    """Rule 17a: the gap is the time between two reads."""
    watched = read(rested(104.0), 105.0, 109.0)
    assert (watched.stale, watched.resting_since) == (False, 100.0)
    assert read(watched, 110.0).stale


@pytest.mark.parametrize("lives", [True, False])
def test_where_there_are_leases_they_alone_tell(lives: bool) -> None:
    """Rule 17a: at the first read that shows the lease gone; a beat may rest for ever while it lives."""
    record = a_record(claim=a_claim(rest_s=REST_S))
    watched = SeenClaim()
    for moment in range(100, 120):
        watched = seen(watched, record, lives, float(moment), float(moment))
        assert watched.stale is not lives
