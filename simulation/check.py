"""What is always true of a run: a transition that breaks one of these is wrong.  Tests and the simulation look."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from rallypoint.core.model import Phase, Run


def complaints(run: Run) -> Iterator[str]:
    """Everything that is wrong with a run, in words."""
    yield from _each_node_stands_once(run)
    yield from _the_phase_fits(run)
    yield from _the_world_is_whole(run)


def _each_node_stands_once(run: Run) -> Iterator[str]:
    seen: set[str] = set()
    everyone = (run.active, run.returned, run.queue, run.paused, run.spares, run.finished)
    for node_id in chain.from_iterable(everyone):
        if node_id in seen:
            yield f"node {node_id!r} stands in two places"
        seen.add(node_id)
    for table in (run.returned, run.queue, run.paused, run.spares):
        for node_id, waiter in table.items():
            if waiter.node.id != node_id:
                yield f"node {waiter.node.id!r} stands under the name {node_id!r}"
            if waiter.arrival >= run.arrivals:
                yield f"node {node_id!r} has arrival {waiter.arrival}, but only {run.arrivals} came"
    if {(w.paused_until, i) for i, w in run.paused.items()} != set(run.pauses):
        yield "the pauses are not those of the paused nodes"


def _the_phase_fits(run: Run) -> Iterator[str]:
    if (run.closing is not None) != (run.phase is Phase.CLOSED):
        yield f"the phase is {run.phase.value}, but how it closed is {'unknown' if run.closing is None else 'known'}"
    if (run.hold_ends is not None) != (run.phase is Phase.RECOVERING):
        yield f"a hold belongs to recovery, not to {run.phase.value}"
    recovering = bool(run.heard or run.recorded is not None or run.predecessor is not None)
    if recovering and run.phase is not Phase.RECOVERING:
        yield f"ranks that were heard belong to recovery, not to {run.phase.value}"
    if run.phase is Phase.SEALED and run.world is None:
        yield "the phase is sealed, but there is no world"
    if run.phase is Phase.SEALED and run.returned:
        yield "nodes came back to a world that is current"
    if run.phase is Phase.SEALED and not run.active:
        yield "a current world has no member left"
    if run.phase is not Phase.GATHERING and run.regroup_ends is not None:
        yield f"members are awaited back while the phase is {run.phase.value}"
    if run.phase not in (Phase.GATHERING, Phase.RECOVERING) and run.last_call_ends is not None:
        yield f"a call runs while the phase is {run.phase.value}"
    if run.live and not run.incarnation and run.phase is not Phase.RECOVERING:
        yield "nodes are here, but the run has no incarnation"
    if run.returned and run.world is None:
        yield "nodes came back, but there was no world"
    if run.phase is Phase.GATHERING and run.ending_started:
        left_over = len(run.active) + len(run.returned)
        if not left_over or left_over + len(run.queue) + len(run.spares) < run.bounds.min:
            yield f"some have finished, {left_over} are left, and they wait for more (rule 8)"


def _the_world_is_whole(run: Run) -> Iterator[str]:
    world = run.world
    if world is None:
        if run.active or run.finished:
            yield "there are members, but no world"
        return
    if not world.members:
        yield "the world has no members"
        return
    ids = [node.id for node in world.members]
    heard = [node_id for node_id in ids if not node_id.startswith("rank-?")]
    if len(set(heard)) != len(heard):
        yield "a node has two ranks"
    if not world.seal_id or not world.incarnation or world.incarnation != run.incarnation:
        yield f"the world is of incarnation {world.incarnation!r}, the run of {run.incarnation!r}"
    if not 1 <= world.round <= run.round:
        yield f"the world is of round {world.round}, but the run has come to {run.round}"
    if world.size > run.bounds.max:
        yield f"the world has {world.size} members where {run.bounds.max} are allowed"
    for node_id, rank in run.ranks.items():
        if not 0 <= rank < world.size or ids[rank] != node_id:
            yield f"node {node_id!r} is not rank {rank}"
    for node_id, rank in run.active.items():
        if run.ranks.get(node_id) != rank:
            yield f"node {node_id!r} is active as rank {rank} but has rank {run.ranks.get(node_id)}"
