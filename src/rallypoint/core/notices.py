"""What a transition asks its shell to send, and to whom.

A notice to many carries the tables that its recipients stand in instead of listing them: tables never change, so that
costs nothing, and a transition stays O(log N); `spell_out` lists them when the shell sends.  What a node receives is
O(1) bytes (rule 12): no roster is ever pushed.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import msgspec

from rallypoint.core.model import Count, Ending, Round, Seconds, Text, Token, World
from rallypoint.sorted_map import Table


class Placed(msgspec.Struct, frozen=True, tag="placed", omit_defaults=True):
    """A node's place in a sealed world, and which ranks of it are in the process that serves."""

    incarnation: Token
    round: Round
    seal_id: Token
    rank: Count
    size: Count
    store: Token
    remark: Text = ""
    server_ranks: tuple[Count, ...] = ()


class Broken(msgspec.Struct, frozen=True, tag="broken"):
    """The world with this seal id is over (rules 6 and 9)."""

    seal_id: Token
    why: Text


class WaitingCount(msgspec.Struct, frozen=True, tag="waiting"):
    """How many newcomers could be admitted to this world (rule 6b)."""

    seal_id: Token
    count: Count


class KeepWaiting(msgspec.Struct, frozen=True, tag="wait"):
    """You are in the queue, and this is what is awaited (rule 11), at most for so long where that is known.

    `round` is the last one that was sealed: who has heard of it can tell a server that forgets.
    """

    incarnation: Token
    round: Round
    why: Text
    at_most_s: Seconds | None = None


class StandBy(msgspec.Struct, frozen=True, tag="standby"):
    """You are a spare: no deadline runs until you are needed (rule 7)."""

    incarnation: Token
    round: Round
    why: Text


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """You cannot join as you asked to; asking again changes nothing."""

    why: Text


class RunClosed(msgspec.Struct, frozen=True, tag="closed"):
    """The run is closed (rules 1 and 8)."""

    incarnation: Token
    ending: Ending
    why: Text


class Fenced(msgspec.Struct, frozen=True, tag="fenced"):
    """You are no longer part of the world with this seal id: stop, and join as a newcomer (rule 9)."""

    seal_id: Token
    why: Text


Said = Placed | Broken | WaitingCount | KeepWaiting | StandBy | Refused | RunClosed | Fenced


class Sealed(msgspec.Struct, frozen=True):
    """A world was sealed: each member is to be told its place, with a remark where it did not get what it wanted."""

    world: World
    remarks: dict[str, str]

    def place(self, rank: int) -> Placed:
        """What the member of this rank is told."""
        return place(self.world, rank, self.remarks.get(self.world.members[rank].id, ""))


class Notice(msgspec.Struct, frozen=True):
    """Something to tell one node, or all whose ids are keys of these tables."""

    to: str | tuple[Table[str, Any], ...]
    what: Said | Sealed


def place(world: World, rank: int, remark: str = "") -> Placed:
    """A member's place in a world."""
    return Placed(world.incarnation, world.round, world.seal_id, rank, world.size, world.store, remark)


def spell_out(notice: Notice) -> Iterator[tuple[str, Said]]:
    """Each recipient of a notice with what it is told."""
    what = notice.what
    if isinstance(what, Sealed):
        for rank, node in enumerate(what.world.members):
            yield node.id, what.place(rank)
    elif isinstance(notice.to, str):
        yield notice.to, what
    else:
        for node_id in chain.from_iterable(notice.to):
            yield node_id, what
