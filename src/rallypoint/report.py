"""Where a run stands, for people: what every hosting can tell of its runs, and `rallypoint status` shows."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from rallypoint.core import transition
from rallypoint.core.model import Run, find_node, kept_out
from rallypoint.errors import RendezvousError
from rallypoint.messages.types import Node


class NodeLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One node of a run.  `standing` is a few words: holds its world, awaited back, waiting, standing by, finished."""

    name: str
    id: str
    standing: str
    rank: int | None = None
    address: str = ""


class KeptOutLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node that an administrator evicted, and for how long it is still kept out.  It need not be there."""

    name: str
    id: str
    left_s: float
    address: str = ""
    why: str = ""


class RunLine(msgspec.Struct, frozen=True):
    """One run in a list: its phase in a word, how many nodes are here and have not finished, the sentence of rule 11.

    For programs: how it ended where it is closed, how long ago its world was sealed, how long a wait lasts at most.
    """

    run_id: str
    phase: str
    round: int
    nodes: int
    situation: str
    ending: str = ""
    sealed_ago_s: float | None = None
    wait_left_s: float | None = None


class RunReport(msgspec.Struct, frozen=True):
    """One run with its nodes, of whom there may be more than are listed."""

    run: RunLine
    bounds: str
    nodes: tuple[NodeLine, ...]


def line_of(run: Run, now: float) -> RunLine:
    """A run in a line."""
    ending = run.closing.ending.value if run.closing is not None else ""
    sealed_ago_s = now - run.current.sealed_at if run.current is not None else None
    until = transition.wait_ends(run, now)
    wait_left_s = max(until - now, 0.0) if until is not None else None
    situation = transition.situation(run, now)
    return RunLine(run.run_id, run.phase.value, run.round, run.live, situation, ending, sealed_ago_s, wait_left_s)


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


def kept_out_of(run: Run, now: float) -> Iterator[KeptOutLine]:
    """Everybody whom an administrator keeps out of a run."""
    for eviction in kept_out(run, now):
        node = eviction.node
        yield KeptOutLine(node.name, node.id, eviction.until - now, node.address, eviction.why)


def node_to_evict(run: Run, name: str, now: float) -> Node | None:
    """The node with this id or name, the newest where several have the name; None where there is none.

    One that is kept out already can be evicted once more, where no other has the name.  `RendezvousError` where it has
    finished: there is nobody left who could be evicted.
    """
    named = [node.id for node in nodes_of(run) if name in (node.id, node.name)]
    here = [node for node_id in named if node_id not in run.finished and (node := find_node(run, node_id)) is not None]
    here = here or [eviction.node for eviction in kept_out(run, now) if name in (eviction.node.id, eviction.node.name)]
    if named and not here:
        raise has_finished(run.run_id, name)
    return here[-1] if here else None


def has_finished(run_id: str, name: str) -> RendezvousError:
    """For who would evict a node that is done."""
    return RendezvousError(f"node {name!r} of run {run_id!r} has finished or left already: there is nobody to evict")
