"""Leaving, being lost and closing (rules 6, 8): what the going of a node means to those that stay."""

from __future__ import annotations

from rallypoint.core import evictions, explain
from rallypoint.core.changes import Durability, Step, break_world, change, charge, close, depart
from rallypoint.core.events import Evicted
from rallypoint.core.model import Phase, Run, find_node
from rallypoint.core.recovery import adopt, silenced
from rallypoint.messages.types import Ending, OnGiveUp, Reason


def lost(run: Run, node_id: str, why: str, now: float) -> Step:
    """The server has given a node up."""
    return _go(run, node_id, f"{_name(run, node_id)} was lost: {why}", now, crashed=True)


def evicted(run: Run, event: Evicted, now: float) -> Step:
    """An administrator has given a node up: it is told so at once, and kept out for a while."""
    node = event.node
    noted, eviction = evictions.note(run, node, event.for_s, event.why, now)
    told = explain.evicted(eviction)
    gone = _go(noted, node.id, told, now, crashed=False)
    return Step(gone.run, evictions.notice(run, eviction, now), "" if gone.why else told).after(gone)


def left(run: Run, node_id: str, reason: Reason, seal_id: str, why: str, now: float) -> Step:
    """A node leaves for good and says why."""
    told = f"{_name(run, node_id)} {reason.value}" + (f": {why}" if why else "")
    recovering = run.phase is Phase.RECOVERING
    ours = run.world is not None and run.world.seal_id == seal_id
    if reason is Reason.FINISHED and ours and node_id in run.active:
        return finish(run, node_id, now)
    if reason is Reason.FINISHED and recovering:
        done = silenced(depart(run, node_id), node_id, told, finished=True)
        return Step(done, (), told, Durability.FINISH if node_id in run.ranks else Durability.NONE)
    is_member = node_id in run.ranks if recovering else node_id in run.active or node_id in run.returned
    gave_up = reason is Reason.GAVE_UP and is_member
    by_bounds = OnGiveUp.CLOSE if run.bounds.min == run.bounds.max else OnGiveUp.WAIT
    on_give_up = by_bounds if run.settings.on_give_up is OnGiveUp.AUTO else run.settings.on_give_up
    if not gave_up or on_give_up is OnGiveUp.WAIT or run.phase is Phase.CLOSED:
        return _go(run, node_id, told, now, crashed=gave_up)
    if recovering:
        adopted = adopt(silenced(depart(run, node_id), node_id, told), now)
        return close(adopted.run, Ending.FAILED, told, now).after(adopted)
    return close(charge(depart(run, node_id), _name(run, node_id), now), Ending.FAILED, told, now)


def finish(run: Run, node_id: str, now: float) -> Step:
    """A member has done its work: the world stays whole, and no newcomer is admitted (rule 8)."""
    told = f"{_name(run, node_id)} finished"
    done = change(run, active=run.active.without(node_id), finished=run.finished.set(node_id, run.active[node_id]))
    if run.phase is Phase.CLOSED:
        return Step(done, (), told)
    told_of = Step(run, (), told, Durability.FINISH)
    if not done.active and not done.returned and run.phase is Phase.SEALED:
        return close(done, Ending.SUCCEEDED, "all members have finished", now).after(told_of)
    return Step(done).after(told_of)


def close_if_too_few(run: Run, now: float) -> Step:
    """Once some have finished, the rest of a broken world go on only if they are enough with those who wait (rule 8)."""
    if run.phase is not Phase.GATHERING or not run.ending_started:
        return Step(run)
    left_over, here = len(run.active) + len(run.returned), len(run.queue) + len(run.spares)
    if left_over and left_over + here >= run.bounds.min:
        return Step(run)
    why = f"{len(run.finished)} finished, and of the rest {left_over} are left where {run.bounds.min} are needed"
    return close(run, Ending.FAILED, why, now)


def _go(run: Run, node_id: str, told: str, now: float, *, crashed: bool) -> Step:
    """A node is gone without having finished."""
    gone = depart(run, node_id)
    if run.phase is Phase.RECOVERING:
        return Step(silenced(gone, node_id, told), (), told)
    if gone is run:
        return Step(run)
    was_member = node_id in run.active and run.phase is not Phase.CLOSED
    if crashed and was_member:
        gone = charge(gone, _name(run, node_id), now)
    if was_member and run.phase is Phase.SEALED:
        return break_world(gone, told, now)
    return Step(gone, (), told)


def _name(run: Run, node_id: str) -> str:
    node = find_node(run, node_id)
    return node.name if node is not None else node_id
