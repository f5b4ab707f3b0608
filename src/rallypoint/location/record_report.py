"""What a record alone tells of a run, where no server answers for it.  Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from rallypoint import wording
from rallypoint.core.model import Phase
from rallypoint.messages.types import RecordedWorld
from rallypoint.protocol import Status
from rallypoint.record import Record
from rallypoint.report import RunLine

SHOWN = 16
"""How many stretches of ranks a sentence names."""


def status_of(record: Record, trouble: str) -> Status:
    """Where a run stands by its record; `trouble` is why no server was asked.

    Of a run that is not served, nobody is known to be here: it has no nodes, and the sentence has the size of the world.
    """
    ending, world = record.closing.ending.value if record.closing is not None else "", record.world
    phase = Phase.CLOSED if ending else Phase.SEALED if world is not None and not world.broken else Phase.GATHERING
    line = RunLine(record.run_id, phase.value, record.round, 0, _situation(record, trouble), ending)
    return Status(0, line, str(record.bounds))


def unreadable(run_id: str, why: str) -> Status:
    """A run whose record is something else, or damaged."""
    return Status(0, RunLine(run_id, "unreadable", 0, 0, why), "unknown")


def _situation(record: Record, trouble: str) -> str:
    source = f"the record of epoch {record.epoch}"
    if record.closing is not None:
        ended = f"closed as {record.closing.ending.value}: {record.closing.why}"
        # A run that has ended needs no server, and there is no more to know.
        return ended if record.claim is None else f"{ended} (this is {source}: {trouble})"
    return (
        f"{trouble}; this is {source}: {_world(record)}; if nodes of this run are left, one of them takes over within "
        f"seconds"
    )


def _world(record: Record) -> str:
    world = record.world
    if world is not None:
        broken = ", and broke" if world.broken else ""
        return f"round {world.round} was sealed with {wording.nodes(world.size)}{broken}{_finished(world)}"
    last = record.last
    if last is not None:
        return f"no world is sealed; its last incarnation was closed as {last.ending.value}: {last.why}"
    return "no world is sealed" if record.round else "no world was ever sealed"


def _finished(world: RecordedWorld) -> str:
    ranks = list(world.finished_ranks())
    if len(ranks) in (0, world.size):
        return ", all of which have finished" if ranks else ", none of which has finished"
    return f"; {'rank' if len(ranks) == 1 else 'ranks'} {_stretches(ranks)} {'has' if len(ranks) == 1 else 'have'} finished"


def _stretches(ranks: Iterable[int]) -> str:
    """Ranks in order, as in `0-3, 7`; the first of them where there are very many."""
    found: list[list[int]] = []
    for rank in ranks:
        if found and found[-1][-1] == rank - 1:
            found[-1][1:] = [rank]
        else:
            found.append([rank])
    shown = ", ".join("-".join(map(str, stretch)) for stretch in islice(found, SHOWN))
    return f"{shown} and more" if len(found) > SHOWN else shown
