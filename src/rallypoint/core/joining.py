"""Joining and joining again (rules 1, 2, 5, 6a, 7, 9): what a run answers to a node that wants a place."""

from __future__ import annotations

from itertools import chain, islice

import msgspec

from rallypoint import wording
from rallypoint.core import explain, recovery
from rallypoint.core.changes import Durability, Step, arrive, break_world, change, found, pause_ends, tell, wait
from rallypoint.core.model import Phase, Run, WaitingNode, find_waiter, takes_part
from rallypoint.messages.notices import Fenced, Refused, RunClosed
from rallypoint.messages.requests import Announced, Joined, Seat
from rallypoint.messages.types import Node, Role

LOOKED_AT = 16


def join(run: Run, said: Joined | Announced, now: float, mint: str) -> Step:
    """A node asks for a place in the next world."""
    node, seat = said.node, said.seat
    if run.phase is Phase.CLOSED and (run.live or (said.incarnation and said.incarnation == run.incarnation)):
        return told_closed(run, node)
    if run.phase is Phase.RECOVERING:
        return _join_while_recovering(run, said, now)
    if takes_part(run, node.id):
        return _join_again(run, said, now)
    if seat is not None:
        return fence(run, node, seat)
    if node.id in run.finished:
        why = f"{node.name} has finished in this run: a new process must join in its place"
        return Step(run, tell(node.id, Refused(why)), why)
    if not run.live and not run.founded:
        founded = found(run, said.bounds, said.settings, mint)
        step = _enqueue(founded, node, f"{node.name} founded the run for {wording.size(said.bounds)}")
        # A record may name the incarnation before as one that runs: it must say first that it is over.
        replaces = bool(run.incarnation) and run.phase is Phase.GATHERING
        return msgspec.structs.replace(step, durability=Durability.SEAL_OR_CLOSE) if replaces else step
    if not run.live and run.world is None and (run.round == 0 or run.last is not None):
        # A claim has founded it with the bounds of a node that may never join: the first that does sets them (rule 1).
        # In a higher round of the same incarnation the register forgot, and members of its world are on their way.
        run = change(run, bounds=said.bounds, settings=said.settings)
    return _admit(run, said, now)


def fence(run: Run, node: Node, seat: Seat) -> Step:
    """A node that the run does not know speaks of a world: it is out of it, and must join as a newcomer (rule 9)."""
    why = f"{node.name} is no longer part of round {seat.round}: it was given up or left behind"
    return Step(run, tell(node.id, Fenced(seat.seal_id, why)), why)


def told_closed(run: Run, node: Node) -> Step:
    """A node asks a closed run for something."""
    assert run.closing is not None, "a closed run knows how it closed"
    answer = RunClosed(run.incarnation, run.closing.ending, run.closing.why)
    return Step(run, tell(node.id, answer), f"{node.name} was told that the run is closed")


def _admit(run: Run, said: Joined | Announced, now: float) -> Step:
    """A newcomer comes to a run that has other nodes."""
    node = said.node
    # Of the nodes that are here only the first few are looked at: a join must not cost more than that.
    members = run.world.members if run.world is not None else ()
    waiters = chain.from_iterable(table.values() for table in run.waiting)
    here = chain((members[rank] for rank in run.active.values()), (waiter.node for waiter in waiters))
    other = next((known for known in islice(here, LOOKED_AT) if known.address), None)
    why = explain.refusal(run, node, said.bounds, other)
    if why:
        return Step(run, tell(node.id, Refused(why)), why)
    until = pause_ends(run, node.name, now)
    if until <= now:
        return _enqueue(run, node, f"{node.name} joined")
    paused = arrive(run, "paused", node, paused_until=until)
    pauses = run.pauses.set((until, node.id), None)
    return Step(change(paused, pauses=pauses), (), explain.pause(node.name, until, now))


def _enqueue(run: Run, node: Node, why: str, request: Joined | None = None) -> Step:
    if node.role is Role.SPARE:
        return Step(arrive(run, "spares", node, request=request), (), f"{why} as a spare")
    return Step(arrive(run, "queue", node, request=request), (), why)


def _join_again(run: Run, said: Joined | Announced, now: float) -> Step:
    """A node that the run knows asks once more (rule 6a)."""
    node, world = said.node, run.current
    rank, without = run.active.get(node.id), change(run, active=run.active.without(node.id))
    if rank is None:
        waiter = find_waiter(run, node.id)
        assert waiter is not None, "a node that is known and holds no world waits"
        return _refresh(run, msgspec.structs.replace(waiter, node=node))
    if world is None:
        return Step(arrive(without, "returned", node), (), f"{node.name} is back")
    if said.seat is None or (said.seat.seal_id != world.seal_id and said.seat.round < world.round):
        why = f"{node.name} had not heard that it is in round {world.round}"
        return Step(run, tell(node.id, world.place(rank)), why)
    # A node that was in another world of this round or a higher one, because a register forgot, would not take this one.
    admitting = f", with {wording.nodes(run.told_waiting)} waiting to be admitted" if run.told_waiting else ""
    why = f"{node.name} joined again{admitting}"
    broken = break_world(without, why, now)
    return msgspec.structs.replace(broken, run=arrive(broken.run, "returned", node))


def _refresh(run: Run, waiter: WaitingNode) -> Step:
    """A join sent twice: the node keeps its place in the queue, and its latest message counts."""
    node = waiter.node
    field = next(name for name in ("returned", "queue", "paused", "spares") if node.id in getattr(run, name))
    if find_waiter(run, node.id) == waiter:
        return Step(run)
    return Step(wait(run, field, waiter), (), f"{node.name} asked again")


def _join_while_recovering(run: Run, said: Joined | Announced, now: float) -> Step:
    """No node is refused for its bounds during a hold: what it asked for is judged when the hold is over (rule 17f)."""
    node, seat = said.node, said.seat
    if not run.live and not run.incarnation:
        run = change(run, bounds=said.bounds, settings=said.settings)
    spoken = recovery.heard_of(run, said, seat, now) if seat is not None else Step(run)
    run = spoken.run
    rank = run.ranks.get(node.id)
    is_old = rank is not None and (run.heard[rank].holds or run.heard[rank].finished)  # it was answered long ago
    if is_old or any(isinstance(notice.what, Fenced) for notice in spoken.notices):
        return spoken
    request = Joined(node, said.bounds, said.settings, said.incarnation)
    known = find_waiter(run, node.id)
    if known is not None:
        return _refresh(run, msgspec.structs.replace(known, node=node, request=request)).after(spoken)
    return _enqueue(run, node, f"{node.name} waits", request).after(spoken)
