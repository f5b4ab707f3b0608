"""One pure function: a run, an event and the time give the new run, the notices to send, and the reason in words.

No clock, no IO, no threads; randomness comes from the shell as `mint`, a fresh random text for each call.  A transition
costs O(log N); only a seal looks at all nodes, and each of them has paid for it by joining.
"""

from __future__ import annotations

from collections.abc import Iterable

from rallypoint.core import evictions, explain, joining, leaving, recovery, sealing
from rallypoint.core.changes import Notice, Step, break_world, change, close, depart, emptied, tell, wait
from rallypoint.core.events import Event, Evicted, EvictionLifted, Lost
from rallypoint.core.model import Phase, Run, WaitingNode, find_waiter
from rallypoint.messages.notices import Broken, Fenced, KeepWaiting, Refused, RunClosed, StandBy, WaitingCount
from rallypoint.messages.requests import Announced, CloseAsked, Joined, Left, Standing
from rallypoint.messages.types import MOST_ROUNDS, MOST_SEEN, Role
from rallypoint.ranking import POLICIES, Policies

TELL_INTERVAL_S = 1.0


def step(run: Run, event: Event, now: float, mint: str, policies: Policies = POLICIES) -> Step:
    """Take one event."""
    if not isinstance(event, (Joined, Announced)):
        heard = _hear(run, event, now, mint)
        return _settle(heard.run, now, mint, policies).after(heard)
    may_found = not run.live or (run.phase is Phase.RECOVERING and event.seat is None)
    if may_found and event.settings.rank_policy not in policies:
        # The founder of a run sets its policy: with an unknown one it could never be sealed.
        why = f"there is no rank policy {event.settings.rank_policy!r}; there are {', '.join(sorted(policies))}"
        return Step(run, tell(event.node.id, Refused(why)), why)
    heard = _hear_node(run, event, now, mint)
    return _answer(_settle(heard.run, now, mint, policies).after(heard), event, now)


def time_passed(run: Run, losses: Iterable[Lost], now: float, mint: str, policies: Policies = POLICIES) -> Step:
    """Time passed, and meanwhile some nodes were lost: taken together, so that no world is sealed with one of them."""
    heard = Step(run)
    for loss in losses:
        heard = leaving.lost(heard.run, loss.node_id, loss.why, now).after(heard)
    return _settle(heard.run, now, mint, policies).after(heard)


def wake_at(run: Run, now: float) -> float | None:
    """When `TimePassed` is due next after a step at `now`; None where only an event can change anything."""
    world, settings, first_pause = run.current, run.settings, run.pauses.first()
    due = [run.hold_ends, run.last_call_ends, run.regroup_ends, run.evictions_end]
    due.append(run.predecessor.until if run.predecessor is not None else None)
    due.append(run.closing.at + settings.closed_ttl_s if run.closing is not None else None)
    due.append(first_pause[0] if first_pause is not None else None)
    if world is not None:
        due += [world.sealed_at + settings.admit_delay_s, run.told_at + TELL_INTERVAL_S]
    return min((moment for moment in due if moment is not None and moment > now), default=None)


def waiting_count(run: Run, now: float) -> int:
    """How many newcomers the current world could admit (rule 6b); none before it is old enough, none once it ends."""
    world = run.current
    if world is None or run.ending_started or now < world.sealed_at + run.settings.admit_delay_s:
        return 0
    return min(len(run.queue), run.bounds.max - world.size)


def situation(run: Run, now: float) -> str:
    """Where the run stands, in one sentence (rule 11)."""
    if run.closing is not None:
        return f"closed as {run.closing.ending.value}: {run.closing.why}"
    if run.phase is Phase.RECOVERING:
        return explain.recovering(run, now)
    return sealing.decide(run, now).why if run.current is None else explain.running(run, run.current, now)


def wait_ends(run: Run, now: float) -> float | None:
    """When the wait that the run is in ends at most; None where it waits for nothing, or the end is not known."""
    return sealing.decide(run, now).until if run.phase is Phase.GATHERING else run.hold_ends


