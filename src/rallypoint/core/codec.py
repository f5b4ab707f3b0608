"""State and messages as versioned JSON (rule 15).

Whatever is wrong with what is read, and nobody can know what is in a store or on a wire, it is a
`RendezvousStateError` that says so.  Unknown fields are skipped, so that a newer peer may add some.

Times are written as differences to the moment of writing and read relative to the moment of reading: nobody's clock is
compared with another's (rule 10).
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from rallypoint.core.changes import change
from rallypoint.core.check import complaints
from rallypoint.core.events import Message
from rallypoint.core.model import (
    Bounds,
    Closing,
    Count,
    Crash,
    EndedIncarnation,
    Moment,
    Name,
    Node,
    Phase,
    Round,
    Run,
    Settings,
    Token,
    Waiter,
    World,
)
from rallypoint.core.notices import Said
from rallypoint.core.table import Table
from rallypoint.errors import RendezvousStateError

VERSION = 1
MESSAGE_LIMIT = 64 * 1024
STATE_LIMIT = 64 * 1024 * 1024

_ADVICE = "; delete it to start anew"

T = TypeVar("T")


class _Envelope(msgspec.Struct):
    """What every version has: a number, and something that only that version can read."""

    v: int
    body: msgspec.Raw


class _Crashes(msgspec.Struct):
    name: Name
    count: Count
    last: Moment


class _RunRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A run as it is written down.  Members are named by rank; tables that follow from others are left out."""

    run_id: Name
    phase: Phase
    bounds: Bounds
    incarnation: Token = ""
    settings: Settings = Settings()
    round: Round = 0
    arrivals: Round = 0
    world: World | None = None
    active: list[int] = []
    finished: list[int] = []
    gone_before: list[str] = []
    returned: list[Waiter] = []
    queue: list[Waiter] = []
    paused: list[Waiter] = []
    spares: list[Waiter] = []
    crashes: list[_Crashes] = []
    last_call_ends: Moment | None = None
    regroup_ends: Moment | None = None
    told_waiting: Count = 0
    told_at: Moment = 0.0
    closing: Closing | None = None
    last: EndedIncarnation | None = None


def encode_message(message: Message | Said) -> bytes:
    """A message as bytes."""
    return wrap(message)


def decode_message(data: bytes) -> Message:
    """A message of a node to its authority."""
    return unwrap(data, _MESSAGES, "message", MESSAGE_LIMIT)


def decode_notice(data: bytes) -> Said:
    """A message of the authority to a node."""
    return unwrap(data, _NOTICES, "notice", MESSAGE_LIMIT)


def encode_run(run: Run, now: float) -> bytes:
    """A run as bytes, for a record or a shared document.  One that is recovering has nothing worth keeping yet."""
    if run.phase is Phase.RECOVERING:
        raise ValueError("a run that is being recovered from its nodes cannot be written down before that is done")
    run = _shift(run, -now)
    world = run.world
    ranked = set() if world is None else {node.id for node in world.members}
    return wrap(
        _RunRecord(
            run_id=run.run_id,
            phase=run.phase,
            bounds=run.bounds,
            incarnation=run.incarnation,
            settings=run.settings,
            round=run.round,
            arrivals=run.arrivals,
            world=world,
            active=list(run.active.values()),
            finished=[rank for node_id, rank in run.finished.items() if node_id in ranked],
            gone_before=[node_id for node_id in run.finished if node_id not in ranked],
            returned=list(run.returned.values()),
            queue=list(run.queue.values()),
            paused=list(run.paused.values()),
            spares=list(run.spares.values()),
            crashes=[_Crashes(name, crash.count, crash.last) for name, crash in run.crashes.items()],
            last_call_ends=run.last_call_ends,
            regroup_ends=run.regroup_ends,
            told_waiting=run.told_waiting,
            told_at=run.told_at,
            closing=run.closing,
            last=run.last,
        )
    )


def decode_run(data: bytes, now: float) -> Run:
    """A run from bytes; what does not hold together is refused like what cannot be read."""
    record = unwrap(data, _RUNS, "state", STATE_LIMIT, _ADVICE)
    try:
        run = _shift(_run(record), now)
    except (IndexError, ValueError, TypeError, OverflowError) as exc:
        raise RendezvousStateError(f"the state is damaged: {exc}{_ADVICE}") from exc
    wrong = next(complaints(run), None)
    if wrong is not None:
        raise RendezvousStateError(f"the state is damaged: {wrong}{_ADVICE}")
    return run


