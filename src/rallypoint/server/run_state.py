"""One run as a server hosts it, sans-IO: the transition, liveness, and which node is told what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

import msgspec

from rallypoint.core import recovery, transition
from rallypoint.core.changes import Durability, Notice, Step, change, close
from rallypoint.core.events import Event, Evicted, Lost
from rallypoint.core.model import Phase, Run
from rallypoint.messages.notices import NodeNotice
from rallypoint.messages.requests import Announced, Joined, Left, NodeMessage
from rallypoint.messages.types import Ending, Settings
from rallypoint.server import liveness
from rallypoint.server.liveness import NO_BEATS, Liveness
from rallypoint.sorted_map import SortedMap

HOLD_S = Settings().hold_s


class RunState(msgspec.Struct, frozen=True):
    """What a server holds of one run."""

    run: Run
    life: Liveness = Liveness()


class Output(msgspec.Struct, frozen=True):
    """The result of an input: the new state, what to send to which node, why, the lost nodes, whether to record it first."""

    state: RunState
    sends: tuple[tuple[str, NodeNotice], ...] = ()
    why: str = ""
    losses: tuple[Lost, ...] = ()
    durability: Durability = Durability.NONE


def open_run(run_id: str, started_at: float, now: float, hold_s: float = HOLD_S) -> RunState:
    """A run of which this server has no record."""
    return RunState(recovery.blank(run_id, started_at, now, hold_s))


def receive(state: RunState, sender: str, connection: int, message: NodeMessage, now: float, mint: str) -> Output:
    """A node sent a message on one of its connections."""
    settings = message.settings if isinstance(message, (Joined, Announced)) else state.run.settings
    life, fresh = liveness.heard(state.life, sender, connection, settings, now)
    if not fresh:
        return Output(state, why=f"{sender} spoke on a connection that it has replaced")
    if isinstance(message, Left):
        life = liveness.forget(life, sender)
    return _output(life, transition.step(state.run, message, now, mint))


def apply(state: RunState, event: Event, now: float, mint: str) -> Output:
    """Something that no node said: an administrator's request."""
    gone = event.node_id if isinstance(event, Lost) else event.node.id if isinstance(event, Evicted) else None
    life = liveness.forget(state.life, gone) if gone is not None else state.life
    return _output(life, transition.step(state.run, event, now, mint))


def hinder(state: RunState, why: str, now: float, mint: str) -> Output:
    """From now on nothing is sealed, for this reason; with an empty one, what is due is sealed now (rule 17e)."""
    return _output(state.life, transition.time_passed(change(state.run, hindrance=why), (), now, mint))


def connection_ended(state: RunState, node_id: str, connection: int, now: float, *, our_fault: bool = False) -> Output:
    """A connection of a node ended, perhaps because the server was stalled; `tick` tells whether the node is lost."""
    life = liveness.ended(state.life, node_id, connection, state.run.settings, now, our_fault=our_fault)
    return Output(RunState(state.run, life))


def tick(
    state: RunState, now: float, mint: str, beats: Mapping[str, float] = NO_BEATS, *, waits_when_deaf: bool = False
) -> Output:
    """Time passed; due whenever `wake_at` says so."""
    is_closed = state.run.phase is Phase.CLOSED
    life, losses = liveness.tick(
        state.life, state.run.settings, now, beats, is_closed=is_closed, waits_when_deaf=waits_when_deaf
    )
    return _output(life, transition.time_passed(state.run, losses, now, mint), losses)


def give_up_silent(state: RunState, beats: Mapping[str, float], now: float, mint: str) -> Output:
    """No other process served in place of this server, which most nodes do not reach: they are lost (rule 17e)."""
    life, losses = state.life, []
    for node_id, heard in liveness.silent(life, state.run.settings, now, beats).items():
        life = liveness.forget(life, node_id)
        losses.append(Lost(node_id, f"nothing was heard of it for {now - heard:.1f} s, and nobody else serves"))
    return _output(life, transition.time_passed(state.run, losses, now, mint), tuple(losses))


def fail(state: RunState, why: str, now: float) -> Output:
    """Our own code failed on the run: it is closed, unless it is already."""
    if state.run.phase is Phase.CLOSED:
        return Output(RunState(state.run))  # nobody is awaited any more
    forgotten = change(state.run, heard=SortedMap(), ranks=SortedMap())
    return _output(state.life, close(forgotten, Ending.FAILED, why, now))


def wake_at(state: RunState, now: float) -> float | None:
    """When `tick` is due next after `now`; None where only a message can change anything."""
    due = (transition.wake_at(state.run, now), liveness.wake_at(state.life))
    soonest = min((moment for moment in due if moment is not None), default=None)
    # Never at this very moment, so that rounding cannot make a shell spin.
    return None if soonest is None else max(soonest, now + 0.001)


def is_idle(state: RunState) -> bool:
    """Whether nothing would be lost by forgetting the run: no node is in it, and none is kept out of it."""
    run = state.run
    return run.phase is Phase.GATHERING and not run.live and run.evictions_end is None and not state.life.signs


def spell_out(notice: Notice) -> Iterator[tuple[str, NodeNotice]]:
    """Each recipient of a notice with what it is told."""
    ids = (notice.to,) if isinstance(notice.to, str) else chain.from_iterable(notice.to)
    return ((node_id, notice.what) for node_id in ids)


def _output(life: Liveness, step: Step, losses: tuple[Lost, ...] = ()) -> Output:
    sends = tuple(sent for notice in step.notices for sent in spell_out(notice))
    return Output(RunState(step.run, life), sends, step.why, losses, step.durability)
