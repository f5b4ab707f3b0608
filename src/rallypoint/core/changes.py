"""The changes that a run can go through, whoever caused them: founded, broken, closed.

Each returns a `Step`: the new run, the notices to send, and the reason in words.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from rallypoint.core.model import Closing, Crash, EndedIncarnation, Phase, Run
from rallypoint.core.notices import Notice
from rallypoint.core.phases import PHASE_CHANGES
from rallypoint.messages.notices import Broken, NodeNotice, RunClosed
from rallypoint.messages.types import Bounds, Ending, Settings
from rallypoint.sorted_map import SortedMap


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
        durability = max(earlier.durability, self.durability)
        return Step(self.run, earlier.notices + self.notices, why, durability)


def change(run: Run, **fields: Any) -> Run:
    """The run with some fields replaced."""
    return msgspec.structs.replace(run, **fields)


def enter(run: Run, phase: Phase, **fields: Any) -> Run:
    """The run in another phase; only the ways of `PHASE_CHANGES` exist."""
    assert (run.phase, phase) in PHASE_CHANGES, f"no way leads from {run.phase} to {phase}"
    return change(run, phase=phase, **fields)


def tell(node_id: str, what: NodeNotice) -> tuple[Notice, ...]:
    """One notice to one node."""
    return (Notice(node_id, what),)


def found(run: Run, bounds: Bounds, settings: Settings, mint: str) -> Run:
    """A new incarnation of the run (rule 1); only what must outlive the old one is kept."""
    assert run.phase is Phase.GATHERING or (run.phase, Phase.GATHERING) in PHASE_CHANGES
    last = run.last
    if run.closing is not None and run.incarnation:
        last = EndedIncarnation(run.incarnation, run.closing.ending, run.closing.why)
    return change(emptied(run, last), incarnation=f"r{mint}", bounds=bounds, settings=settings)


def emptied(run: Run, last: EndedIncarnation | None) -> Run:
    """The run with nobody in it and no incarnation; only what must outlive the old one is kept."""
    return Run(
        run_id=run.run_id,
        round=run.round,
        arrivals=run.arrivals,
        last=last,
        hindrance=run.hindrance,
        evictions=run.evictions,
        evictions_end=run.evictions_end,
    )


def depart(run: Run, node_id: str) -> Run:
    """The run without a node, wherever it stood; what its going means is for the caller to decide."""
    for field in ("active", "returned", "queue", "spares"):
        table: SortedMap[str, Any] = getattr(run, field)
        if node_id in table:
            return change(run, **{field: table.without(node_id)})
    waiter = run.paused.get(node_id)
    if waiter is not None:
        key = (waiter.paused_until, node_id)
        return change(run, paused=run.paused.without(node_id), pauses=run.pauses.without(key))
    return run


def break_world(run: Run, why: str, now: float) -> Step:
    """The current world is over (rule 6): its members are told and awaited back."""
    world = run.current
    assert world is not None, "only a current world can break"
    broken = enter(
        run,
        Phase.GATHERING,
        regroup_ends=now + run.settings.regroup_s,
        last_call_ends=None,
        told_waiting=0,
    )
    return Step(broken, (Notice((run.active,), Broken(world.seal_id, why)),), f"round {world.round} is broken: {why}")


def close(run: Run, ending: Ending, why: str, now: float) -> Step:
    """The run is over (rules 1 and 8): everybody is told, and the tombstone stays for a while."""
    closed = enter(
        run,
        Phase.CLOSED,
        closing=Closing(ending, why, now),
        last_call_ends=None,
        regroup_ends=None,
        hold_ends=None,
        recorded=None,
        predecessor=None,
        told_waiting=0,
    )
    everyone = (run.active, run.returned, run.queue, run.paused, run.spares, run.finished)
    told = Notice(everyone, RunClosed(run.incarnation, ending, why))
    return Step(closed, (told,), f"the run closed as {ending.value}: {why}", Durability.SEAL_OR_CLOSE)


def charge(run: Run, name: str, now: float) -> Run:
    """Remember that a node of this name crashed; old crashes are forgiven."""
    past = run.crashes.get(name)
    recent = past is not None and now - past.last <= run.settings.crash_memory_s
    count = past.count + 1 if past is not None and recent else 1
    return change(run, crashes=run.crashes.set(name, Crash(count, now)))


def pause_ends(run: Run, name: str, now: float) -> float:
    """Until when a newcomer of this name is kept out: longer with each crash after the first, never beyond a limit."""
    crash = run.crashes.get(name)
    settings = run.settings
    if crash is None or crash.count < 2 or now - crash.last > settings.crash_memory_s:
        return now
    return crash.last + min(settings.crash_pause_limit_s, settings.crash_pause_s * 2.0 ** min(crash.count - 2, 60))
