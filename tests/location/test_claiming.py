"""Who may claim, after which delay, and what the claim's record says (rules 17a, 17b)."""

from __future__ import annotations

from typing import Any

import pytest

from rallypoint.core.model import EndedIncarnation
from rallypoint.location.claiming import Claimant, claim_record, delay_s, unmet_s
from rallypoint.messages.types import Bounds, Ending, RecordedWorld, Settings, rank_bitmap
from rallypoint.record import Record, RecordedEnding
from tests.location.sans_io_drivers import WORLD, a_claim, a_record

OTHER = Settings(last_call_s=7.0)
OFFER = a_claim("c9", secret="mine")
LAST = EndedIncarnation("r0", Ending.SUCCEEDED, "done")


def candidate(**known: Any) -> Claimant:
    return Claimant(**{"bounds": Bounds(1, 8), "settings": OTHER, **known})


def claimed(record: Record | None, **known: Any) -> Record:
    return claim_record(candidate(**known), record, "run", OFFER, "m")


# What the claim says --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [None, WORLD])
def test_the_next_epoch_is_above_the_records_and_above_any_that_the_claimant_knows(world: RecordedWorld | None) -> None:
    """Rule 17a."""
    assert claimed(None).epoch == 1
    assert claimed(None, epoch=6).epoch == 7
    assert claimed(a_record(epoch=3, world=world), epoch=2).epoch == 4
    assert claimed(a_record(epoch=3, world=world), epoch=6).epoch == 7


def test_without_a_record_a_claimant_keeps_the_incarnation_and_the_round_that_it_was_in() -> None:
    """Rule 17a: the register was emptied, and the run goes on."""
    kept = claimed(None, incarnation="r1", round=4)
    assert (kept.incarnation, kept.round, kept.world, kept.claim) == ("r1", 4, None, OFFER)


def test_the_write_that_claims_mints_the_incarnation_and_the_bounds_where_there_is_neither() -> None:
    """Rule 17a."""
    first = claimed(None)
    assert (first.run_id, first.incarnation, first.round, first.write_id) == ("run", "rm", 0, "m")
    assert (first.bounds, first.settings, first.claim) == (Bounds(1, 8), OTHER, OFFER)


def test_a_record_without_a_world_keeps_its_incarnation_and_takes_the_bounds_of_the_claimant() -> None:
    """Rule 17a: nothing was sealed, so the incarnation is not over, and nobody is bound to its bounds."""
    again = claimed(a_record(claim=None, last=LAST), incarnation="r7", round=2)
    assert (again.incarnation, again.round, again.last) == ("r1", 4, LAST)
    assert (again.bounds, again.settings) == (Bounds(1, 8), OTHER)
    assert claimed(a_record(claim=None), round=9).round == 9


def test_a_claim_on_a_world_changes_nothing_but_the_claim() -> None:
    """Rule 17a: the world, its bounds, `met` and `last` are carried from claim to claim."""
    before = a_record(world=WORLD, last=LAST, met=2)
    after = claimed(before, seal_id="s4", ranks=(1,), incarnation="r1", round=9)
    assert after == a_record(
        world=WORLD, last=LAST, met=2, epoch=4, write_id="m", claim=a_claim("c9", secret="mine", ranks=(1,))
    )


def test_a_claim_names_the_ranks_of_its_process_in_the_recorded_world_only() -> None:
    """Rule 17f: they are lost with it, so it names none of another world."""
    other = claimed(a_record(world=WORLD), seal_id="s3", ranks=(1,))
    assert other.claim == OFFER


def test_a_claim_on_a_closed_record_mints_the_next_incarnation_and_remembers_how_the_last_ended() -> None:
    """Rule 17h: the round continues, and the epoch does."""
    closed = a_record(world=WORLD, closing=RecordedEnding(Ending.FAILED, "too few"), last=LAST, met=2)
    after = claimed(closed, incarnation="r1")
    assert (after.incarnation, after.closing, after.world) == ("rm", None, None)
    assert after.last == EndedIncarnation("r1", Ending.FAILED, "too few")
    assert (after.epoch, after.round, after.met, after.bounds) == (4, 4, 2, Bounds(1, 8))


# Who may, and when ----------------------------------------------------------------------------------------------------


