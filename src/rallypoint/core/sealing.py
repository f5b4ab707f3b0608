"""The seal rule (rule 4): when a world is sealed, and who is in it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rallypoint import wording
from rallypoint.core import explain
from rallypoint.core.changes import Durability, Step, charge, enter
from rallypoint.core.model import Phase, Run, WaitingNode, World
from rallypoint.core.notices import Notice, Sealed
from rallypoint.messages.notices import StandBy
from rallypoint.ranking import STICKY, Candidate, RankPolicy, rank
from rallypoint.sorted_map import SortedMap


class Verdict(msgspec.Struct, frozen=True):
    """Whether to seal now, the reason in words, and until when the wait lasts at most (None: nobody knows)."""

    seal: bool
    why: str
    until: float | None = None


class Turnout(msgspec.Struct, frozen=True):
    """Who would be in a world sealed now: survivors and newcomers with a place, spares called up; and who is awaited."""

    present: int
    spares: int
    awaited: int

    @property
    def total(self) -> int:
        """How many the world would have."""
        return self.present + self.spares


def turnout(run: Run, now: float) -> Turnout:
    """Count who has a place.

    While live members of the broken world are awaited their places are kept, so that a newcomer that happens to be
    quicker than a worker's clean-up does not displace a member.  Spares fill a gap that a lost member left, and in a
    first round only what is missing to min.  Once a member has finished, nobody new is admitted (rule 8).
    """
    bounds, back = run.bounds, len(run.returned)
    awaited = len(run.active) if run.regroup_ends is not None and now < run.regroup_ends else 0
    if run.ending_started:
        return Turnout(back, 0, awaited)
    present = back + min(len(run.queue), max(bounds.max - back - awaited, 0))
    wanted = min(run.world.size, bounds.max) if run.world is not None and run.regrouping else bounds.min
    called = min(len(run.spares), max(wanted - present - awaited, 0))
    return Turnout(present, called, awaited)


def decide(run: Run, now: float) -> Verdict:
    """Whether the gathering round is to be sealed now."""
    verdict = _decide(run, now)
    if verdict.seal and run.hindrance:
        return Verdict(False, run.hindrance)
    return verdict


def _decide(run: Run, now: float) -> Verdict:
    here, bounds = turnout(run, now), run.bounds
    if here.present >= bounds.max:
        return Verdict(True, explain.full(run))
    if run.regrouping:
        if here.awaited:
            return Verdict(False, explain.awaiting_members(run, now), run.regroup_ends)
        if here.total >= bounds.min:
            return Verdict(True, explain.all_back(run))
        return Verdict(False, explain.below_min(run, here.total, now))
    if here.total < bounds.min or here.present == 0:
        return Verdict(False, explain.too_few(run, here.total, now))
    if run.last_call_ends is not None and now >= run.last_call_ends:
        return Verdict(True, f"the last call ended, and at most {wording.nodes(bounds.max)} are wanted")
    return Verdict(False, explain.last_call(run, here.total, now), run.last_call_ends)


def minimum_reached(run: Run, now: float) -> bool:
    """Whether a first round has enough nodes for a last call to run."""
    here = turnout(run, now)
    return not run.regrouping and here.present > 0 and here.total >= run.bounds.min


def seal(run: Run, why: str, now: float, mint: str, policies: Mapping[str, RankPolicy]) -> Step:
    """Seal the round with everybody who has a place, and let the rest stand by."""
    here = turnout(run, now)
    run = _charge_the_late(run, now)
    queue = sorted(run.queue.values(), key=_arrival)
    spares = sorted(run.spares.values(), key=_arrival)
    newcomers = here.present - len(run.returned)
    chosen = [*run.returned.values(), *queue[:newcomers], *spares[: here.spares]]
    policy = run.settings.rank_policy
    if policy not in policies:
        # A server that took over may lack what the run was founded with; the run goes on all the same.
        why = f"{why} (there is no rank policy {policy!r} here: {STICKY!r} is used)"
        policy = STICKY
    ranking = rank(
        policies,
        policy,
        [Candidate(w.node, w.arrival, run.ranks.get(w.node.id)) for w in chosen],
    )
    world = World(run.incarnation, run.round + 1, f"s{mint}", ranking.members, now)
    ranks = SortedMap.build((node.id, r) for r, node in enumerate(world.members))
    sealed = enter(
        run,
        Phase.SEALED,
        round=world.round,
        world=world,
        ranks=ranks,
        active=ranks,
        returned=SortedMap[str, WaitingNode](),
        queue=SortedMap.build((w.node.id, w) for w in queue[newcomers:]),
        spares=SortedMap.build((w.node.id, w) for w in spares[here.spares :]),
        last_call_ends=None,
        regroup_ends=None,
        hold_ends=None,
        told_waiting=0,
        told_at=now,
    )
    surplus = tuple(
        Notice(w.node.id, StandBy(run.incarnation, sealed.round, explain.standing_by(sealed)))
        for w in queue[newcomers:]
    )
    told = (Notice((ranks,), Sealed(world, ranking.remarks)), *surplus)
    words = f"round {world.round} is sealed with {wording.nodes(world.size)}: {why}"
    return Step(sealed, told, words, Durability.SEAL_OR_CLOSE)


def _charge_the_late(run: Run, now: float) -> Run:
    """Members who did not come back in time will return as newcomers, and would break the next world as often."""
    if run.world is not None and run.regrouping:
        for old_rank in run.active.values():
            run = charge(run, run.world.members[old_rank].name, now)
    return run


def _arrival(waiter: WaitingNode) -> int:
    return waiter.arrival
