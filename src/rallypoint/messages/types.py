"""The nouns of messages and records: nodes, bounds, settings, recorded worlds, and why a node leaves.

All of it is immutable.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from functools import lru_cache
from ipaddress import ip_address
from typing import Annotated

import msgspec
from msgspec import Meta

Name = Annotated[str, Meta(min_length=1, max_length=256)]
Token = Annotated[str, Meta(max_length=128)]
Text = Annotated[str, Meta(max_length=4096)]
Why = Annotated[str, Meta(max_length=1024)]
"""A reason that somebody gave: short enough to stand in a sentence of ours."""
Count = Annotated[int, Meta(ge=0, le=2**31)]
Round = Annotated[int, Meta(ge=0, le=2**53)]
Moment = Annotated[float, Meta(ge=-1e9, le=1e9)]
MOST_SEEN, MOST_ROUNDS = 2**32, 2**52
"""The highest round that a node may have heard of, and the highest of a world that a server believes in: what a liar says
leaves room for the rounds that follow."""
Seen = Annotated[int, Meta(ge=0, le=MOST_SEEN)]
MOST_NODES = 100_000
Size = Annotated[int, Meta(ge=1, le=MOST_NODES)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
# What a node may ask a server to keep in mind for it is bounded: minutes for what no option sets, an hour, a month.
LONGEST_SILENCE_S, LONGEST_WAIT_S = 3600.0, 30 * 86400.0
Moments = Annotated[float, Meta(ge=0, le=600)]
Silence = Annotated[float, Meta(ge=0, le=LONGEST_SILENCE_S)]
Wait = Annotated[float, Meta(ge=0, le=LONGEST_WAIT_S)]


class Role(enum.Enum):
    """What a node came for."""

    MEMBER = "member"
    SPARE = "spare"


class Reason(enum.Enum):
    """Why a node left (rule 8).  Only `FINISHED` leaves the world whole."""

    FINISHED = "finished"
    WITHDREW = "withdrew"
    GAVE_UP = "gave up"


class Ending(enum.Enum):
    """How a run closed (rule 8)."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"


class OnGiveUp(enum.Enum):
    """What the run does when a member gives up: `AUTO` closes where min = max and waits for a replacement elsewhere."""

    AUTO = "auto"
    WAIT = "wait"
    CLOSE = "close"


class Node(msgspec.Struct, frozen=True, omit_defaults=True):
    """One process that takes part (rule 2).

    `id` is minted by the process, so a restarted process is another node; `name` is what stays (a host, a slot) and is
    what people read.  `store` is where this node would serve the bootstrap store if it became rank 0 (rule 12): bound
    before it joins, so that the sealed world can carry it.  `store_secret` is what the store's clients prove; members of
    the world learn it, and nobody else (rule 16).
    """

    id: Name
    name: Name
    address: Token = ""
    store: Token = ""
    store_secret: Token = ""
    wanted_rank: Count | None = None
    topology: Text = ""
    role: Role = Role.MEMBER


class Bounds(msgspec.Struct, frozen=True):
    """How many nodes a world has, at least and at most (rule 1)."""

    min: Size
    max: Size

    def __post_init__(self) -> None:
        if not 1 <= self.min <= self.max:
            raise ValueError(f"bounds must satisfy 1 <= min <= max, not {self.min}:{self.max}")

    def __str__(self) -> str:
        return f"{self.min}:{self.max}" if self.min != self.max else str(self.min)


class Settings(msgspec.Struct, frozen=True, omit_defaults=True):
    """The times and choices of a run, set by its founder."""

    last_call_s: Wait = 30.0
    regroup_s: Wait = 60.0
    admit_delay_s: Wait = 0.0
    closed_ttl_s: Moments = 60.0
    reconnect_grace_s: Moments = 0.15
    heartbeat_interval_s: Silence = 1.0
    heartbeat_timeout_s: Silence = 5.0
    outage_grace_s: Wait = 300.0
    reconnect_backoff_s: Moments = 2.0
    crash_pause_s: Moments = 1.0
    crash_pause_limit_s: Silence = 60.0
    crash_memory_s: Silence = 600.0
    rank_policy: Name = "sticky"
    on_give_up: OnGiveUp = OnGiveUp.AUTO

    @property
    def hold_s(self) -> float:
        """How long after its start a server without a record can still hear of an earlier life (rule 14)."""
        return self.heartbeat_timeout_s + self.reconnect_backoff_s


class RecordedWorld(msgspec.Struct, frozen=True, omit_defaults=True):
    """The world that a record names: the only one that can be current (rule 17f).

    `finished` is a bitmap of ranks (the lowest bit of the first byte is rank 0), `ended_before` counts the nodes that
    finished in earlier worlds (rule 8).  `broken`, and the bitmap `gone` of the ranks that left a broken world, are
    written when the server hands over.
    """

    round: Annotated[int, Meta(ge=1, le=2**53)]
    seal_id: Name
    size: Size
    finished: Annotated[bytes, Meta(max_length=12_500)] = b""
    ended_before: Count = 0
    broken: bool = False
    gone: Annotated[bytes, Meta(max_length=12_500)] = b""

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


def is_loopback(node: Node) -> bool:
    """Whether a node gives an address that only its own machine can reach (rule 2)."""
    return _is_loopback(node.address)


@lru_cache(maxsize=4096)
def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return address == "localhost"
