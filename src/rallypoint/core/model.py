"""The nouns of a rendezvous: nodes, bounds, worlds and the run that holds them.  All of it is immutable.

Times are seconds on the server's own monotonic clock (rule 10); only differences between them mean anything.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from rallypoint.messages.types import Bounds, Count, Ending, Moment, Name, Node, Round, Settings, Size, Text, Token
from rallypoint.sorted_map import SortedMap


class Phase(enum.Enum):
    """Where a run stands (rule 3)."""

    RECOVERING = "recovering"
    GATHERING = "gathering"
    SEALED = "sealed"
    CLOSED = "closed"


class World(msgspec.Struct, frozen=True):
    """A sealed world (rule 3), equal to another by seal id only.  `members` stand in the order of their ranks."""

    incarnation: Token
    round: Round
    seal_id: Token
    members: tuple[Node, ...]
    sealed_at: Moment

    @property
    def size(self) -> int:
        """How many members it was sealed with."""
        return len(self.members)

    @property
    def store(self) -> str:
        """Where the bootstrap store of this round is served: by rank 0 (rule 12)."""
        return self.members[0].store


class Request(msgspec.Struct, frozen=True):
    """What a node asked for while the server was recovering: judged when it is known whether the incarnation goes on."""

    bounds: Bounds
    settings: Settings
    incarnation: Token = ""


class WaitingNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node that is here and holds no world, its number in the order of arrival, and until when it is paused.

    `request` is kept only while the server recovers.
    """

    node: Node
    arrival: Round
    paused_until: Moment = 0.0
    request: Request | None = None


class HeardRank(msgspec.Struct, frozen=True):
    """What is known of one rank of a world while a server recovers: what the rank announced (rule 14), that the record has
    it as finished, or that it went with the process that served before (rule 17f)."""

    node: Node
    incarnation: str
    round: int
    seal_id: str
    size: int
    holds: bool
    finished: bool = False
    gone: bool = False
    announced: bool = True
    why: str = ""
    """Why it is gone, where it said so or was seen to go."""


class RecordedWorld(msgspec.Struct, frozen=True, omit_defaults=True):
    """The world that a record names: the only one that can be current (rule 17f).

    `finished` is a bitmap of ranks, the lowest bit of the first byte is rank 0.  `ended_before` counts the nodes that
    finished in earlier worlds: once a node has finished, newcomers are not admitted (rule 8).  `broken`, and `gone`, the
    bitmap of the ranks that have left a broken world, are written when the server hands over.
    """

    round: Annotated[int, Meta(ge=1, le=2**53)]
    seal_id: Name
    size: Size
    finished: Annotated[bytes, Meta(max_length=125_000)] = b""
    ended_before: Count = 0
    broken: bool = False
    gone: Annotated[bytes, Meta(max_length=125_000)] = b""

    def __post_init__(self) -> None:
        if any(rank >= self.size for rank in (*self.finished_ranks(), *ranks_of(self.gone))):
            raise ValueError(f"a world of {self.size} cannot have ranks beyond that")

    def finished_ranks(self) -> Iterator[int]:
        """The ranks that have finished, in order."""
        return ranks_of(self.finished)


def ranks_of(bitmap: bytes) -> Iterator[int]:
    """The ranks in a bitmap, in order."""
    for place, byte in enumerate(bitmap):
        if byte:
            yield from (place * 8 + bit for bit in range(8) if byte >> bit & 1)


