"""The line in which all who are here stand: every reader of the document sees the same one.

What is everybody's business is done by the first in line; the others give it some time, each a little more.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from rallypoint.core.model import Run

TURN_S = 0.02
LONGEST_TURN_S = 0.5
MOST_WATCHED = 256


def line(run: Run) -> Iterable[str]:
    """Everybody who is here: members by rank, then those who wait by arrival."""
    members = sorted(run.active.items(), key=lambda entry: entry[1])
    waiters = chain.from_iterable(t.values() for t in (run.returned, run.queue, run.paused, run.spares))
    waiting = sorted(waiters, key=lambda waiter: waiter.arrival)
    return chain((node_id for node_id, _ in members), (waiter.node.id for waiter in waiting))


def live(run: Run) -> set[str]:
    """Everybody who is here, in no order."""
    return set(chain(run.active, run.returned, run.queue, run.paused, run.spares))


def is_here(run: Run, node_id: str) -> bool:
    """Whether a node is here."""
    return any(node_id in table for table in (run.active, run.returned, run.queue, run.paused, run.spares))


def position(run: Run, node_id: str) -> int:
    """A node's place in line, last where it is not in it."""
    place = -1
    for place, other in enumerate(line(run)):
        if other == node_id:
            return place
    return place + 1


def turn_s(run: Run, node_id: str) -> float:
    """How long a node leaves what is everybody's business to those before it."""
    return min(position(run, node_id) * TURN_S, LONGEST_TURN_S)


def watched_by(run: Run, node_id: str) -> list[str]:
    """Whose signs of life a node reads: the others', or in a large run those of who come next in line."""
    others = [other for other in line(run) if other != node_id]
    if len(others) <= MOST_WATCHED:
        return others
    at = position(run, node_id) % len(others)
    return [*others[at:], *others[:at]][:MOST_WATCHED]