def _hear(run: Run, event: Event, now: float, mint: str) -> Step:
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


def _hear_node(run: Run, said: Joined | Announced, now: float, mint: str) -> Step:
    spoken_of = max(said.round_seen, said.seat.round if said.seat else 0)
    if run.round < spoken_of <= (MOST_ROUNDS if run.phase is Phase.RECOVERING else MOST_SEEN):
        run = change(run, round=spoken_of)  # the next round is above all that nodes ever spoke of (rule 14)
    outsider = _answer_outsider(run, said, now)
    if outsider is not None:
        return outsider
    eviction = evictions.against(run, said, now)
    if eviction is not None:
        return evictions.keep_out(run, said, eviction, now)
    if recovery.is_forgotten(run, said):
        run = recovery.forgotten(run, now)
    if isinstance(said, Announced) and said.standing not in (Standing.WAITING, Standing.SPARE):
        return _announced(run, said, now)
    return joining.join(run, said, now, mint)


def _answer_outsider(run: Run, said: Joined | Announced, now: float) -> Step | None:
    """The answer to a node of another incarnation of the run; None where it is of none, or may be of this one.

    A node of the incarnation that ended before this one, a spare too, is told how it ended (rules 1, 7, 17h).  A member
    of any other cannot be told of this incarnation's worlds: it must come anew, under another identity (rule 9).
    """
    node, seat, last = said.node, said.seat, run.last
    stands_by = isinstance(said, Announced) and said.standing is Standing.SPARE and seat is None
    knows = run.phase is not Phase.RECOVERING or bool(run.incarnation)
    is_stranger = seat is not None and said.incarnation != run.incarnation and knows
    if (stands_by or is_stranger) and last is not None and said.incarnation == last.incarnation:
        closed = RunClosed(last.incarnation, last.ending, last.why)
        return Step(run, tell(node.id, closed), f"{node.name} was told that its incarnation of the run has ended")
    if seat is None or not is_stranger:
        return None
    why = f"round {seat.round} of {node.name} was in an incarnation of the run that is gone"
    fenced = Step(run, tell(node.id, Fenced(seat.seal_id, why)), why)
    return leaving.lost(run, node.id, "it speaks of another incarnation", now).after(fenced)


def _close_asked(run: Run, event: CloseAsked, now: float, mint: str) -> Step:
    if run.phase is Phase.CLOSED:
        return Step(run, (), f"{event.by} asked to close what is closed")
    heard = recovery.adopt(run, now)
    if heard.run.phase is Phase.CLOSED:
        return heard
    if event.incarnation and heard.run.incarnation and event.incarnation != heard.run.incarnation:
        return Step(run, (), f"{event.by} asked to close an incarnation that is gone")
    known = change(heard.run, incarnation=heard.run.incarnation or event.incarnation or f"r{mint}")
    return close(known, event.ending, event.why or f"{event.by} closed it", now).after(heard)


def _announced(run: Run, said: Announced, now: float) -> Step:
    """A node that asks for no place says all that it knows (rule 14)."""
    node, seat, standing = said.node, said.seat, said.standing
    if standing is Standing.CLOSED:
        return _heard_closed(run, said, now)
    if run.phase is Phase.CLOSED and said.incarnation == run.incarnation:
        return joining.told_closed(run, node)
    if seat is None:
        return Step(run, (), f"{node.name} speaks of a world without naming it")
    if run.phase is Phase.RECOVERING:
        return recovery.heard_of(run, said, seat, now)
    if standing is Standing.FINISHED:
        run = recovery.recognised(run, node, seat)
    world = run.world
    if node.id in run.finished:
        return Step(run)
    if world is None or node.id not in run.active:
        if find_waiter(run, node.id) is not None:
            # It was given up, came back, and only then heard of the world that it had been in: or an old message.
            return Step(run, tell(node.id, Broken(seat.seal_id, f"round {seat.round} is broken")))
        return joining.fence(run, node, seat)
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