def _run(record: _RunRecord) -> Run:
    world = record.world
    members = () if world is None else world.members
    ranks = {node.id: rank for rank, node in enumerate(members)}
    finished = {_member(members, rank).id: rank for rank in record.finished}
    finished.update((node_id, -1) for node_id in record.gone_before)
    return Run(
        run_id=record.run_id,
        phase=record.phase,
        incarnation=record.incarnation,
        bounds=record.bounds,
        settings=record.settings,
        round=record.round,
        world=world,
        ranks=Table.build(ranks.items()),
        active=Table.build((_member(members, rank).id, rank) for rank in record.active),
        returned=_waiters(record.returned),
        queue=_waiters(record.queue),
        paused=_waiters(record.paused),
        pauses=Table.build(((w.paused_until, w.node.id), None) for w in record.paused),
        spares=_waiters(record.spares),
        finished=Table.build(finished.items()),
        crashes=Table.build((c.name, Crash(c.count, c.last)) for c in record.crashes),
        arrivals=record.arrivals,
        last_call_ends=record.last_call_ends,
        regroup_ends=record.regroup_ends,
        told_waiting=record.told_waiting,
        told_at=record.told_at,
        closing=record.closing,
        last=record.last,
    )


def _member(members: tuple[Node, ...], rank: int) -> Node:
    if not 0 <= rank < len(members):
        raise ValueError(f"rank {rank} is not in a world of {len(members)}")
    return members[rank]


def _waiters(waiters: list[Waiter]) -> Table[str, Waiter]:
    return Table.build((waiter.node.id, waiter) for waiter in waiters)


def _shift(run: Run, by: float) -> Run:
    """The run with every time in it moved."""

    def moved(moment: float | None) -> float | None:
        return None if moment is None else moment + by

    world, closing = run.world, run.closing
    paused = {i: msgspec.structs.replace(w, paused_until=w.paused_until + by) for i, w in run.paused.items()}
    return change(
        run,
        world=world and msgspec.structs.replace(world, sealed_at=world.sealed_at + by),
        paused=Table.build(paused.items()),
        pauses=Table.build(((w.paused_until, i), None) for i, w in paused.items()),
        crashes=Table.build((n, Crash(c.count, c.last + by)) for n, c in run.crashes.items()),
        last_call_ends=moved(run.last_call_ends),
        regroup_ends=moved(run.regroup_ends),
        told_at=run.told_at + by,
        closing=closing and Closing(closing.ending, closing.why, closing.at + by),
    )


_ENVELOPE = msgspec.json.Decoder(_Envelope)
_MESSAGES: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)
_NOTICES: msgspec.json.Decoder[Said] = msgspec.json.Decoder(Said)
_RUNS = msgspec.json.Decoder(_RunRecord)


def wrap(body: Any) -> bytes:
    """Anything as versioned JSON."""
    return msgspec.json.encode({"v": VERSION, "body": body})


def unwrap(data: bytes, decoder: msgspec.json.Decoder[T], what: str, limit: int, advice: str = "") -> T:
    """What `wrap` wrote; whatever is wrong with it is a `RendezvousStateError` that names `what` it was to be."""
    if len(data) > limit:
        raise RendezvousStateError(f"the {what} has {len(data)} bytes, more than the {limit} that are allowed")
    try:
        envelope = _ENVELOPE.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError) as exc:
        raise RendezvousStateError(f"the {what} cannot be read: {_told(exc, data)}{advice}") from exc
    if envelope.v != VERSION:
        raise RendezvousStateError(
            f"the {what} is of version {envelope.v}, and this Rallypoint reads version {VERSION}: "
            f"run the same release on every node"
        )
    try:
        return decoder.decode(envelope.body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError) as exc:
        raise RendezvousStateError(f"the {what} cannot be read: {_told(exc, data)}{advice}") from exc


def _told(exc: Exception, data: bytes) -> str:
    if data[:1] == b"\x80":
        return "it is a pickle, which is never loaded; a torch job may be using the same name"
    return str(exc) or type(exc).__name__
