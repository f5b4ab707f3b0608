"""One run as an authority hosts it: the transition, liveness, and who is to be told what.  Sans-IO.

A hosting feeds it messages, connection ends and the time, and sends what comes out.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rallypoint.core import recovery, transition
from rallypoint.core.changes import Durability, Step, change
from rallypoint.core.messages import Announced, Event, Evicted, Joined, Left, Lost, Message
from rallypoint.core.model import Phase, Run, Settings
from rallypoint.core.notices import Said, spell_out
from rallypoint.core.ranking import POLICIES, RankPolicy
from rallypoint.server import liveness
from rallypoint.server.liveness import Liveness

HOLD_S = Settings().hold_s


class Authority(msgspec.Struct, frozen=True):
    """What an authority holds of one run."""

    run: Run
    life: Liveness = Liveness()


class Output(msgspec.Struct, frozen=True):
    """What came of an input: the new state, what to send to whom, the reasons, who was given up.

    `durability` says whether it must be recorded before anybody hears of it (rule 17c).
    """

    authority: Authority
    sends: tuple[tuple[str, Said], ...] = ()
    why: str = ""
    losses: tuple[Lost, ...] = ()
    durability: Durability = Durability.NONE


def open_run(run_id: str, started_at: float, now: float, hold_s: float = HOLD_S) -> Authority:
    """A run of which this authority has no record."""
    return Authority(recovery.blank(run_id, started_at, now, hold_s))


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
    gone = event.node_id if isinstance(event, Lost) else event.node.id if isinstance(event, Evicted) else None
    life = liveness.forget(authority.life, gone) if gone is not None else authority.life
    return _done(Authority(authority.run, life), transition.step(authority.run, event, now, mint, policies))


def hinder(
    authority: Authority, why: str, now: float, mint: str, policies: Mapping[str, RankPolicy] = POLICIES
) -> Output:
    """From now on nothing is sealed, for this reason; with an empty one, what is due is sealed now (rule 17e)."""
    hindered = change(authority.run, hindrance=why)
    return _done(Authority(hindered, authority.life), transition.time_passed(hindered, (), now, mint, policies))


def connection_ended(
    authority: Authority, node_id: str, connection: int, now: float, *, our_fault: bool = False
) -> Output:
    """A connection of a node is gone; whether the node is, `tick` will tell.

    `our_fault` says that the server was stalled just before, so that the node may have hung up for that reason.
    """
    settings = authority.run.settings
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
    is_closed = authority.run.phase is Phase.CLOSED
    life, losses = liveness.tick(authority.life, authority.run.settings, now, beats, is_closed=is_closed)
    step = transition.time_passed(authority.run, losses, now, mint, policies)
    return _done(Authority(authority.run, life), step, losses)


def deserted_at(
    authority: Authority, losses: tuple[Lost, ...], now: float, beats: Mapping[str, float] = liveness.NO_BEATS
) -> float | None:
    """When most nodes will have been silent for the time-out, where losses show that they may be (rule 17e)."""
    if not losses or authority.run.phase is Phase.CLOSED:
        return None
    return liveness.deserted_at(authority.life, losses, authority.run.settings, now, beats)


def give_up_silent(
    authority: Authority,
    beats: Mapping[str, float],
    now: float,
    mint: str,
    policies: Mapping[str, RankPolicy] = POLICIES,
) -> Output:
    """Nobody else served in place of this server, which most nodes do not reach: they are lost (rule 17e)."""
    life, losses = authority.life, []
    for node_id, heard in liveness.silent(life, authority.run.settings, now, beats).items():
        life = liveness.forget(life, node_id)
        losses.append(Lost(node_id, f"nothing was heard of it for {now - heard:.1f} s, and nobody else serves"))
    step = transition.time_passed(authority.run, losses, now, mint, policies)
    return _done(Authority(authority.run, life), step, tuple(losses))


def wake_at(authority: Authority, now: float) -> float | None:
    """When `tick` is due next after `now`; None where only a message can change anything."""
    due = (transition.wake_at(authority.run, now), liveness.wake_at(authority.life))
    soonest = min((moment for moment in due if moment is not None), default=None)
    # Never at this very moment, so that rounding cannot make a shell spin.
    return None if soonest is None else max(soonest, now + 0.001)


def is_idle(authority: Authority) -> bool:
    """Whether nothing would be lost by forgetting the run: nobody is in it, and nobody is kept out of it."""
    run = authority.run
    return run.phase is Phase.GATHERING and not run.live and run.evictions_end is None and not authority.life.signs


def _done(authority: Authority, step: Step, losses: tuple[Lost, ...] = ()) -> Output:
    return Output(
        authority=Authority(step.run, authority.life),
        sends=tuple(sent for notice in step.notices for sent in spell_out(notice)),
        why=step.why,
        losses=losses,
        durability=step.durability,
    )
