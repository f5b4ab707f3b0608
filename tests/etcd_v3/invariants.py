"""The invariants of a run on real etcd: judged by what every process wrote down, and by the history of the record.

The history has what no record of a killed process has: every world that was ever recorded, in one order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from rallypoint.messages.types import Bounds
from rallypoint.record import Record
from tests.support.run_invariants import Event, World, check_ends, check_losses, check_places

History = Sequence[tuple[int, Record | None]]
"""The record after each change to it, by revisions; None where it was deleted."""


def check(records: dict[str, list[Event]], history: History, bounds: Bounds, killed: Mapping[str, float]) -> None:
    """Nothing happened that must never happen; `killed` is who was, and when."""
    worlds = check_history(history, bounds)
    check_places(records, worlds)
    check_ends(records, worlds, killed)
    check_losses(records, killed)


def check_history(history: History, bounds: Bounds) -> dict[str, World]:
    """The record only goes forward: epochs, rounds, finished ranks, a close; the worlds that it ever had, by seal id."""
    worlds: dict[str, World] = {}
    entries = [record for _, record in history if record is not None]
    assert len(entries) == len(history), "nobody deletes the record"
    last = ""
    for record in entries:
        world = record.world
        if world is None:
            continue
        if world.seal_id not in worlds:
            assert all(world.round > known.round for known in worlds.values()), "a new world has a new round"
            assert bounds.min <= world.size <= bounds.max, f"a world of {world.size} where {bounds} are asked for"
            assert record.closing is None, "no world is sealed in a run that is closed"
            worlds[world.seal_id], last = World(world.round, world.size), world.seal_id
        known = worlds[world.seal_id]
        assert world.seal_id == last, "no world comes back"
        assert (known.round, known.size) == (world.round, world.size), "a world has one round and one size"
    for before, after in pairwise(entries):
        _check_step(before, after)
    return worlds


def _check_step(before: Record, after: Record) -> None:
    """What one write may change."""
    assert after.epoch >= before.epoch, "epochs only grow"
    assert after.round >= before.round, "rounds only grow"
    ids = [record.claim.id if record.claim is not None else "" for record in (before, after)]
    assert ids[0] == ids[1] or not ids[1] or after.epoch > before.epoch, "every claim has an epoch of its own"
    assert after.incarnation == before.incarnation, "the run was never founded anew"
    assert before.closing is None or after.closing == before.closing, "what is closed stays closed"
    if before.world is not None and after.world is not None and before.world.seal_id == after.world.seal_id:
        finished = set(before.world.finished_ranks()) - set(after.world.finished_ranks())
        assert not finished, f"ranks {sorted(finished)} had finished"
