"""The seal rule (rule 4): when a world is sealed, and which nodes are in it."""

from __future__ import annotations

from operator import attrgetter

import msgspec

from rallypoint import wording
from rallypoint.core import explain
from rallypoint.core.changes import Durability, Notice, Step, change, charge, enter
from rallypoint.core.model import Phase, Run, World
from rallypoint.messages.notices import StandBy
from rallypoint.ranking import STICKY, Candidate, Policies, rank
from rallypoint.sorted_map import SortedMap


class SealDecision(msgspec.Struct, frozen=True):
    """Whether to seal now, the reason in words, and until when the wait lasts at most (None: that is not known)."""

    seal: bool
    why: str
    until: float | None = None


def turnout(run: Run, now: float) -> tuple[int, int, int]:
    """How many survivors and newcomers, and how many spares, are in a world sealed now, and how many members are awaited.

    While live members of the broken world are awaited their places are kept, so that a newcomer that happens to be
    quicker than a worker's clean-up does not displace a member.  Spares fill a gap that a lost member left, and in a
    first round only what is missing to min.  Once a member has finished, newcomers too make up no more than that (rule 8).
    """
    bounds, back = run.bounds, len(run.returned)
    awaited = len(run.active) if run.regroup_ends is not None and now < run.regroup_ends else 0
    most, wanted = bounds.max, bounds.min
    if run.ending_started:
        most = bounds.min
    elif run.world is not None and run.regrouping:
        wanted = min(run.world.size, bounds.max)
    present = back + min(len(run.queue), max(most - back - awaited, 0))
    return present, min(len(run.spares), max(wanted - present - awaited, 0)), awaited


def decide(run: Run, now: float) -> SealDecision:
    """Whether the gathering round is to be sealed now."""
    decision = _decide(run, now)
    return SealDecision(False, run.hindrance) if decision.seal and run.hindrance else decision


def _decide(run: Run, now: float) -> SealDecision:
    (present, spares, awaited), bounds = turnout(run, now), run.bounds
    total = present + spares
    if present >= bounds.max:
        return SealDecision(True, f"all {bounds.max} nodes are here" if bounds.max > 1 else "its only node is here")
    if run.regrouping:
        if awaited:
            return SealDecision(False, explain.awaiting_members(run, now), run.regroup_ends)
        if total >= bounds.min:
            return SealDecision(True, explain.all_back(run))
        return SealDecision(False, explain.too_few(run, total, now))
    if total < bounds.min or present == 0:
        return SealDecision(False, explain.too_few(run, total, now))
    if run.last_call_ends is not None and now >= run.last_call_ends:
        return SealDecision(True, f"the last call ended, and at most {wording.nodes(bounds.max)} are wanted")
    return SealDecision(False, explain.last_call(run, total, now), run.last_call_ends)


def with_last_call(run: Run, now: float) -> Run:
    """The run with its last call: it begins when a first round has min nodes, also during recovery (rules 4, 14)."""
    present, spares, _ = turnout(run, now)
    enough = not run.regrouping and present > 0 and present + spares >= run.bounds.min
    if enough == (run.last_call_ends is not None):
        return run
    return change(run, last_call_ends=now + run.settings.last_call_s if enough else None)


def seal(run: Run, why: str, now: float, mint: str, policies: Policies) -> Step:
    """Seal the round with all nodes that have a place, and let the rest stand by."""
    present, called, _ = turnout(run, now)
    if run.world is not None and run.regrouping:
        # Members that did not come back in time will return as newcomers, and would break the next world as often.
        for old_rank in run.active.values():
            run = charge(run, run.world.members[old_rank].name, now)
    queue, spares = (sorted(table.values(), key=attrgetter("arrival")) for table in (run.queue, run.spares))
    newcomers = present - len(run.returned)
    chosen = [*run.returned.values(), *queue[:newcomers], *spares[:called]]
    policy = run.settings.rank_policy
    if policy not in policies:
        # A server that took over may lack what the run was founded with; the run goes on all the same.
        why = f"{why} (there is no rank policy {policy!r} here: {STICKY!r} is used)"
        policy = STICKY
    ranking = rank(policies, policy, [Candidate(w.node, w.arrival, run.ranks.get(w.node.id)) for w in chosen])
    world = World(run.incarnation, run.round + 1, f"s{mint}", ranking.members, now)
    ranks = SortedMap.build((node.id, r) for r, node in enumerate(world.members))
    sealed = enter(
        run,
        Phase.SEALED,
        round=world.round,
        world=world,
        ranks=ranks,
        active=ranks,
        returned=SortedMap(),
        queue=SortedMap.build((w.node.id, w) for w in queue[newcomers:]),
        spares=SortedMap.build((w.node.id, w) for w in spares[called:]),
        last_call_ends=None,
        regroup_ends=None,
        told_waiting=0,
        told_at=now,
    )
    stand_by = StandBy(run.incarnation, world.round, explain.standing_by(sealed))
    placed = (Notice(n.id, world.place(r, ranking.remarks.get(n.id, ""))) for r, n in enumerate(world.members))
    told = (*placed, *(Notice(w.node.id, stand_by) for w in queue[newcomers:]))
    words = f"round {world.round} is sealed with {wording.nodes(world.size)}: {why}"
    return Step(sealed, told, words, Durability.SEAL_OR_CLOSE)
