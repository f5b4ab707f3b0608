"""One pure function: a run, an event and the time give the new run, the notices to send, and the reason in words.

No clock, no IO, no threads; randomness comes from the shell as `mint`, a fresh random text for each call.  A transition
costs O(log N); only a seal looks at everybody, and each of them has paid for it by joining.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rallypoint.core import evictions, explain, joining, leaving, recovery, sealing
from rallypoint.core.changes import Step, break_world, change, close, emptied, tell
from rallypoint.core.events import Event, Evicted, EvictionLifted, Lost
from rallypoint.core.model import EndedIncarnation, Phase, Run, WaitingNode, find_waiter
from rallypoint.core.notices import Notice
from rallypoint.messages.notices import Broken, Fenced, KeepWaiting, Refused, RunClosed, StandBy, WaitingCount
from rallypoint.messages.requests import Announced, CloseAsked, Joined, Left, Standing
from rallypoint.messages.types import Role
from rallypoint.ranking import POLICIES, RankPolicy
from rallypoint.sorted_map import SortedMap

TELL_INTERVAL_S = 1.0


def step(run: Run, event: Event, now: float, mint: str, policies: Mapping[str, RankPolicy] = POLICIES) -> Step:
    """Take one event."""
    if isinstance(event, (Joined, Announced)) and event.settings.rank_policy not in policies and _may_found(run, event):
        # Whoever founds a run sets its policy: one that nobody knows would let it never be sealed.
        why = f"there is no rank policy {event.settings.rank_policy!r}; there are {', '.join(sorted(policies))}"
        return Step(run, tell(event.node.id, Refused(why)), why)
    heard = _hear(run, event, now, mint)
    settled = _settle(heard.run, now, mint, policies).after(heard)
    if isinstance(event, (Joined, Announced)):
        return _answer(settled, event, now)
    return settled


def _may_found(run: Run, said: Joined | Announced) -> bool:
    """Whether a run may come to be as this node asks for it."""
    return not run.live or (run.phase is Phase.RECOVERING and said.seat is None)


def time_passed(
    run: Run, losses: Iterable[Lost], now: float, mint: str, policies: Mapping[str, RankPolicy] = POLICIES
) -> Step:
    """Time passed, and meanwhile some nodes were lost: taken together, so that no world is sealed with one of them."""
    heard = Step(run)
    for loss in losses:
        heard = leaving.lost(heard.run, loss.node_id, loss.why, now).after(heard)
    return _settle(heard.run, now, mint, policies).after(heard)


def wake_at(run: Run, now: float) -> float | None:
    """When `TimePassed` is due next after a step at `now`; None where only an event can change anything."""
    due = [run.hold_ends, run.last_call_ends, run.regroup_ends, run.evictions_end]
    if run.predecessor is not None:
        due.append(run.predecessor.until)
    if run.closing is not None:
        due.append(run.closing.at + run.settings.closed_ttl_s)
    first_pause = run.pauses.first()
    if first_pause is not None:
        due.append(first_pause[0])
    world = run.current
    if world is not None:
        due += [world.sealed_at + run.settings.admit_delay_s, run.told_at + TELL_INTERVAL_S]
    return min((moment for moment in due if moment is not None and moment > now), default=None)


def waiting_count(run: Run, now: float) -> int:
    """How many newcomers the current world could admit (rule 6b); none before it is old enough, none once it ends."""
    world = run.current
    if world is None or run.ending_started or now < world.sealed_at + run.settings.admit_delay_s:
        return 0
    return min(len(run.queue), run.bounds.max - world.size)


def situation(run: Run, now: float) -> str:
    """Where the run stands, in one sentence (rule 11)."""
    why = sealing.decide(run, now).why if run.phase is Phase.GATHERING else ""
    return explain.situation(run, now, why)


def wait_ends(run: Run, now: float) -> float | None:
    """When the wait that the run is in ends at most; None where it waits for nothing, or nobody knows."""
    return sealing.decide(run, now).until if run.phase is Phase.GATHERING else run.hold_ends


def _hear(run: Run, event: Event, now: float, mint: str) -> Step:
    if isinstance(event, (Joined, Announced)):
        run = _never_below(run, event)
        if _stood_by_before(run, event):
            return _tell_ended(run, event)
        if _is_stranger(run, event):
            return _fence_stranger(run, event, now)
        if (eviction := evictions.against(run, event, now)) is not None:
            return evictions.keep_out(run, event, eviction, now)
        if recovery.is_forgotten(run, event):
            run = recovery.forgotten(run, now)
    if isinstance(event, Joined):
        return joining.join(run, event, now, mint)
    if isinstance(event, Announced):
        return _announced(run, event, now, mint)
    if isinstance(event, Left):
        return leaving.left(run, event.node_id, event.reason, event.seal_id, event.why, now)
    if isinstance(event, Lost):
        return leaving.lost(run, event.node_id, event.why, now)
    if isinstance(event, Evicted):
        return leaving.evicted(run, event, now)
    if isinstance(event, EvictionLifted):
        return evictions.lift(run, event.node, now)
    if isinstance(event, CloseAsked):
        return _close_asked(run, event, now, mint)
    return Step(run)


def _never_below(run: Run, said: Joined | Announced) -> Run:
    """The next round is above all that were ever spoken of (rule 14)."""
    spoken_of = max(said.round_seen, said.seat.round if said.seat else 0)
    return change(run, round=spoken_of) if spoken_of > run.round else run


def _is_stranger(run: Run, said: Joined | Announced) -> bool:
    """Whether a node speaks of a world in another incarnation of the run."""
    knows = run.phase is not Phase.RECOVERING or bool(run.incarnation)
    return said.seat is not None and said.incarnation != run.incarnation and knows


def _fence_stranger(run: Run, said: Joined | Announced, now: float) -> Step:
    """It cannot be told of this incarnation's worlds: it must come anew, under another identity (rule 9).

    A member of the incarnation that ended before this one is told how it ended (rules 1, 17h).
    """
    assert said.seat is not None, "a stranger names its world"
    node, seat = said.node, said.seat
    if run.last is not None and said.incarnation == run.last.incarnation:
        return _tell_ended(run, said)
    why = f"round {seat.round} of {node.name} was in an incarnation of the run that is gone"
    fenced = Step(run, tell(node.id, Fenced(seat.seal_id, why)), why)
    return leaving.lost(fenced.run, node.id, "it speaks of another incarnation", now).after(fenced)


def _stood_by_before(run: Run, said: Joined | Announced) -> bool:
    """Whether a node stands by in the incarnation that ended before this one: it ends with that (rule 7)."""
    stands_by = isinstance(said, Announced) and said.standing is Standing.SPARE and said.seat is None
    return stands_by and run.last is not None and said.incarnation == run.last.incarnation


def _tell_ended(run: Run, said: Joined | Announced) -> Step:
    """A node of the incarnation before this one is told how that ended (rules 1, 17h)."""
    last = run.last
    assert last is not None, "only an incarnation that is known to have ended is told of"
    closed = RunClosed(last.incarnation, last.ending, last.why)
    return Step(run, tell(said.node.id, closed), f"{said.node.name} was told that its incarnation of the run has ended")


def _close_asked(run: Run, event: CloseAsked, now: float, mint: str) -> Step:
    if run.phase is Phase.CLOSED:
        return Step(run, (), f"{event.by} asked to close what is closed")
    heard = recovery.adopt_at_once(run, now)
    if heard.run.phase is Phase.CLOSED:
        return heard
    if event.incarnation and heard.run.incarnation and event.incarnation != heard.run.incarnation:
        return Step(run, (), f"{event.by} asked to close an incarnation that is gone")
    known = heard.run if heard.run.incarnation else change(heard.run, incarnation=event.incarnation or f"r{mint}")
    return close(known, event.ending, event.why or f"{event.by} closed it", now).after(heard)


def _announced(run: Run, said: Announced, now: float, mint: str) -> Step:
    """A node says all that it knows (rule 14)."""
    node, seat, standing = said.node, said.seat, said.standing
    if standing in (Standing.WAITING, Standing.SPARE):
        return joining.join(run, said, now, mint)
    if standing is Standing.CLOSED:
        return _heard_closed(run, said, now, mint)
    if run.phase is Phase.CLOSED and said.incarnation == run.incarnation:
        return joining.told_closed(run, node)
    if seat is None:
        return Step(run, (), f"{node.name} speaks of a world without naming it")
    if run.phase is Phase.RECOVERING:
        holds, finished = recovery.standing_of(said)
        return recovery.heard_of(run, said, seat, now, holds=holds, finished=finished)
    if standing is Standing.FINISHED:
        run = recovery.recognised(run, node, seat)
    world = run.world
    if node.id in run.finished:
        return Step(run)
    if world is None or node.id not in run.active:
        if find_waiter(run, node.id) is not None:
            # It was given up, came back, and only then heard of the world that it had been in: or an old message.
            return Step(run, tell(node.id, Broken(seat.seal_id, f"round {seat.round} is broken")))
        why = f"{node.name} is no longer part of round {seat.round}: it was given up or left behind"
        return Step(run, tell(node.id, Fenced(seat.seal_id, why)), why)
    if world.seal_id != seat.seal_id:
        why = f"round {world.round} came after it"
        return Step(run, tell(node.id, Broken(seat.seal_id, why)), f"{node.name} still speaks of round {seat.round}")
    if standing is Standing.FINISHED:
        return leaving.finish(run, node.id, now)
    if run.phase is Phase.GATHERING:
        told = tell(node.id, Broken(seat.seal_id, f"round {seat.round} is broken"))
        return Step(run, told if standing is Standing.HOLDS else ())
    if standing is Standing.BROKEN:
        return break_world(run, f"{node.name} had been told that it is", now)
    if said.waiting != run.told_waiting:
        return Step(run, tell(node.id, WaitingCount(world.seal_id, run.told_waiting)))
    return Step(run)


def _heard_closed(run: Run, said: Announced, now: float, mint: str) -> Step:
    """Closed is sticky: a node that was told so is right, whatever this server remembers (rule 14)."""
    if run.phase is Phase.RECOVERING:
        return recovery.closed_before(run, said, now, mint)
    if said.incarnation != run.incarnation or not run.incarnation:
        return Step(run)
    if run.phase is Phase.CLOSED:
        return Step(recovery.stays(run, said))
    return close(run, said.ending, said.why, now)


def _settle(run: Run, now: float, mint: str, policies: Mapping[str, RankPolicy]) -> Step:
    """Whatever is due now, in order: the end of a tombstone, of a hold, of pauses; a seal; the waiting count."""
    run = evictions.expire(run, now)
    if run.phase is Phase.CLOSED:
        return _bury(run, now)
    if run.phase is Phase.RECOVERING:
        run = _call(recovery.give_up_predecessor(run, now), now)
    settled = Step(run)
    if run.phase is Phase.RECOVERING and recovery.complete(run, now):
        settled = recovery.conclude(run, now, mint)
        settled = leaving.close_if_too_few(settled.run, now).after(settled)
    settled = _release(settled.run, now).after(settled)
    if settled.run.phase is Phase.GATHERING:
        settled = _gather(settled.run, now, mint, policies).after(settled)
    if settled.run.phase is Phase.SEALED:
        settled = _tell_waiting(settled.run, now).after(settled)
    return settled


def _bury(run: Run, now: float) -> Step:
    """A tombstone that is old enough is forgotten; only the round number stays (rules 1 and 3)."""
    assert run.closing is not None, "a closed run knows how it closed"
    if now < run.closing.at + run.settings.closed_ttl_s:
        return Step(run)
    last = EndedIncarnation(run.incarnation, run.closing.ending, run.closing.why) if run.incarnation else run.last
    return Step(emptied(run, last), (), "the closed run is forgotten")


def _release(run: Run, now: float) -> Step:
    """Let those in whose pause is over."""
    released: list[str] = []
    while (first := run.pauses.first()) is not None and first[0] <= now:
        waiter = run.paused[first[1]]
        field = "spares" if waiter.node.role is Role.SPARE else "queue"
        table: SortedMap[str, WaitingNode] = getattr(run, field)
        run = change(
            run,
            paused=run.paused.without(first[1]),
            pauses=run.pauses.without(first),
            **{field: table.set(first[1], waiter)},
        )
        released.append(waiter.node.name)
    return Step(run, (), f"{', '.join(released)} may come in again" if released else "")


def _gather(run: Run, now: float, mint: str, policies: Mapping[str, RankPolicy]) -> Step:
    """Start or cancel the last call, and seal when the rule says so."""
    if not run.live:
        return Step(change(run, last_call_ends=None, regroup_ends=None))
    run = _call(run, now)
    verdict = sealing.decide(run, now)
    return sealing.seal(run, verdict.why, now, mint, policies) if verdict.seal else Step(run)


def _call(run: Run, now: float) -> Run:
    """The last call begins when a first round has its minimum, also while the server still listens (rules 4, 14)."""
    if not sealing.minimum_reached(run, now):
        return run if run.last_call_ends is None else change(run, last_call_ends=None)
    if run.last_call_ends is None:
        return change(run, last_call_ends=now + run.settings.last_call_s)
    return run


def _tell_waiting(run: Run, now: float) -> Step:
    """Tell the members when newcomers can be admitted: at once whether, and within a second how many (rule 6b)."""
    world, count = run.current, waiting_count(run, now)
    assert world is not None, "only a current world admits"
    turned = bool(count) != bool(run.told_waiting)
    if count == run.told_waiting or not (turned or now >= run.told_at + TELL_INTERVAL_S):
        return Step(run)
    notice = Notice((run.active,), WaitingCount(world.seal_id, count))
    return Step(change(run, told_waiting=count, told_at=now), (notice,))


def _answer(settled: Step, event: Joined | Announced, now: float) -> Step:
    """Tell a node that asked for a place what it waits for (rule 11); a spare that knows it is one needs no telling."""
    run, node_id = settled.run, event.node.id
    asked = isinstance(event, Joined) or event.standing in (Standing.WAITING, Standing.SPARE)
    waiter = find_waiter(run, node_id)
    if not asked or waiter is None or run.phase is Phase.CLOSED:
        return settled
    said = waiting_for(run, waiter, now)
    if isinstance(event, Announced) and event.standing is Standing.SPARE and isinstance(said, StandBy):
        return settled
    return Step(run, tell(node_id, said)).after(settled)


def waiting_for(run: Run, waiter: WaitingNode, now: float) -> KeepWaiting | StandBy:
    """What a node that holds no world is told."""
    node_id, world = waiter.node.id, run.current
    full = world is not None and world.size >= run.bounds.max
    # Whether a recorded incarnation goes on is decided by the nodes that know it: nobody is told its name before.
    incarnation = run.incarnation if waiter.request is None else waiter.request.incarnation
    if node_id in run.spares or (node_id in run.queue and (full or run.ending_started)):
        return StandBy(incarnation, _last_round(run), explain.standing_by(run))
    why, until = _wait(run, waiter, now)
    at_most_s = None if until is None else max(until - now, 0.0)
    return KeepWaiting(incarnation, _last_round(run), why, at_most_s)


def _wait(run: Run, waiter: WaitingNode, now: float) -> tuple[str, float | None]:
    """What a node waits for, and until when at most."""
    if waiter.node.id in run.paused:
        return explain.pause(run, waiter, now), waiter.paused_until
    if run.phase is Phase.RECOVERING:
        return explain.recovering(run, now), run.hold_ends
    if run.phase is Phase.SEALED:
        return explain.admission(run, now), None
    verdict = sealing.decide(run, now)
    return verdict.why, verdict.until


def _last_round(run: Run) -> int:
    """The last round of this incarnation, 0 if it has sealed none."""
    return run.round if run.world is not None or run.phase is Phase.RECOVERING else 0
