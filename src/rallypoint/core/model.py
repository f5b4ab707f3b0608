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


PHASE_CHANGES = {
    (Phase.RECOVERING, Phase.GATHERING): (
        "the hold is over, all ranks were heard but not all hold, or max newcomers are here (rule 14)"
    ),
    (Phase.RECOVERING, Phase.SEALED): "every rank of the highest world still holds it (rule 14)",
    (Phase.GATHERING, Phase.RECOVERING): "a node was in a world of this incarnation that the record forgot (rule 17f)",
    (Phase.RECOVERING, Phase.CLOSED): "closed, or one node knows that it was (rule 14)",
    (Phase.GATHERING, Phase.SEALED): "max are here, the last call ended, or all are back (rule 4)",
    (Phase.GATHERING, Phase.CLOSED): "closed, or too few are left after some have finished (rule 8)",
    (Phase.SEALED, Phase.GATHERING): "a member was lost, left or joined again (rules 6, 6a, 8)",
    (Phase.SEALED, Phase.CLOSED): "all members have finished, or it was closed (rule 8)",
    (Phase.CLOSED, Phase.GATHERING): "a fresh node founds a new incarnation, or the tombstone is old (rule 1)",
}
"""Every change of phase that there is, and when it happens; docs/rules.md shows it as a picture."""


class World(msgspec.Struct, frozen=True):
    """A sealed world (rule 3), equal to another by seal id only.  `members` are in the order of their ranks."""

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
    """What a node asked for during recovery; it is judged once it is known whether the incarnation goes on."""

    bounds: Bounds
    settings: Settings
    incarnation: Token = ""


class WaitingNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node that is here and holds no world; `arrival` numbers such nodes, `request` is kept only during recovery."""

    node: Node
    arrival: Round
    paused_until: Moment = 0.0
    request: Request | None = None


class WorldName(msgspec.Struct, frozen=True):
    """A world as far as any of its ranks knows it."""

    incarnation: str
    round: int
    seal_id: str
    size: int


class HeardRank(msgspec.Struct, frozen=True):
    """What is known of one rank of a world during recovery.

    Either the rank announced it (rule 14), or the record has it as finished, or it went with the process that served
    before (rule 17f).  `why` says why it is gone, where that is known.
    """

    node: Node
    world: WorldName
    holds: bool
    finished: bool = False
    gone: bool = False
    announced: bool = True
    why: str = ""


class RecordedWorld(msgspec.Struct, frozen=True, omit_defaults=True):
    """The world that a record names: the only one that can be current (rule 17f).

    `finished` is a bitmap of ranks (the lowest bit of the first byte is rank 0), `ended_before` counts the nodes that
    finished in earlier worlds (rule 8).  `broken`, and the bitmap `gone` of the ranks that left a broken world, are
    written when the server hands over.
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
    return (place * 8 + bit for place, byte in enumerate(bitmap) if byte for bit in range(8) if byte >> bit & 1)


def rank_bitmap(ranks: Iterable[int]) -> bytes:
    """Ranks as the bitmap that `RecordedWorld` holds."""
    bits = bytearray()
    for rank in ranks:
        bits.extend(bytes(max(rank // 8 + 1 - len(bits), 0)))
        bits[rank // 8] |= 1 << rank % 8
    return bytes(bits)


class Predecessor(msgspec.Struct, frozen=True):
    """The process that served before and is gone: its ranks are awaited until `until` only (rules 14, 17f)."""

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
    """A node that an administrator evicted for the `count`th time, as it was last seen; it is kept out until then."""

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

    A node is in one table at most: `active` (members of `world` that have not left it; once the world is broken, they
    are awaited back), `returned` (members of the broken world that are back), `queue` (newcomers), `paused` (newcomers
    that crash too often; `pauses` has the times of their release), `spares`, `finished`.  `ranks` are those of `world`.

    During recovery, `heard` holds what is known of each rank of the highest world, `recorded` is the world that a record
    names, and `predecessor` the ranks that went with the process that served before.  `last` is how the previous
    incarnation ended.  `founded` says that a claim named the incarnation, so that the first node to come does not.
    `hindrance`, where it is not empty, says why nothing may be sealed now (rule 17e).

    `evictions`, by name and address, include past ones; `evictions_end` is when the last one ends.  They belong to the
    run, not to an incarnation, and no record has them.
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
        return bool(self.finished)

    @property
    def regrouping(self) -> bool:
        """Whether this round gathers the members of a broken world (rule 4)."""
        return self.regroup_ends is not None

    @property
    def waiting(self) -> tuple[SortedMap[str, WaitingNode], ...]:
        """The tables of the nodes that are here and hold no world."""
        return self.returned, self.queue, self.paused, self.spares

    @property
    def live(self) -> int:
        """How many nodes are here and have not finished."""
        return len(self.active) + sum(map(len, self.waiting)) + len(self.heard)


def find_waiter(run: Run, node_id: str) -> WaitingNode | None:
    """The node among those that are here and hold no world, or None."""
    return next((waiter for table in run.waiting if (waiter := table.get(node_id)) is not None), None)


def find_node(run: Run, node_id: str) -> Node | None:
    """The node with this id in any table, or None; of one that finished in an earlier world only the id is left."""
    rank = run.ranks.get(node_id)
    if rank is not None:
        return run.world.members[rank] if run.world is not None else run.heard[rank].node
    waiter = find_waiter(run, node_id)
    return waiter.node if waiter is not None else None


def takes_part(run: Run, node_id: str) -> bool:
    """Whether a node is a member of the world that has not left it, or waits."""
    return node_id in run.active or find_waiter(run, node_id) is not None


def kept_out(run: Run, now: float) -> Iterator[Eviction]:
    """The evictions that are in effect."""
    return (eviction for eviction in run.evictions.values() if eviction.until > now)
