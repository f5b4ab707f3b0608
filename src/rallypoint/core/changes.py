"""The changes that a run can go through, whatever caused them: founded, joined, left, broken, closed.

A change that nodes hear of is a `Step`: the new run, the notices to send, and the reason in words.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from rallypoint.core.model import PHASE_CHANGES, Closing, Crash, EndedIncarnation, Phase, Run, WaitingNode
from rallypoint.messages.notices import Broken, NodeNotice, RunClosed
from rallypoint.messages.types import Bounds, Ending, Node, Settings
from rallypoint.sorted_map import SortedMap


class Notice(msgspec.Struct, frozen=True):
    """Something to tell one node, or all nodes whose ids are keys of these tables.

    Tables never change, so that a notice to many costs nothing until the shell lists its recipients.
    """

    to: str | tuple[SortedMap[str, Any], ...]
    what: NodeNotice


class Durability(enum.IntEnum):
    """What must be in the record before anybody hears of a step (rule 17c).

    Several finishes may share a write; a seal or a close ends what one write may contain.
    """

    NONE = 0
    FINISH = 1
    SEAL_OR_CLOSE = 2


class Step(msgspec.Struct, frozen=True):
    """What a transition decided, and whether it must be recorded before it is told."""

    run: Run
    notices: tuple[Notice, ...] = ()
    why: str = ""
    durability: Durability = Durability.NONE

    def after(self, earlier: Step) -> Step:
        """This step as the continuation of an earlier one."""
        why = "; ".join(filter(None, (earlier.why, self.why)))
        return Step(self.run, earlier.notices + self.notices, why, max(earlier.durability, self.durability))


def change(run: Run, **fields: Any) -> Run:
    """The run with some fields replaced."""
    return msgspec.structs.replace(run, **fields)


def enter(run: Run, phase: Phase, **fields: Any) -> Run:
    """The run in another phase; only the changes in `PHASE_CHANGES` exist."""
    assert (run.phase, phase) in PHASE_CHANGES, f"no way leads from {run.phase} to {phase}"
    return change(run, phase=phase, **fields)


def tell(node_id: str, what: NodeNotice) -> tuple[Notice, ...]:
    """One notice to one node."""
    return (Notice(node_id, what),)


def found(run: Run, bounds: Bounds, settings: Settings, mint: str) -> Run:
    """A new incarnation of the run (rule 1)."""
    assert run.phase is Phase.GATHERING or (run.phase, Phase.GATHERING) in PHASE_CHANGES
    return change(emptied(run), incarnation=f"r{mint}", bounds=bounds, settings=settings)


def emptied(run: Run) -> Run:
    """The run with nobody in it and no incarnation; only what must outlive the old one is kept."""
    last, closing = run.last, run.closing
    if closing is not None and run.incarnation:
        last = EndedIncarnation(run.incarnation, closing.ending, closing.why)
    kept = ("run_id", "round", "arrivals", "hindrance", "evictions", "evictions_end")
    return Run(last=last, **{field: getattr(run, field) for field in kept})


def wait(run: Run, field: str, waiter: WaitingNode) -> Run:
    """The run with a node in the table of this name, in which nodes wait."""
    return change(run, **{field: getattr(run, field).set(waiter.node.id, waiter)})


def arrive(run: Run, field: str, node: Node, **known: Any) -> Run:
    """The run with a node as the last arrival in the table of this name."""
    return wait(change(run, arrivals=run.arrivals + 1), field, WaitingNode(node, run.arrivals, **known))


def depart(run: Run, node_id: str) -> Run:
    """The run without a node, whichever table it was in; the caller decides what follows from that."""
    for field in ("active", "returned", "queue", "spares", "paused"):
        table: SortedMap[str, Any] = getattr(run, field)
        if node_id in table:
            pauses = run.pauses.without((table[node_id].paused_until, node_id)) if field == "paused" else run.pauses
            return change(run, pauses=pauses, **{field: table.without(node_id)})
    return run


def break_world(run: Run, why: str, now: float) -> Step:
    """The current world is over (rule 6): its members are told and awaited back."""
    world = run.current
    assert world is not None, "only a current world can break"
    regroup_ends = now + run.settings.regroup_s
    broken = enter(run, Phase.GATHERING, regroup_ends=regroup_ends, last_call_ends=None, told_waiting=0)
    return Step(broken, (Notice((run.active,), Broken(world.seal_id, why)),), f"round {world.round} is broken: {why}")


def close(run: Run, ending: Ending, why: str, now: float) -> Step:
    """The run is over (rules 1 and 8): everybody is told, and the tombstone stays for a while."""
    over = dict.fromkeys(("last_call_ends", "regroup_ends", "hold_ends", "highest", "recorded", "predecessor"))
    closed = enter(run, Phase.CLOSED, closing=Closing(ending, why, now), told_waiting=0, **over)
    told = Notice((run.active, *run.waiting, run.finished), RunClosed(run.incarnation, ending, why))
    return Step(closed, (told,), f"the run closed as {ending.value}: {why}", Durability.SEAL_OR_CLOSE)


def charge(run: Run, name: str, now: float) -> Run:
    """Remember that a node of this name crashed; old crashes are forgiven, and then forgotten."""
    past, memory_s = run.crashes.get(name), run.settings.crash_memory_s
    count = past.count + 1 if past is not None and now - past.last <= memory_s else 1
    by_age = run.crashes_by_age if past is None else run.crashes_by_age.without((past.last, name))
    crashes, by_age = run.crashes.set(name, Crash(count, now)), by_age.set((now, name), None)
    for _ in range(2):  # more than come, and no more than a crash may cost
        oldest = by_age.first()
        if oldest is not None and now - oldest[0] > memory_s:
            by_age, crashes = by_age.without(oldest), crashes.without(oldest[1])
    return change(run, crashes=crashes, crashes_by_age=by_age)


def pause_ends(run: Run, name: str, now: float) -> float:
    """Until when a newcomer of this name is kept out: longer with each crash after the first, up to a limit."""
    crash, settings = run.crashes.get(name), run.settings
    if crash is None or crash.count < 2 or now - crash.last > settings.crash_memory_s:
        return now
    return crash.last + min(settings.crash_pause_limit_s, settings.crash_pause_s * 2.0 ** min(crash.count - 2, 60))
