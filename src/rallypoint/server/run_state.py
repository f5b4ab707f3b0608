"""One run as a server hosts it: the transition, liveness, and who is to be told what.  Sans-IO.

A hosting feeds it messages, connection ends and the time, and sends what comes out.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rallypoint.core import recovery, transition
from rallypoint.core.changes import Durability, Step, change, spell_out
from rallypoint.core.events import Event, Evicted, Lost
from rallypoint.core.model import Phase, Run
from rallypoint.messages.notices import NodeNotice
from rallypoint.messages.requests import Announced, Joined, Left, NodeMessage
from rallypoint.messages.types import Settings
from rallypoint.ranking import POLICIES, RankPolicy
from rallypoint.server import liveness
from rallypoint.server.liveness import Liveness

HOLD_S = Settings().hold_s


class RunState(msgspec.Struct, frozen=True):
    """What a server holds of one run."""

    run: Run
    life: Liveness = Liveness()


class Output(msgspec.Struct, frozen=True):
    """What came of an input: the new state, what to send to whom, the reasons, who was given up.

    `durability` says whether it must be recorded before anybody hears of it (rule 17c).
    """

    state: RunState
    sends: tuple[tuple[str, NodeNotice], ...] = ()
    why: str = ""
    losses: tuple[Lost, ...] = ()
    durability: Durability = Durability.NONE


def open_run(run_id: str, started_at: float, now: float, hold_s: float = HOLD_S) -> RunState:
    """A run of which this server has no record."""
    return RunState(recovery.blank(run_id, started_at, now, hold_s))


def receive(
    state: RunState,
    sender: str,
    connection: int,
    message: NodeMessage,
    now: float,
    mint: str,
    policies: Mapping[str, RankPolicy] = POLICIES,
) -> Output:
    """A node said something on one of its connections."""
    settings = message.settings if isinstance(message, (Joined, Announced)) else state.run.settings
    life, fresh = liveness.heard(state.life, sender, connection, settings, now)
    if not fresh:
        return Output(state, why=f"{sender} spoke on a connection that it has replaced")
    if isinstance(message, Left):
        life = liveness.forget(life, sender)
    return _done(RunState(state.run, life), transition.step(state.run, message, now, mint, policies))


def apply(
    state: RunState, event: Event, now: float, mint: str, policies: Mapping[str, RankPolicy] = POLICIES
) -> Output:
    """Something that no node said: an administrator's word."""
    gone = event.node_id if isinstance(event, Lost) else event.node.id if isinstance(event, Evicted) else None
    life = liveness.forget(state.life, gone) if gone is not None else state.life
    return _done(RunState(state.run, life), transition.step(state.run, event, now, mint, policies))


def hinder(state: RunState, why: str, now: float, mint: str, policies: Mapping[str, RankPolicy] = POLICIES) -> Output:
    """From now on nothing is sealed, for this reason; with an empty one, what is due is sealed now (rule 17e)."""
    hindered = change(state.run, hindrance=why)
    return _done(RunState(hindered, state.life), transition.time_passed(hindered, (), now, mint, policies))


def connection_ended(state: RunState, node_id: str, connection: int, now: float, *, our_fault: bool = False) -> Output:
    """A connection of a node is gone; whether the node is, `tick` will tell.

    `our_fault` says that the server was stalled just before, so that the node may have hung up for that reason.
    """
    settings = state.run.settings
    life = liveness.ended(state.life, node_id, connection, settings, now, our_fault=our_fault)
    return Output(RunState(state.run, life))


def tick(
    state: RunState,
    now: float,
    mint: str,
    policies: Mapping[str, RankPolicy] = POLICIES,
    beats: Mapping[str, float] = liveness.NO_BEATS,
) -> Output:
    """Time passed; due whenever `wake_at` says so."""
    is_closed = state.run.phase is Phase.CLOSED
    life, losses = liveness.tick(state.life, state.run.settings, now, beats, is_closed=is_closed)
    step = transition.time_passed(state.run, losses, now, mint, policies)
    return _done(RunState(state.run, life), step, losses)


def deserted_at(
    state: RunState, losses: tuple[Lost, ...], now: float, beats: Mapping[str, float] = liveness.NO_BEATS
) -> float | None:
    """When most nodes will have been silent for the time-out, where losses show that they may be (rule 17e)."""
    if not losses or state.run.phase is Phase.CLOSED:
        return None
    return liveness.deserted_at(state.life, losses, state.run.settings, now, beats)


def give_up_silent(
    state: RunState,
    beats: Mapping[str, float],
    now: float,
    mint: str,
    policies: Mapping[str, RankPolicy] = POLICIES,
) -> Output:
    """Nobody else served in place of this server, which most nodes do not reach: they are lost (rule 17e)."""
    life, losses = state.life, []
    for node_id, heard in liveness.silent(life, state.run.settings, now, beats).items():
        life = liveness.forget(life, node_id)
        losses.append(Lost(node_id, f"nothing was heard of it for {now - heard:.1f} s, and nobody else serves"))
    step = transition.time_passed(state.run, losses, now, mint, policies)
    return _done(RunState(state.run, life), step, tuple(losses))


def wake_at(state: RunState, now: float) -> float | None:
    """When `tick` is due next after `now`; None where only a message can change anything."""
    due = (transition.wake_at(state.run, now), liveness.wake_at(state.life))
    soonest = min((moment for moment in due if moment is not None), default=None)
    # Never at this very moment, so that rounding cannot make a shell spin.
    return None if soonest is None else max(soonest, now + 0.001)


def is_idle(state: RunState) -> bool:
    """Whether nothing would be lost by forgetting the run: nobody is in it, and nobody is kept out of it."""
    run = state.run
    return run.phase is Phase.GATHERING and not run.live and run.evictions_end is None and not state.life.signs


def _done(state: RunState, step: Step, losses: tuple[Lost, ...] = ()) -> Output:
    return Output(
        state=RunState(step.run, state.life),
        sends=tuple(sent for notice in step.notices for sent in spell_out(notice)),
        why=step.why,
        losses=losses,
        durability=step.durability,
    )
