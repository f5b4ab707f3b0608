"""Liveness (rules 6, 10, 14): which nodes are heard, and which are lost.  The time is that of `clock.AwakeClock`.

A node is lost when nothing was heard of it for `heartbeat_timeout_s`, or when its connection ended and it did not come
back within `reconnect_grace_s`.  When most connections of a run end at once, or the server was stalled, the nodes are
probably not at fault: they get the longer time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from rallypoint.core.events import Lost
from rallypoint.messages.types import Settings
from rallypoint.server.clock import LOOK_S
from rallypoint.sorted_map import SortedMap

NO_BEATS: Mapping[str, float] = MappingProxyType({})


class Sign(msgspec.Struct, frozen=True):
    """The last sign of life of a node: on which connection, when, and whether that connection has ended since."""

    connection: int
    heard: float
    ended: float | None = None
    grace_s: float = 0.0
    """How long it is waited for after that, where this is longer than usual."""


class Liveness(msgspec.Struct, frozen=True):
    """When nodes were heard, and when to look at which of them again."""

    signs: SortedMap[str, Sign] = SortedMap()
    due: SortedMap[tuple[float, str], None] = SortedMap()
    silent: int = 0


def heard(life: Liveness, node_id: str, connection: int, settings: Settings, now: float) -> tuple[Liveness, bool]:
    """A node spoke on a connection; False where that connection is older than one it has used since."""
    known = life.signs.get(node_id)
    if known is not None and connection < known.connection:
        return life, False
    sign = Sign(connection, now)
    if known is None:
        return _note(life, node_id, sign, _together(now + settings.heartbeat_timeout_s)), True
    # The entry in `due` stays where it is and is judged when it comes up: a heartbeat costs one small change.
    return Liveness(life.signs.set(node_id, sign), life.due, life.silent - (known.ended is not None)), True


def ended(
    life: Liveness, node_id: str, connection: int, settings: Settings, now: float, *, our_fault: bool = False
) -> Liveness:
    """A connection ended, perhaps because the server was stalled; only the end of the newest one counts (rule 14)."""
    known = life.signs.get(node_id)
    if known is None or connection != known.connection or known.ended is not None:
        return life
    gone = Sign(connection, known.heard, now, settings.heartbeat_timeout_s if our_fault else 0.0)
    return _note(life, node_id, gone, _deadline(gone, settings, most=False)[0], silent=1)


def forget(life: Liveness, node_id: str) -> Liveness:
    """A node has left for good."""
    known = life.signs.get(node_id)
    if known is None:
        return life
    return Liveness(life.signs.without(node_id), life.due, life.silent - (known.ended is not None))


def tick(
    life: Liveness, settings: Settings, now: float, beats: Mapping[str, float] = NO_BEATS, *, is_closed: bool = False
) -> tuple[Liveness, tuple[Lost, ...]]:
    """Time passed: which nodes are lost now?  `beats` says when nodes last said nothing new.

    Only a node that would be lost is looked up there, so that a heartbeat costs no more than noting the time.
    """
    losses: list[Lost] = []
    signs, due, silent = life.signs, life.due, life.silent
    # From a closed run many hang up at once because they are done.
    most = silent > 1 and silent * 2 > len(signs) and not is_closed
    while (first := due.first()) is not None and first[0] <= now:
        due = due.without(first)
        node_id = first[1]
        sign = signs.get(node_id)
        if sign is None:
            continue
        if sign.ended is None and beats.get(node_id, 0.0) > sign.heard:
            sign = Sign(sign.connection, beats[node_id])
        deadline, why = _deadline(sign, settings, most=most)
        if deadline > now:
            due = due.set((deadline if sign.ended is not None else _together(deadline), node_id), None)
            continue
        signs, silent = signs.without(node_id), silent - (sign.ended is not None)
        losses.append(Lost(node_id, why))
    return Liveness(signs, due, silent), tuple(losses)


def deserted_at(
    life: Liveness, losses: tuple[Lost, ...], settings: Settings, now: float, beats: Mapping[str, float] = NO_BEATS
) -> float | None:
    """When most nodes will have been silent for the time-out, if none of them speaks until then; None if only a few are.

    It is asked when nodes are lost.  Closed connections do not count: a dead process closes its own, and a network that
    fails does not.
    """
    if all(life.signs[loss.node_id].ended is not None for loss in losses):
        return None
    heard = silent(life, settings, now, beats)
    if len(heard) < 2 or len(heard) * 2 <= len(life.signs):
        return None
    return max(heard.values()) + settings.heartbeat_timeout_s


def silent(life: Liveness, settings: Settings, now: float, beats: Mapping[str, float] = NO_BEATS) -> dict[str, float]:
    """When each node was last heard that has an open connection and was silent for half of the time-out."""
    heard = {i: max(sign.heard, beats.get(i, 0.0)) for i, sign in life.signs.items() if sign.ended is None}
    return {i: moment for i, moment in heard.items() if now - moment >= settings.heartbeat_timeout_s / 2}


def wake_at(life: Liveness) -> float | None:
    """When somebody may be lost; `tick` is due then."""
    first = life.due.first()
    return None if first is None else first[0]


def _deadline(sign: Sign, settings: Settings, *, most: bool) -> tuple[float, str]:
    """When a node with this sign of life is lost, and why; `most` nodes may have lost their connections at once."""
    if sign.ended is None:
        timeout = settings.heartbeat_timeout_s
        return sign.heard + timeout, f"nothing was heard of it for {timeout:.1f} s"
    grace = settings.heartbeat_timeout_s if most else max(settings.reconnect_grace_s, sign.grace_s)
    return sign.ended + grace, f"its connection ended and did not come back within {grace:.2f} s"


def _together(deadline: float) -> float:
    """The next of a few moments a second at which all silent nodes are looked at: that is cheaper than one by one."""
    return math.ceil(deadline / LOOK_S) * LOOK_S


def _note(life: Liveness, node_id: str, sign: Sign, deadline: float, silent: int = 0) -> Liveness:
    return Liveness(life.signs.set(node_id, sign), life.due.set((deadline, node_id), None), life.silent + silent)
