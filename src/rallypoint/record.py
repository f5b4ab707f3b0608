"""The record of a run (rules 14, 17): what a register or a state file holds, before anybody hears of it (rule 17c).

One format for both: versioned JSON with bounds on every part.  Unknown fields are skipped, so that a newer release may add
some.  Each write has a fresh id, so that a lost answer can be looked up.  A register's record has a claim, which names the
process that serves; a state file's has none.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from rallypoint.core import recovery
from rallypoint.core.changes import change
from rallypoint.core.model import Closing, EndedIncarnation, Phase, Predecessor, Run
from rallypoint.errors import RendezvousStateError
from rallypoint.messages import types
from rallypoint.messages.types import Bounds, Count, Ending, Name, RecordedWorld, Round, Settings, Text, Token

VERSION = 1
LIMIT = 512 * 1024
"""A record of a hundred thousand finished ranks has a tenth of this."""
SHORTEST_REST_S, LONGEST_REST_S = 1.0, 120.0
MOST_RANKS = 1024
"""How many ranks of one process a claim names."""
_ADVICE = "; if nothing else uses that name, delete it, and the nodes tell the next server what they know"


class Claim(msgspec.Struct, frozen=True, omit_defaults=True):
    """The server of a run: one life of one process.

    `ranks` are those of its process in the recorded world.  `beat` grows while the server lives; a beat that rests for
    longer than `rest_s` is stale (rule 17a).
    """

    id: Name
    addresses: Annotated[tuple[Token, ...], Meta(min_length=1, max_length=16)]
    port: Annotated[int, Meta(ge=1, le=65535)]
    rest_s: Annotated[float, Meta(ge=SHORTEST_REST_S, le=LONGEST_REST_S)]
    secret: Token = ""
    ranks: Annotated[tuple[Count, ...], Meta(max_length=MOST_RANKS)] = ()
    beat: Round = 0


class RecordedEnding(msgspec.Struct, frozen=True, omit_defaults=True):
    """How an incarnation ended."""

    ending: Ending
    why: Text = ""


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that must outlive a server.

    The epoch grows by one with every claim; the round continues across incarnations.  `world` is the only one that can be
    current; `closing` is how this incarnation ended, `last` how the one before it did.  `met` is the epoch of the last claim
    under which a node of another process was welcomed: it is carried from claim to claim.
    """

    run_id: Name
    incarnation: Token
    epoch: Round
    round: Round
    write_id: Name
    bounds: Bounds
    settings: Settings = Settings()
    claim: Claim | None = None
    world: RecordedWorld | None = None
    closing: RecordedEnding | None = None
    last: EndedIncarnation | None = None
    met: Round = 0

    def __post_init__(self) -> None:
        if self.world is not None and (not self.incarnation or self.world.round > self.round):
            raise ValueError(f"round {self.world.round} is beyond round {self.round} of the run, or of no incarnation")
        if self.world is not None and self.world.size > self.bounds.max:
            raise ValueError(f"a world of {self.world.size} is recorded where {self.bounds.max} are the most")


class _Envelope(msgspec.Struct):
    """What every version has: a number, and something that only that version can read."""

    v: int
    body: msgspec.Raw


_ENVELOPES, _RECORDS = msgspec.json.Decoder(_Envelope), msgspec.json.Decoder(Record)
_SHARED = ("run_id", "incarnation", "round", "bounds", "settings", "last")
"""What a run and its record have alike."""


def encode(record: Record) -> bytes:
    """A record as versioned JSON."""
    return msgspec.json.encode({"v": VERSION, "body": record})


def decode(data: bytes) -> Record:
    """A record from bytes; a `RendezvousStateError` says what is wrong with what is no record (rule 15)."""
    if len(data) > LIMIT:
        raise RendezvousStateError(f"the record has {len(data)} bytes, more than the {LIMIT} that are allowed")
    try:
        envelope = _ENVELOPES.decode(data)
        if envelope.v == VERSION:
            return _RECORDS.decode(envelope.body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError) as exc:
        pickled = "it is a pickle, which is never loaded; a torch job may be using the same name"
        told = pickled if data[:1] == b"\x80" else str(exc) or type(exc).__name__
        raise RendezvousStateError(f"the record cannot be read: {told}{_ADVICE}") from exc
    raise RendezvousStateError(
        f"the record is of version {envelope.v}, and this Rallypoint reads version {VERSION}: "
        f"run the same release on every node"
    )


def of(run: Run, *, epoch: int, write_id: str, claim: Claim | None = None, handing_over: bool = False) -> Record:
    """The record of a run as it is now; a server that hands over also says whether the world is broken (rule 17g)."""
    shared = {field: getattr(run, field) for field in _SHARED}
    shared["incarnation"], world = _world_of(run, handing_over=handing_over)
    closing = None if run.closing is None else RecordedEnding(run.closing.ending, run.closing.why)
    return Record(epoch=epoch, write_id=write_id, claim=claim, world=world, closing=closing, **shared)


def _world_of(run: Run, *, handing_over: bool) -> tuple[str, RecordedWorld | None]:
    if run.phase is Phase.RECOVERING:
        return recovery.known_world(run) or (run.incarnation, None)
    world = run.world
    if world is None:
        return run.incarnation, None
    broken = handing_over and run.current is None
    ranks = [rank for node_id in run.finished if (rank := run.ranks.get(node_id)) is not None]
    finished, before = types.rank_bitmap(ranks), len(run.finished) - len(ranks)
    here = (run.active, run.returned, run.finished)
    stand = {run.ranks.get(node_id) for table in here for node_id in table}
    gone = types.rank_bitmap(rank for rank in range(world.size) if broken and rank not in stand)
    return run.incarnation, RecordedWorld(world.round, world.seal_id, world.size, finished, before, broken, gone)


def restored(record: Record, now: float, hold_s: float, predecessor: Predecessor | None = None) -> Run:
    """The run as a server knows it that has just started with this record, and nothing else (rule 17f).

    Without a world nothing is awaited; otherwise its ranks have `hold_s` to announce themselves, and those of the process
    that served before only until the predecessor's own time.
    """
    run = Run(**{field: getattr(record, field) for field in _SHARED})
    if record.closing is not None:
        return change(run, phase=Phase.CLOSED, closing=Closing(record.closing.ending, record.closing.why, now))
    if record.world is None:
        return change(run, founded=record.claim is not None)
    return recovery.without(recovery.with_recorded_world(run, record.world, now + hold_s), predecessor)
