"""Liveness (rules 6, 10, 14): who is heard, and who is lost; pure as the rest, the shell brings the time.

A node is lost when nothing was heard of it for `heartbeat_timeout_s`, or when its connection ended and it did not come
back within `reconnect_grace_s`.  When most of a run goes silent at once, the network is the likelier culprit, and after
a stall of the server it is the server: they get the longer time.  The time is that of `clock.AwakeClock`, which stands
still while the server is stalled.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec

from rallypoint.core.events import Lost
from rallypoint.messages.types import Settings
from rallypoint.server.clock import LOOK_S
from rallypoint.sorted_map import SortedMap

NO_BEATS: Mapping[str, float] = MappingProxyType({})


class Sign(msgspec.Struct, frozen=True):
    """The last sign of life of a node: on which connection, when, and whether that connection has ended since.

    `allowance` is how long it is waited for at least, where that is longer than usual.
    """

    connection: int
    heard: float
    ended: float | None = None
    allowance: float = 0.0


class Liveness(msgspec.Struct, frozen=True):
    """Who has been heard, and when to look at whom again."""

    signs: SortedMap[str, Sign] = SortedMap()
    due: SortedMap[tuple[float, str], None] = SortedMap()
    silent: int = 0


def expect(life: Liveness, node_ids: Iterable[str], allowance: float, now: float) -> Liveness:
    """Nodes that a record names: they have `allowance` seconds to speak up."""
    for node_id in node_ids:
        life = _note(life, node_id, Sign(0, now, None, allowance), now + allowance)
    return life


def heard(life: Liveness, node_id: str, connection: int, settings: Settings, now: float) -> tuple[Liveness, bool]:
    """A node spoke on a connection; False where that connection is older than one it has used since."""
    known = life.signs.get(node_id)
    if known is not None and connection < known.connection:
        return life, False
    sign = Sign(connection, now)
    if known is None or (known.allowance and known.ended is None):
        return _note(life, node_id, sign, _together(now + settings.heartbeat_timeout_s)), True
    back = known.ended is not None
    # The entry in `due` stays where it is and is judged when it comes up: a heartbeat costs one small change.
    return msgspec.structs.replace(life, signs=life.signs.set(node_id, sign), silent=life.silent - back), True


def ended(
    life: Liveness, node_id: str, connection: int, settings: Settings, now: float, *, our_fault: bool = False
) -> Liveness:
    """A connection ended.  The end of an older connection than the newest means nothing (rule 14).

    `our_fault` says that the server was stalled just before: who hung up then comes back when its pause between two
    attempts is over.
    """
    known = life.signs.get(node_id)
    if known is None or connection != known.connection or known.ended is not None:
        return life
    gone = Sign(connection, known.heard, now, settings.heartbeat_timeout_s if our_fault else 0.0)
    noted = _note(life, node_id, gone, _deadline(gone, settings, most=False)[0])
    return msgspec.structs.replace(noted, silent=noted.silent + 1)


def forget(life: Liveness, node_id: str) -> Liveness:
    """A node has left for good."""
    known = life.signs.get(node_id)
    if known is None:
        return life
    silent = life.silent - (known.ended is not None)
    return msgspec.structs.replace(life, signs=life.signs.without(node_id), silent=silent)


def tick(
    life: Liveness,
    settings: Settings,
    now: float,
    beats: Mapping[str, float] = NO_BEATS,
    *,
    is_closed: bool = False,
) -> tuple[Liveness, tuple[Lost, ...]]:
    """Time passed: who is lost now?  Where the run is closed, many hang up at once because they are done.

    `beats` is when nodes were last heard to say nothing new.  It is looked at only for those who would be lost
    otherwise, so that a heartbeat costs its receiver no more than noting the time.
    """
    losses: list[Lost] = []
    signs, due, silent = life.signs, life.due, life.silent
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
    """When most nodes will have been silent for the time-out, if none of them speaks until then; None where a few are.

    Asked when somebody is lost, and silence is the reason.  Nodes that are cut off together were heard for the last time
    within one interval.  Closed connections do not count: a dead process closes its own, and a network that fails does not.
    """
    if all(life.signs[loss.node_id].ended is not None for loss in losses):
        return None
    heard = silent(life, settings, now, beats)
    if len(heard) < 2 or len(heard) * 2 <= len(life.signs):
        return None
    return max(heard.values()) + settings.heartbeat_timeout_s


def silent(life: Liveness, settings: Settings, now: float, beats: Mapping[str, float] = NO_BEATS) -> dict[str, float]:
    """When those were last heard whose connection is open and who have been silent for half of the time-out."""
    heard = {i: max(sign.heard, beats.get(i, 0.0)) for i, sign in life.signs.items() if sign.ended is None}
    return {i: moment for i, moment in heard.items() if now - moment >= settings.heartbeat_timeout_s / 2}


def wake_at(life: Liveness) -> float | None:
    """When somebody may be lost; `tick` is due then."""
    first = life.due.first()
    return None if first is None else first[0]


def _deadline(sign: Sign, settings: Settings, *, most: bool) -> tuple[float, str]:
    """When a node with this sign of life is lost, and what is said then; `most` of them may be silent at once."""
    if sign.ended is None:
        patience = max(settings.heartbeat_timeout_s, sign.allowance)
        return sign.heard + patience, f"nothing was heard of it for {patience:.1f} s"
    grace = settings.heartbeat_timeout_s if most else max(settings.reconnect_grace_s, sign.allowance)
    return sign.ended + grace, f"its connection ended and did not come back within {grace:.2f} s"


def _together(deadline: float) -> float:
    """Silent nodes are looked at a few times a second, all who are due: looking at each alone would cost more."""
    return math.ceil(deadline / LOOK_S) * LOOK_S


def _note(life: Liveness, node_id: str, sign: Sign, deadline: float) -> Liveness:
    return msgspec.structs.replace(
        life, signs=life.signs.set(node_id, sign), due=life.due.set((deadline, node_id), None)
    )
