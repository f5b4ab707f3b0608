"""What a transition asks its shell to send, and to whom.

A notice to many carries the tables of its recipients instead of listing them: tables never change, so a transition stays
O(log N); `spell_out` lists the recipients when the shell sends.  A node receives O(1) bytes (rule 12), never a roster.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import msgspec

from rallypoint.core.model import World
from rallypoint.messages.notices import NodeNotice, Placed
from rallypoint.sorted_map import SortedMap


class Sealed(msgspec.Struct, frozen=True):
    """A world was sealed: each member is told its place, with a remark where it did not get what it wanted."""

    world: World
    remarks: dict[str, str]


class Notice(msgspec.Struct, frozen=True):
    """Something to tell one node, or all nodes whose ids are keys of these tables."""

    to: str | tuple[SortedMap[str, Any], ...]
    what: NodeNotice | Sealed


def place(world: World, rank: int, remark: str = "") -> Placed:
    """A member's place in a world."""
    return Placed(world.incarnation, world.round, world.seal_id, rank, world.size, world.store, remark)


def spell_out(notice: Notice) -> Iterator[tuple[str, NodeNotice]]:
    """Each recipient of a notice with what it is told."""
    what = notice.what
    if isinstance(what, Sealed):
        for rank, node in enumerate(what.world.members):
            yield node.id, place(what.world, rank, what.remarks.get(node.id, ""))
    else:
        ids = (notice.to,) if isinstance(notice.to, str) else chain.from_iterable(notice.to)
        yield from ((node_id, what) for node_id in ids)
