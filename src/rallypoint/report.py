"""Where a run stands, for people: what every hosting can tell of its runs, and `rallypoint status` shows."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from rallypoint.core import transition
from rallypoint.core.model import Run
from rallypoint.errors import RendezvousError


class NodeLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One node of a run.  `standing` is a few words: holds its world, awaited back, waiting, standing by, finished."""

    name: str
    id: str
    standing: str
    rank: int | None = None
    address: str = ""


class RunLine(msgspec.Struct, frozen=True):
    """One run in a list: its phase in a word, how many nodes are here and have not finished, the sentence of rule 11."""

    run_id: str
    phase: str
    round: int
    nodes: int
    situation: str


class RunReport(msgspec.Struct, frozen=True):
    """One run with its nodes, of whom there may be more than are listed."""

    run: RunLine
    bounds: str
    nodes: tuple[NodeLine, ...]


def line_of(run: Run, now: float) -> RunLine:
    """A run in a line."""
    return RunLine(run.run_id, run.phase.value, run.round, run.live, transition.situation(run, now))


def nodes_of(run: Run) -> Iterator[NodeLine]:
    """Everybody in a run: members by rank, then those who wait, then those who have finished."""
    members = run.world.members if run.world is not None else ()
    holding = "holds its world" if run.current is not None else "awaited back"
    for rank in sorted(run.active.values()):
        node = members[rank]
        yield NodeLine(node.name, node.id, holding, rank, node.address)
    tables = {"waiting": (run.returned, run.queue), "kept out": (run.paused,), "standing by": (run.spares,)}
    for standing, group in tables.items():
        for table in group:
            for waiter in table.values():
                yield NodeLine(waiter.node.name, waiter.node.id, standing, None, waiter.node.address)
    for node_id in run.finished:
        yield NodeLine(node_id.partition(".")[0], node_id, "finished")


def node_to_evict(run: Run, name: str) -> str | None:
    """The id of the node with this id or name, the newest where several have the name; None where there is none.

    `RendezvousError` where it has finished: there is nobody left who could be evicted.
    """
    named = [node.id for node in nodes_of(run) if name in (node.id, node.name)]
    here = [node_id for node_id in named if node_id not in run.finished]
    if named and not here:
        raise has_finished(run.run_id, name)
    return here[-1] if here else None


def has_finished(run_id: str, name: str) -> RendezvousError:
    """For who would evict a node that is done."""
    return RendezvousError(f"node {name!r} of run {run_id!r} has finished or left already: there is nobody to evict")