def _heard_closed(run: Run, said: Announced, now: float) -> Step:
    """Closed is sticky: a node that was told so is right, whatever this server remembers (rule 14)."""
    if run.phase is Phase.RECOVERING:
        return recovery.closed_before(run, said, now)
    if said.incarnation != run.incarnation or not run.incarnation:
        return Step(run)
    if run.phase is Phase.CLOSED:
        return Step(recovery.stays(run, said))
    return close(run, said.ending, said.why, now)


def _settle(run: Run, now: float, mint: str, policies: Policies) -> Step:
    """Whatever is due now, in order: the end of evictions, a tombstone, a hold, pauses; a seal; the waiting count."""
    if run.evictions_end is not None and run.evictions_end <= now:
        run = change(run, evictions_end=None)
    if run.closing is not None:
        # A tombstone that is old enough is forgotten (rule 1).
        is_old = now >= run.closing.at + run.settings.closed_ttl_s
        return Step(emptied(run), (), "the closed run is forgotten") if is_old else Step(run)
    if run.phase is Phase.RECOVERING:
        run = sealing.with_last_call(recovery.give_up_predecessor(run, now), now)
    settled = Step(run)
    if run.phase is Phase.RECOVERING and recovery.complete(run, now):
        settled = recovery.conclude(run, now, mint)
    settled = _release(settled.run, now).after(settled)
    settled = leaving.close_if_too_few(settled.run, now).after(settled)
    if settled.run.phase is Phase.GATHERING:
        settled = _gather(settled.run, now, mint, policies).after(settled)
    if settled.run.phase is Phase.SEALED:
        settled = _tell_waiting(settled.run, now).after(settled)
    return settled


def _release(run: Run, now: float) -> Step:
    """Admit the nodes whose pause is over."""
    released: list[str] = []
    while (first := run.pauses.first()) is not None and first[0] <= now:
        waiter = run.paused[first[1]]
        run = wait(depart(run, first[1]), "spares" if waiter.node.role is Role.SPARE else "queue", waiter)
        released.append(waiter.node.name)
    return Step(run, (), f"{', '.join(released)} may come in again" if released else "")


def _gather(run: Run, now: float, mint: str, policies: Policies) -> Step:
    """Start or cancel the last call, and seal when the rule says so."""
    if not run.live:
        return Step(change(run, last_call_ends=None, regroup_ends=None))
    run = sealing.with_last_call(run, now)
    decision = sealing.decide(run, now)
    return sealing.seal(run, decision.why, now, mint, policies) if decision.seal else Step(run)


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
    run, standing = settled.run, event.standing if isinstance(event, Announced) else Standing.WAITING
    waiter = find_waiter(run, event.node.id)
    if standing not in (Standing.WAITING, Standing.SPARE) or waiter is None or run.phase is Phase.CLOSED:
        return settled
    said = waiting_for(run, waiter, now)
    if standing is Standing.SPARE and isinstance(said, StandBy):
        return settled
    return Step(run, tell(event.node.id, said)).after(settled)


def waiting_for(run: Run, waiter: WaitingNode, now: float) -> KeepWaiting | StandBy:
    """What a node that holds no world is told."""
    node_id, world = waiter.node.id, run.current
    full = world is not None and world.size >= run.bounds.max
    # Whether a recorded incarnation goes on is decided by the nodes that know it: no other node is told its name before.
    incarnation = run.incarnation if waiter.request is None else waiter.request.incarnation
    last_round = run.round if run.world is not None or run.phase is Phase.RECOVERING else 0
    if node_id in run.spares or (node_id in run.queue and (full or run.ending_started)):
        return StandBy(incarnation, last_round, explain.standing_by(run))
    until: float | None = None
    if node_id in run.paused:
        why, until = explain.pause(waiter.node.name, waiter.paused_until, now), waiter.paused_until
    elif run.phase is Phase.RECOVERING:
        why, until = explain.recovering(run, now), run.hold_ends
    elif world is not None:
        why = explain.admission(run, world, now)
    else:
        decision = sealing.decide(run, now)
        why, until = decision.why, decision.until
    return KeepWaiting(incarnation, last_round, why, None if until is None else max(until - now, 0.0))
