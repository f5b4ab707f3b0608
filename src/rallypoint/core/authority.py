"""One run as an authority hosts it: the transition, liveness, and who is to be told what.  Sans-IO.

A hosting feeds it messages, connection ends and the time, and sends what comes out.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rallypoint.core import liveness, recovery, transition
from rallypoint.core.changes import Step
from rallypoint.core.clock import AwakeClock, just_woke
from rallypoint.core.events import Announced, Event, Joined, Left, Lost, Message
from rallypoint.core.liveness import Liveness
from rallypoint.core.model import Phase, Run, Settings
from rallypoint.core.notices import Said, Sealed, spell_out
from rallypoint.core.ranks import POLICIES, RankPolicy

HOLD_S = Settings().hold_s


class Authority(msgspec.Struct, frozen=True):
    """What an authority holds of one run."""

    run: Run
    life: Liveness = Liveness()


class Output(msgspec.Struct, frozen=True):
    """What came of an input: the new state, what to send to whom, the reasons, who was given up.

    `durable` is true when a world was sealed or the run closed: with a state file, write before you send (rule 14).
    """

    authority: Authority
    sends: tuple[tuple[str, Said], ...] = ()
    why: str = ""
    losses: tuple[Lost, ...] = ()
    durable: bool = False


def open_run(run_id: str, started_at: float, now: float, hold_s: float = HOLD_S) -> Authority:
    """A run of which this authority has no record."""
    return Authority(recovery.blank(run_id, started_at, now, hold_s))


def restore(run: Run, now: float) -> Authority:
    """A run from this authority's own record: its members are presumed to be there until they fail to speak up."""
    presumed = [*run.active, *run.returned, *run.queue, *run.spares, *run.paused]
    return Authority(run, liveness.expect(Liveness(), presumed, run.settings.hold_s, now))


def receive(
    authority: Authority,
    sender: str,
    connection: int,
    message: Message,
    now: float,
    mint: str,
    policies: Mapping[str, RankPolicy] = POLICIES,
) -> Output:
    """A node said something on one of its connections."""
    settings = message.settings if isinstance(message, (Joined, Announced)) else authority.run.settings
    life, fresh = liveness.heard(authority.life, sender, connection, settings, now)
    if not fresh:
        return Output(authority, why=f"{sender} spoke on a connection that it has replaced")
    if isinstance(message, Left):
        life = liveness.forget(life, sender)
    return _done(Authority(authority.run, life), transition.step(authority.run, message, now, mint, policies))


def apply(
    authority: Authority, event: Event, now: float, mint: str, policies: Mapping[str, RankPolicy] = POLICIES
) -> Output:
    """Something that no node said: an administrator's word."""
    life = liveness.forget(authority.life, event.node_id) if isinstance(event, Lost) else authority.life
    return _done(Authority(authority.run, life), transition.step(authority.run, event, now, mint, policies))


def connection_ended(
    authority: Authority, node_id: str, connection: int, now: float, clock: AwakeClock | None = None
) -> Output:
    """A connection of a node is gone; whether the node is, `tick` will tell.  `clock` is the one that tells `now`."""
    settings = authority.run.settings
    our_fault = clock is not None and just_woke(clock, settings.heartbeat_timeout_s, now)
    life = liveness.ended(authority.life, node_id, connection, settings, now, our_fault=our_fault)
    return Output(Authority(authority.run, life))


def tick(
    authority: Authority,
    now: float,
    mint: str,
    policies: Mapping[str, RankPolicy] = POLICIES,
    beats: Mapping[str, float] = liveness.NO_BEATS,
) -> Output:
    """Time passed; due whenever `wake_at` says so."""
    life, losses = liveness.tick(authority.life, authority.run.settings, now, beats)
    step = transition.time_passed(authority.run, losses, now, mint, policies)
    return _done(Authority(authority.run, life), step, losses)


def wake_at(authority: Authority, now: float) -> float | None:
    """When `tick` is due next after `now`; None where only a message can change anything."""
    due = (transition.wake_at(authority.run, now), liveness.wake_at(authority.life))
    soonest = min((moment for moment in due if moment is not None), default=None)
    # Never at this very moment, so that rounding cannot make a shell spin.
    return None if soonest is None else max(soonest, now + 0.001)


def is_idle(authority: Authority) -> bool:
    """Whether nothing would be lost by forgetting the run."""
    run = authority.run
    return run.phase is Phase.GATHERING and not run.live and not authority.life.signs


def _done(authority: Authority, step: Step, losses: tuple[Lost, ...] = ()) -> Output:
    return Output(
        authority=Authority(step.run, authority.life),
        sends=tuple(sent for notice in step.notices for sent in spell_out(notice)),
        why=step.why,
        losses=losses,
        durable=_must_sync(authority.run, step),
    )


def _must_sync(before: Run, step: Step) -> bool:
    sealed = any(isinstance(notice.what, Sealed) for notice in step.notices)
    return sealed or (step.run.phase is Phase.CLOSED and before.phase is not Phase.CLOSED)
