"""The sentences of rule 11: who is here, who is missing, what is awaited, until when.

The same sentence goes to the log, to time-out errors, to `status` and to the dashboard; so it is made in one place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from rallypoint.core.model import Eviction, Phase, Run, WaitingNode
from rallypoint.core.model import kept_out as in_effect
from rallypoint.messages.types import Bounds, Node
from rallypoint.wording import SHOWN, are, duration, names, nodes, seconds, size

LOOKED_AT = 64


def here(run: Run) -> str:
    """Who is here for the next world."""
    waiters = chain(run.returned.values(), run.queue.values())
    return names(_names(waiters), len(run.returned) + len(run.queue))


def awaited(run: Run) -> str:
    """Which members of the broken world are not back yet."""
    assert run.world is not None, "only members of a world can be awaited"
    members = run.world.members
    return names((members[rank].name for rank in run.active.values()), len(run.active))


def full(run: Run) -> str:
    """A round in which max are present."""
    return f"all {run.bounds.max} nodes are here" if run.bounds.max > 1 else "its only node is here"


def too_few(run: Run, total: int, now: float) -> str:
    """A first round below min."""
    missing = run.bounds.min - total
    if missing <= 0:
        return f"only spares are here ({names(_names(run.spares.values()), len(run.spares))}); a member must come first"
    return f"{_of_least(run, total)} here ({here(run)}); {missing} more must come{_kept_out(run, now)}"


def last_call(run: Run, total: int, now: float) -> str:
    """A first round between min and max."""
    assert run.last_call_ends is not None, "the last call begins when min is reached"
    called = total - len(run.queue)
    spares = f", {called} of the spares would make up the numbers" if called > 0 else ""
    return (
        f"{total - max(called, 0)} of at most {run.bounds.max} nodes {are(run.bounds.max)} here ({here(run)}){spares}; "
        f"the last call ends in {seconds(run.last_call_ends - now)}"
    )


def awaiting_members(run: Run, now: float) -> str:
    """A regrouping round that waits for live members to stop their workers."""
    assert run.regroup_ends is not None, "members are awaited only while regrouping"
    return (
        f"{here(run)} {are(len(run.returned) + len(run.queue))} here; {awaited(run)} still "
        f"{'have' if len(run.active) > 1 else 'has'} to stop and come back, at most "
        f"{seconds(run.regroup_ends - now)} more"
    )


def all_back(run: Run) -> str:
    """A regrouping round in which nobody is awaited any more."""
    late = f"; {awaited(run)} did not come back in time" if len(run.active) else ""
    return f"everyone who is left is here{late}"


def below_min(run: Run, total: int, now: float) -> str:
    """Too few survivors (rule 6c)."""
    return f"{_of_least(run, total)} left ({here(run)}); {run.bounds.min - total} must be replaced{_kept_out(run, now)}"


def standing_by(run: Run) -> str:
    """Why a node has no place for now (rule 7)."""
    if run.ending_started:
        return f"the run is ending, {nodes(len(run.finished))} finished: nobody new is admitted"
    world = run.current
    if world is None:
        return f"standing by as a spare of {nodes(run.bounds.max)}"
    return f"round {world.round} runs with {world.size} of at most {run.bounds.max} nodes: standing by as a spare"


def admission(run: Run, now: float) -> str:
    """When a newcomer at a running world will be let in."""
    world = run.current
    assert world is not None, "newcomers wait for admission at a current world only"
    delay = world.sealed_at + run.settings.admit_delay_s - now
    when = f"in {seconds(delay)}, when this round is old enough" if delay > 0 else "when its members regroup"
    return (
        f"round {world.round} runs with {world.size} of at most {run.bounds.max} nodes: newcomers are admitted {when}"
    )


def pause(run: Run, waiter: WaitingNode, now: float) -> str:
    """Why a newcomer is kept out for a while."""
    return (
        f"{waiter.node.name} was lost or too late several times lately: it is let in again in "
        f"{seconds(waiter.paused_until - now)}, so that one bad node does not restart the whole job for ever"
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
    world = run.recorded or next(run.heard.values(), None)
    if world is None:
        total = len(run.queue)
        # Every one of many nodes is told this while they come: their names would cost more than the join.
        who = f" ({here(run)})" if total <= SHOWN else ""
        return (
            f"{total} of {size(run.bounds)} {are(total)} here{who}; the server has just started and listens "
            f"for nodes of an earlier life, at most {left} more"
        )
    # Only the first few ranks are looked at: the sentence must not cost more than the join that it answers.
    missing = (f"rank {rank}" for rank in range(min(world.size, LOOKED_AT)) if rank not in run.heard)
    return (
        f"the server has just started; {len(run.heard)} of {world.size} ranks of round {world.round} were heard, "
        f"missing: {names(missing, world.size - len(run.heard))}; at most {left} more"
    )


def bounds_differ(run: Run, name: str, asked: Bounds) -> str:
    """Why a node with other bounds is refused (rule 1)."""
    return (
        f"{name} asks for {size(asked)}, but run {run.run_id!r} was founded for {size(run.bounds)}: start every node "
        f"with the same number, or use another run id"
    )


def addresses_differ(node: Node, other: Node) -> str:
    """Why loopback and other addresses do not mix (rule 2)."""
    return (
        f"{node.name} gives its address as {node.address} and {other.name} as {other.address}: a loopback address "
        f"cannot be reached from another machine; give {node.name} an address that its peers can reach"
    )


def situation(run: Run, now: float, verdict_why: str) -> str:
    """One sentence on where the run stands."""
    if run.phase is Phase.CLOSED:
        assert run.closing is not None, "a closed run knows how it closed"
        return f"closed as {run.closing.ending.value}: {run.closing.why}"
    if run.phase is Phase.RECOVERING:
        return recovering(run, now)
    world = run.current
    if world is None:
        return verdict_why
    waiting = f", {nodes(len(run.queue))} waiting" if run.queue else ""
    done = f", {nodes(len(run.finished))} finished" if run.ending_started else ""
    return f"round {world.round} runs with {nodes(len(run.active))}{waiting}{done}{_evicted(run, now)}"


def _names(waiters: Iterable[WaitingNode]) -> Iterator[str]:
    return (waiter.node.name for waiter in waiters)


def _of_least(run: Run, total: int) -> str:
    return f"{total} of at least {nodes(run.bounds.min)} {are(run.bounds.min)}"


def _kept_out(run: Run, now: float) -> str:
    paused = len(run.paused)
    crashed = f" ({names(_names(run.paused.values()), paused)} {are(paused)} kept out after crashing too often)"
    return (crashed if paused else "") + _evicted(run, now)


def _evicted(run: Run, now: float) -> str:
    if run.evictions_end is None:
        return ""
    out = [eviction.node.name for eviction in in_effect(run, now)]
    return f" ({names(out, len(out))} {are(len(out))} kept out by an administrator)" if out else ""