def rank_bitmap(ranks: Iterable[int]) -> bytes:
    """Ranks as the bitmap that `RecordedWorld` holds."""
    bits = bytearray()
    for rank in ranks:
        if rank >= len(bits) * 8:
            bits.extend(bytes(rank // 8 + 1 - len(bits)))
        bits[rank // 8] |= 1 << rank % 8
    return bytes(bits)


class Predecessor(msgspec.Struct, frozen=True):
    """The process that served before is gone: its ranks of this world are awaited until `until` only (rules 14, 17f)."""

    seal_id: str
    ranks: tuple[int, ...]
    until: float


class EndedIncarnation(msgspec.Struct, frozen=True):
    """An incarnation that is over, and how it ended: its members are told so (rules 1, 17h)."""

    incarnation: Name
    ending: Ending
    why: Text = ""


class Crash(msgspec.Struct, frozen=True):
    """How often nodes of one name were lost from a world, and when last."""

    count: int
    last: float


class Eviction(msgspec.Struct, frozen=True):
    """A node that an administrator evicted, as it was last seen; kept out until then, for the `count`th time."""

    node: Node
    until: float
    count: int
    why: str = ""


class Closing(msgspec.Struct, frozen=True):
    """How, why and when a run closed."""

    ending: Ending
    why: Text
    at: Moment


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a server knows of a run.

    A node stands in one table at most: `active` (members of `world` that have not left it; once the world is broken,
    those who are awaited back), `returned` (members of the broken world who are back), `queue` (newcomers),
    `paused` (newcomers that crash too often, with the time of their release in `pauses`), `spares`, `finished`.
    `ranks` are those of `world`.

    While recovering, `heard` holds, by rank, what is known of the highest world, `recorded` is the world that a record
    names, and `predecessor` the ranks that went with the process that served before.  `last` is how the incarnation
    before this one ended.  `founded` says that a claim has named the incarnation, so that the first node to come does not.
    `hindrance`, where it is not empty, says why nothing may be sealed now (rule 17e).

    `evictions` are by name and address, past ones among them; `evictions_end` is when the last of them ends.  They belong
    to the run, not to an incarnation, and to the memory of this server: no record has them.
    """

    run_id: str
    phase: Phase = Phase.GATHERING
    incarnation: str = ""
    bounds: Bounds = Bounds(1, 1)
    settings: Settings = Settings()
    round: int = 0
    world: World | None = None
    ranks: SortedMap[str, int] = SortedMap()
    active: SortedMap[str, int] = SortedMap()
    returned: SortedMap[str, WaitingNode] = SortedMap()
    queue: SortedMap[str, WaitingNode] = SortedMap()
    paused: SortedMap[str, WaitingNode] = SortedMap()
    pauses: SortedMap[tuple[float, str], None] = SortedMap()
    spares: SortedMap[str, WaitingNode] = SortedMap()
    finished: SortedMap[str, int] = SortedMap()
    heard: SortedMap[int, HeardRank] = SortedMap()
    recorded: RecordedWorld | None = None
    predecessor: Predecessor | None = None
    crashes: SortedMap[str, Crash] = SortedMap()
    evictions: SortedMap[tuple[str, str], Eviction] = SortedMap()
    evictions_end: float | None = None
    arrivals: int = 0
    last_call_ends: float | None = None
    regroup_ends: float | None = None
    hold_ends: float | None = None
    told_waiting: int = 0
    told_at: float = 0.0
    closing: Closing | None = None
    last: EndedIncarnation | None = None
    founded: bool = False
    hindrance: str = ""

    @property
    def current(self) -> World | None:
        """The world that is current (rule 9): at most one is."""
        return self.world if self.phase is Phase.SEALED else None

    @property
    def ending_started(self) -> bool:
        """Whether a member has finished: from then on newcomers are not admitted (rule 8)."""
        return len(self.finished) > 0

    @property
    def regrouping(self) -> bool:
        """Whether this round gathers the members of a broken world (rule 4)."""
        return self.regroup_ends is not None

    @property
    def live(self) -> int:
        """How many nodes are here and have not finished."""
        waiting = len(self.returned) + len(self.queue) + len(self.paused) + len(self.spares)
        return len(self.active) + waiting + len(self.heard)


def find_waiter(run: Run, node_id: str) -> WaitingNode | None:
    """The node among those who are here and hold no world, or None."""
    for table in (run.returned, run.queue, run.paused, run.spares):
        waiter = table.get(node_id)
        if waiter is not None:
            return waiter
    return None


def find_node(run: Run, node_id: str) -> Node | None:
    """The node with this id, wherever it stands, or None; of one that finished in an earlier world only the id is left."""
    rank = run.ranks.get(node_id)
    if rank is not None and run.world is not None:
        return run.world.members[rank]
    if rank is not None:
        return run.heard[rank].node
    waiter = find_waiter(run, node_id)
    return waiter.node if waiter is not None else None


def kept_out(run: Run, now: float) -> Iterator[Eviction]:
    """The evictions that are in effect."""
    return (eviction for eviction in run.evictions.values() if eviction.until > now)
