"""The nouns of a rendezvous: nodes, bounds, worlds and the run that holds them.  All of it is immutable.

Times are seconds on the server's own monotonic clock (rule 10); only differences between them mean anything.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator

import msgspec

from rallypoint.messages.notices import Placed
from rallypoint.messages.requests import Joined
from rallypoint.messages.types import Bounds, Ending, Moment, Name, Node, RecordedWorld, Round, Settings, Text, Token
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

    def place(self, rank: int, remark: str = "") -> Placed:
        """What the member of this rank is told; rank 0 serves the bootstrap store (rule 12)."""
        host, seat = self.members[0], (rank, self.size)
        return Placed(
            self.incarnation, self.round, self.seal_id, *seat, host.store, remark, store_secret=host.store_secret
        )


class WaitingNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node that is here and holds no world; `arrival` numbers such nodes.

    `request` is kept only during recovery: it is judged once it is known whether the incarnation goes on.
    """

    node: Node
    arrival: Round
    paused_until: Moment = 0.0
    request: Joined | None = None


class WorldName(msgspec.Struct, frozen=True):
    """A world as far as any of its ranks knows it."""

    incarnation: str
    round: int
    seal_id: str
    size: int


class HeardRank(msgspec.Struct, frozen=True):
    """What is known of one rank of the highest world during recovery.

    Either the rank announced it (rule 14), or the record has it as finished, or it went with the process that served
    before (rule 17f).  `why` says why it is gone, where that is known.
    """

    node: Node
    holds: bool
    finished: bool = False
    gone: bool = False
    announced: bool = True
    why: str = ""


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

    During recovery, `highest` is the highest world that is known, `heard` what is known of its ranks, `recorded` the
    world that a record names, and `predecessor` the ranks that went with the process that served before.  `last` is how
    the previous incarnation ended.  `founded` says that a claim named the incarnation, so that the first node to come
    does not.  `hindrance`, where it is not empty, says why nothing may be sealed now (rule 17e).

    `evictions`, by name and address, belong to the run, not to an incarnation; `evictions_end` is when the last one ends.
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
    highest: WorldName | None = None
    heard: SortedMap[int, HeardRank] = SortedMap()
    recorded: RecordedWorld | None = None
    predecessor: Predecessor | None = None
    crashes: SortedMap[str, Crash] = SortedMap()
    crashes_by_age: SortedMap[tuple[float, str], None] = SortedMap()
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
        """Whether a member has finished: from then on newcomers are not admitted to a whole world (rule 8)."""
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