def delay_of(rank: int, *served: int, **known: Any) -> float:
    """How long the process of this rank waits where the process with some other ranks has served."""
    record = a_record(world=RecordedWorld(4, "s4", 100), bounds=Bounds(1, 100), claim=a_claim(ranks=served))
    return delay_s(candidate(seal_id="s4", ranks=(rank,), **known), record, 0.5)


def test_claims_are_staggered_by_rank_without_the_ranks_that_went_with_the_server() -> None:
    """Rule 17b: 30 ms a place, at most 1 s."""
    assert [delay_of(rank) for rank in (0, 1, 2)] == pytest.approx([0.0, 0.03, 0.06])
    assert [delay_of(rank, 0) for rank in (1, 2)] == pytest.approx([0.0, 0.03])
    assert [delay_of(rank, 0, 2) for rank in (1, 3)] == pytest.approx([0.0, 0.03])
    assert delay_of(99) == 1.0


def test_the_lowest_rank_of_a_process_counts() -> None:
    """Rule 17b."""
    record = a_record(world=WORLD)
    assert delay_s(candidate(seal_id="s4", ranks=(2, 1)), record, 0.5) == pytest.approx(0.03)


def test_programs_that_train_in_their_own_process_wait_a_little_longer() -> None:
    """Rule 17b."""
    assert delay_of(1, trains=True) == pytest.approx(0.13)


@pytest.mark.parametrize("known", [{}, {"seal_id": "s3", "ranks": (0,)}, {"seal_id": "s4"}])
@pytest.mark.parametrize(("chance", "delay"), [(0.0, 1.0), (1.0, 1.5)])
def test_who_has_no_rank_in_the_world_waits_for_those_who_have(
    known: dict[str, Any], chance: float, delay: float
) -> None:
    """Rule 17b: 1 s plus up to 0.5 s."""
    assert delay_s(candidate(**known), a_record(world=WORLD), chance) == delay


@pytest.mark.parametrize(
    "record", [None, a_record(claim=None), a_record(world=WORLD, closing=RecordedEnding(Ending.SUCCEEDED))]
)
def test_where_there_is_no_world_that_goes_on_nobody_waits(record: Record | None) -> None:
    """Rule 17b: a random pause would only cost time."""
    assert delay_s(candidate(), record, 1.0) == 0.0


@pytest.mark.parametrize("record", [None, a_record(world=WORLD)])
def test_leaving_nodes_claim_last(record: Record | None) -> None:
    """Rule 17a: after 2 s, whatever their rank."""
    assert delay_s(candidate(leaving=True, seal_id="s4", ranks=(0,)), record, 0.0) == 2.0


@pytest.mark.parametrize(
    ("epoch", "met", "wait_s"), [(4, 3, 5.0), (5, 3, 10.0), (6, 3, 20.0), (9, 3, 60.0), (2**53, 0, 60.0)]
)
def test_a_claim_that_nobody_has_met_is_tried_for_longer_each_time(epoch: int, met: int, wait_s: float) -> None:
    """Rule 17a: `heartbeat_timeout` x 2^(epoch - met - 1), at most 60 s."""
    assert unmet_s(a_record(epoch=epoch, met=met), Settings(heartbeat_timeout_s=5.0)) == wait_s


@pytest.mark.parametrize("record", [a_record(epoch=3, met=3), a_record(epoch=3, met=2, claim=None)])
def test_a_claim_that_somebody_has_met_is_never_taken_for_want_of_an_answer(record: Record) -> None:
    """Rule 17a: otherwise a node that cannot reach a living claim waits."""
    assert unmet_s(record, Settings()) is None


def test_only_an_unfinished_rank_is_in_the_recorded_world() -> None:
    """Rule 17a: where the record has a world, only such a one may take a claim that nobody has met."""
    world = RecordedWorld(4, "s4", 3, rank_bitmap([0]))
    record = a_record(world=world)
    assert candidate(seal_id="s4", ranks=(0, 1)).is_in(record)
    assert not candidate(seal_id="s4", ranks=(0,)).is_in(record)
    assert not candidate(seal_id="s3", ranks=(1,)).is_in(record)
    assert not candidate(seal_id="s4").is_in(record)
    assert not candidate(seal_id="s4", ranks=(1,)).is_in(a_record())
