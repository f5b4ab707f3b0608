"""Who is to lead next, should the leader die: a few nodes, and such as are not likely to die with it or together.  Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from rallypoint.core.model import Node, Run

SUCCESSORS = 3
_NEAR = 16
"""How many ranks are looked at for one successor: a board costs the same, however large the world is."""


def heirs(run: Run, leader: str) -> tuple[str, ...]:
    """The ids of the successors: members from all over the ranks, on machines apart where there are such; then who waits.

    Nodes of one process, machine or rack often have ranks side by side, and they often go together.
    """
    members: tuple[Node, ...] = run.world.members if run.world is not None else ()
    rank = run.ranks.get(leader)
    avoided = [members[rank]] if rank is not None else []
    chosen: list[str] = []
    for part in range(min(SUCCESSORS, len(members))):
        near = [node for node in _near(members, part) if node.id in run.active and node.id not in (leader, *chosen)]
        best = next((node for node in near if _is_apart(node, avoided)), near[0] if near else None)
        if best is not None:
            chosen.append(best.id)
            avoided.append(best)
    waiters = chain(run.returned.values(), run.queue.values(), run.spares.values())
    for node_id in chain(run.active, (waiter.node.id for waiter in waiters)):
        if len(chosen) == SUCCESSORS:
            break
        if node_id not in (leader, *chosen):
            chosen.append(node_id)
    return tuple(chosen)


def _near(members: Sequence[Node], part: int) -> Iterator[Node]:
    """Members from the middle of one of equal parts on."""
    size = len(members)
    first = (2 * part + 1) * size // (2 * SUCCESSORS)
    return (members[(first + step) % size] for step in range(min(_NEAR, size)))


def _is_apart(node: Node, others: Sequence[Node]) -> bool:
    """Whether a node is on another machine than all of these, and elsewhere as far as the nodes said where they are."""
    place = node.topology.partition("/")[0]
    return all(
        node.address != other.address and (not place or place != other.topology.partition("/")[0]) for other in others
    )
