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
    """One run in a list: its phase, how many nodes are here and have not finished, the sentence of rule 11.

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


def line_of(run: Run, now: float) -> RunLine:
    """A run in a line."""
    ending = run.closing.ending.value if run.closing is not None else ""
    sealed_ago_s = now - run.current.sealed_at if run.current is not None else None
    until = transition.wait_ends(run, now)
    wait_left_s = max(until - now, 0.0) if until is not None else None
    situation = transition.situation(run, now)
    return RunLine(run.run_id, run.phase.value, run.round, run.live, situation, ending, sealed_ago_s, wait_left_s)


def nodes_of(run: Run) -> Iterator[NodeLine]:
    """All nodes in a run: members by rank, then those that wait, then those that have finished."""
    members = run.world.members if run.world is not None else ()
    holding = "holds its world" if run.current is not None else "awaited back"
    for rank in sorted(run.active.values()):
        yield NodeLine(members[rank].name, members[rank].id, holding, rank, members[rank].address)
    for standing, table in zip(("waiting", "waiting", "kept out", "standing by"), run.waiting, strict=True):
        for waiter in table.values():
            yield NodeLine(waiter.node.name, waiter.node.id, standing, None, waiter.node.address)
    for node_id in run.finished:
        yield NodeLine(node_id.partition(".")[0], node_id, "finished")


def kept_out_of(run: Run, now: float) -> Iterator[KeptOutLine]:
    """All nodes that an administrator keeps out of a run."""
    for out in kept_out(run, now):
        yield KeptOutLine(out.node.name, out.node.id, out.until - now, out.node.address, out.why)


def node_to_evict(run: Run, name: str, now: float) -> Node | None:
    """The node with this id or name, the newest where several have the name; None where there is none.

    A node that is kept out already can be evicted once more, where no other has the name; one that has finished cannot.
    """
    named = [node.id for node in nodes_of(run) if name in (node.id, node.name)]
    here = [node for node_id in named if node_id not in run.finished and (node := find_node(run, node_id)) is not None]
    here = here or [eviction.node for eviction in kept_out(run, now) if name in (eviction.node.id, eviction.node.name)]
    if named and not here:
        raise RendezvousError(
            f"node {name!r} of run {run.run_id!r} has finished or left already: there is nobody to evict"
        )
    return here[-1] if here else None
