"""The board: the little that everybody watches, and the roster in parts that it names; versioned JSON (rule 15).

It has no times in it, since no clock is shared (rule 10), and no roster, since everybody gets it (rule 12).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from rallypoint.core import codec
from rallypoint.core.model import Bounds, Count, Ending, Name, Node, Phase, Round, Seconds, Settings, Text, Token
from rallypoint.errors import RendezvousStateError

LIMIT = 1024 * 1024
"""etcd takes requests of up to 1.5 MiB."""

_ADVICE = "; delete its keys, or use another run id, to start anew"


class Sealing(msgspec.Struct, frozen=True, omit_defaults=True):
    """The world that was sealed last.

    `parts` is how many parts its roster has; `folded` is the revision up to which the leader knew what nodes said when
    it sealed: a member's word up to then led to this world, a later one speaks of it.
    """

    seal_id: Token
    round: Round
    size: Count
    store: Token
    parts: Count
    folded: int


class Crashes(msgspec.Struct, frozen=True):
    """How often nodes of one name crashed, and how long ago the last time was when this was written."""

    name: Name
    count: Count
    ago_s: Seconds


class Ended(msgspec.Struct, frozen=True):
    """How and why the run closed."""

    ending: Ending
    why: Text


class Board(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a run stands.  `token` makes each writing unique; `lease` is the run's own (rule 14: it outlives leaders).

    `why` is what those who wait are told, `broken` why the world is over, `waiting` how many newcomers it could admit;
    `successors` are the few nodes that watch the leader.  `gone` are those ranks of the broken world, from the first to
    the last of each span, whose members have left or were lost: no later leader is to count that again.
    """

    token: Token
    lease: int
    phase: Phase
    incarnation: Token = ""
    bounds: Bounds
    settings: Settings = Settings()
    round: Round = 0
    world: Sealing | None = None
    broken: Text = ""
    waiting: Count = 0
    finished: Count = 0
    why: Text = ""
    ended: Ended | None = None
    successors: tuple[Name, ...] = ()
    crashes: tuple[Crashes, ...] = ()
    gone: tuple[tuple[Count, Count], ...] = ()


class Seated(msgspec.Struct, frozen=True):
    """A member with the revision that its key was created at: together they are the member."""

    node: Node
    created: int


def spans(ranks: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Ascending ranks as spans: many of them that went together take little space."""
    found: list[tuple[int, int]] = []
    for rank in ranks:
        if found and found[-1][1] == rank - 1:
            found[-1] = (found[-1][0], rank)
        else:
            found.append((rank, rank))
    return tuple(found)


_BOARD = msgspec.json.Decoder(Board)
_PART = msgspec.json.Decoder(tuple[Seated, ...])


def encode_board(board: Board) -> bytes:
    """The board as bytes."""
    return codec.wrap(board)


def decode_board(data: bytes, run_id: str) -> Board:
    """The board from bytes; whatever is wrong with it is a `RendezvousStateError`."""
    board = codec.unwrap(data, _BOARD, f"board of run {run_id!r} in etcd", LIMIT, _ADVICE)
    if board.phase is Phase.RECOVERING or (board.ended is not None) != (board.phase is Phase.CLOSED):
        raise RendezvousStateError(f"the board of run {run_id!r} in etcd contradicts itself{_ADVICE}")
    if board.phase is Phase.SEALED and board.world is None:
        raise RendezvousStateError(f"the board of run {run_id!r} in etcd speaks of a world that it lacks{_ADVICE}")
    return board


def encode_roster(members: Iterable[Seated], limit: int = LIMIT // 2) -> Iterator[bytes]:
    """The roster in parts that etcd takes."""
    part: list[bytes] = []
    size = 0
    for seated in members:
        line = msgspec.json.encode(seated)
        if part and size + len(line) > limit:
            yield _join(part)
            part, size = [], 0
        part.append(line)
        size += len(line) + 1
    yield _join(part)


def decode_roster(parts: Sequence[bytes], sealing: Sealing, run_id: str) -> tuple[Seated, ...]:
    """The roster from its parts."""
    what = f"roster of round {sealing.round} of run {run_id!r} in etcd"
    members = tuple(seated for part in parts for seated in codec.unwrap(part, _PART, what, LIMIT, _ADVICE))
    if len(parts) != sealing.parts or len(members) != sealing.size:
        raise RendezvousStateError(
            f"the {what} has {len(members)} members in {len(parts)} parts instead of {sealing.size} in "
            f"{sealing.parts}{_ADVICE}"
        )
    return members


def _join(lines: list[bytes]) -> bytes:
    return codec.wrap(msgspec.Raw(b"[" + b",".join(lines) + b"]"))
