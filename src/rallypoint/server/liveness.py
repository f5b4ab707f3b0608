"""Liveness (rules 6, 10, 14): which nodes are heard, and which are lost.  The time is that of `clock.AwakeClock`.

A node is lost when nothing was heard of it for `heartbeat_timeout_s`, or when its connection ended and it did not come
back within `reconnect_grace_s`.  When most connections of a run end at once, or the server was stalled, the nodes are
probably not at fault: they get the longer time.  A server that hears nobody at all is probably itself cut off: it gives
nobody up before it hears one of them again, and then lets the others have the time that they need to come back.
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
    deaf_since: float | None = None
    """Since when nobody at all is heard, where that is so."""


def heard(life: Liveness, node_id: str, connection: int, settings: Settings, now: float) -> tuple[Liveness, bool]:
    """A node spoke on a connection; False where that connection is older than one it has used since."""
    known = life.signs.get(node_id)
    if known is not None and connection < known.connection:
        return life, False
    if life.deaf_since is not None:
        life = _hears_again(life, settings, now)
        known = life.signs.get(node_id)
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
    our_fault = our_fault or life.deaf_since is not None
    gone = Sign(connection, known.heard, now, settings.heartbeat_timeout_s if our_fault else 0.0)
    return _note(life, node_id, gone, _deadline(gone, settings, most=False)[0], silent=1)


def forget(life: Liveness, node_id: str) -> Liveness:
    """A node has left for good."""
    known = life.signs.get(node_id)
    if known is None:
        return life
    signs = life.signs.without(node_id)
    return Liveness(signs, life.due, life.silent - (known.ended is not None), life.deaf_since)


def tick(
    life: Liveness,
    settings: Settings,
    now: float,
    beats: Mapping[str, float] = NO_BEATS,
    *,
    is_closed: bool = False,
    waits_when_deaf: bool = False,
) -> tuple[Liveness, tuple[Lost, ...]]:
    """Time passed: which nodes are lost now?  `beats` says when nodes last said nothing new.

    Only a node that would be lost is looked up there, so that a heartbeat costs no more than noting the time.
    """
    if waits_when_deaf and not is_closed:
        life = _listen(life, settings, now, beats)
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
    return Liveness(signs, due, silent, life.deaf_since), tuple(losses)


def _listen(life: Liveness, settings: Settings, now: float, beats: Mapping[str, float]) -> Liveness:
    """Whether anybody at all is heard; where nobody is, all are looked at again later."""
    first = life.due.first()
    if first is None or first[0] > now:
        return life
    quiet_s = max(settings.heartbeat_timeout_s / 2, settings.heartbeat_interval_s * 1.5)
    is_deaf = len(life.signs) > 1 and all(
        now - max(sign.heard, beats.get(node_id, 0.0)) >= quiet_s for node_id, sign in life.signs.items()
    )
    if is_deaf and life.deaf_since is None and life.silent:
        return life  # connections end where processes do
    if not is_deaf:
        return life if life.deaf_since is None else _hears_again(life, settings, now)
    since = now if life.deaf_since is None else life.deaf_since
    if now - since >= settings.outage_grace_s:
        return life  # whoever lives has stopped its workers by now
    later = SortedMap[tuple[float, str], None]()
    for _, node_id in life.due:
        later = later.set((_together(now + settings.heartbeat_timeout_s / 2), node_id), None)
    return Liveness(life.signs, later, life.silent, since)


def _hears_again(life: Liveness, settings: Settings, now: float) -> Liveness:
    """Somebody is heard: all have the time-out, counted from when the last of them will have tried to connect."""
    again, tried = Liveness(), now + settings.reconnect_backoff_s
    for node_id, sign in life.signs.items():
        since = None if sign.ended is None else tried
        renewed = Sign(sign.connection, tried, since, settings.heartbeat_timeout_s if since is not None else 0.0)
        again = _note(again, node_id, renewed, _deadline(renewed, settings, most=False)[0], since is not None)
    return again


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
    due = life.due.set((deadline, node_id), None)
    return Liveness(life.signs.set(node_id, sign), due, life.silent + silent, life.deaf_since)
