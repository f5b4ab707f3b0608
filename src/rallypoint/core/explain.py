"""The sentences of rule 11: which nodes are here, which are missing, what is awaited, until when.

The same sentence goes to the log, to time-out errors, to `status` and to the dashboard; so it is made in one place.
"""

from __future__ import annotations

from rallypoint.core.model import Eviction, Run, WaitingNode, World
from rallypoint.core.model import kept_out as in_effect
from rallypoint.messages.types import Bounds, Node, is_loopback
from rallypoint.sorted_map import SortedMap
from rallypoint.wording import SHOWN, are, duration, names, nodes, seconds, size

LOOKED_AT = 64


def too_few(run: Run, total: int, now: float) -> str:
    """A first round below min, or too few survivors (rule 6c)."""
    least, missing = run.bounds.min, run.bounds.min - total
    if missing <= 0:
        return f"only spares are here ({_names(run.spares)}); a member must come first"
    where, awaited = ("left", "must be replaced") if run.regrouping else ("here", "more must come")
    crashed = f" ({_names(run.paused)} {are(len(run.paused))} kept out after crashing too often)" if run.paused else ""
    return (
        f"{total} of at least {nodes(least)} {are(least)} {where} ({_here(run)}); {missing} {awaited}"
        f"{crashed}{_evicted(run, now)}"
    )


def last_call(run: Run, total: int, now: float) -> str:
    """A first round between min and max."""
    assert run.last_call_ends is not None, "the last call begins when min is reached"
    called = total - len(run.queue)
    spares = f", {called} of the spares would make up the numbers" if called > 0 else ""
    return (
        f"{total - max(called, 0)} of at most {run.bounds.max} nodes {are(run.bounds.max)} here ({_here(run)}){spares}; "
        f"the last call ends in {seconds(run.last_call_ends - now)}"
    )


def awaiting_members(run: Run, now: float) -> str:
    """A regrouping round that waits for live members to stop their workers."""
    assert run.regroup_ends is not None, "members are awaited only while regrouping"
    return (
        f"{_here(run)} {are(len(run.returned) + len(run.queue))} here; {_awaited(run)} still "
        f"{'have' if len(run.active) > 1 else 'has'} to stop and come back, at most "
        f"{seconds(run.regroup_ends - now)} more"
    )


def all_back(run: Run) -> str:
    """A regrouping round in which no member is awaited any more."""
    return "everyone who is left is here" + (f"; {_awaited(run)} did not come back in time" if run.active else "")


def standing_by(run: Run) -> str:
    """Why a node has no place for now (rule 7)."""
    if run.ending_started:
        return f"the run is ending, {nodes(len(run.finished))} finished: nobody new is admitted"
    if run.current is None:
        return f"standing by as a spare of {nodes(run.bounds.max)}"
    return f"{_world(run, run.current)}: standing by as a spare"


def admission(run: Run, world: World, now: float) -> str:
    """When a newcomer at a running world will be let in."""
    delay = world.sealed_at + run.settings.admit_delay_s - now
    when = f"in {seconds(delay)}, when this round is old enough" if delay > 0 else "when its members regroup"
    return f"{_world(run, world)}: newcomers are admitted {when}"


def pause(name: str, until: float, now: float) -> str:
    """Why a newcomer is kept out for a while."""
    return (
        f"{name} was lost or too late several times lately: it is let in again in {seconds(until - now)}, "
        f"so that one bad node does not restart the whole job for ever"
    )


def evicted(eviction: Eviction) -> str:
    """That a node was evicted, and why."""
    return f"{eviction.node.name} was evicted by an administrator" + (f" ({eviction.why})" if eviction.why else "")


def kept_out(eviction: Eviction, now: float) -> str:
    """Why an evicted node is not let in, and for how long."""
    left = eviction.until - now
    return f"{evicted(eviction)} and " + (f"is kept out for another {duration(left)}" if left > 0 else "may come back")


def recovering(run: Run, now: float) -> str:
    """Why a restarted server seals nothing yet (rule 14)."""
    assert run.hold_ends is not None, "recovery has an end"
    left = seconds(run.hold_ends - now)
    world = run.highest
    if world is None:
        total = len(run.queue)
        # Every one of many nodes is told this while they come: their names would cost more than the join.
        shown = f" ({_here(run)})" if total <= SHOWN else ""
        return (
            f"{total} of {size(run.bounds)} {are(total)} here{shown}; the server has just started and listens "
            f"for nodes of an earlier life, at most {left} more"
        )
    # Only the first few ranks are looked at: the sentence must not cost more than the join that it answers.
    missing = (f"rank {rank}" for rank in range(min(world.size, LOOKED_AT)) if rank not in run.heard)
    return (
        f"the server has just started; {len(run.heard)} of {world.size} ranks of round {world.round} were heard, "
        f"missing: {names(missing, world.size - len(run.heard))}; at most {left} more"
    )


def refusal(run: Run, node: Node, asked: Bounds, other: Node | None) -> str:
    """Why a node may not join: it asks for other bounds (rule 1), or its address and another's do not mix (rule 2)."""
    if asked != run.bounds:
        return (
            f"{node.name} asks for {size(asked)}, but run {run.run_id!r} was founded for {size(run.bounds)}: start every "
            f"node with the same number, or use another run id"
        )
    if other is not None and node.address and is_loopback(node) != is_loopback(other):
        return (
            f"{node.name} gives its address as {node.address} and {other.name} as {other.address}: a loopback address "
            f"cannot be reached from another machine; give {node.name} an address that its peers can reach"
        )
    return ""


def running(run: Run, world: World, now: float) -> str:
    """A world that is current, and the nodes that wait for the next one, have finished or are kept out."""
    waiting = f", {nodes(len(run.queue))} waiting" if run.queue else ""
    done = f", {nodes(len(run.finished))} finished" if run.ending_started else ""
    return f"round {world.round} runs with {nodes(len(run.active))}{waiting}{done}{_evicted(run, now)}"


def _names(*tables: SortedMap[str, WaitingNode]) -> str:
    return names((waiter.node.name for table in tables for waiter in table.values()), sum(map(len, tables)))


def _world(run: Run, world: World) -> str:
    return f"round {world.round} runs with {world.size} of at most {run.bounds.max} nodes"


def _here(run: Run) -> str:
    return _names(run.returned, run.queue)


def _awaited(run: Run) -> str:
    assert run.world is not None, "only members of a world can be awaited"
    members = run.world.members
    return names((members[rank].name for rank in run.active.values()), len(run.active))


def _evicted(run: Run, now: float) -> str:
    out = [eviction.node.name for eviction in in_effect(run, now)] if run.evictions_end is not None else []
    return f" ({names(out, len(out))} {are(len(out))} kept out by an administrator)" if out else ""
