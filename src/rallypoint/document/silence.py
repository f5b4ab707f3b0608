"""Who is silent, as one reader sees it (the document hosting's rule of liveness).

Every node's sign of life changes with each beat.  Silence is counted on the reader's own clock, and only between its
own reads that are at most two intervals apart, while its own beats succeed: an outage or a pause starts all over.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

EVICTED = "evicted"
"""What stands in place of a node's sign of life once it was given up, with who did it: its next beat finds it."""


class Watched(msgspec.Struct, frozen=True):
    """A node's last sign, for how long it has not changed, and whether it ever did."""

    sign: str
    silent_s: float = 0.0
    spoke: bool = False


class Silence(msgspec.Struct, frozen=True):
    """What a reader knows of the others."""

    watched: Mapping[str, Watched] = {}
    looked: float | None = None


def is_evicted(sign: str) -> bool:
    """Whether a node was given up."""
    return sign.startswith(EVICTED)


def look(silence: Silence, signs: Mapping[str, str], now: float, interval_s: float, *, beating: bool) -> Silence:
    """The reader looks at everybody's signs; `beating` says whether its own beats get through."""
    gap_s = None if silence.looked is None else now - silence.looked
    counts = beating and gap_s is not None and gap_s <= 2 * interval_s
    watched: dict[str, Watched] = {}
    for node_id, sign in signs.items():
        known = silence.watched.get(node_id)
        if known is None:
            watched[node_id] = Watched(sign)
        elif known.sign != sign:
            watched[node_id] = Watched(sign, spoke=True)
        elif counts and gap_s is not None:
            watched[node_id] = Watched(sign, known.silent_s + gap_s, known.spoke)
        else:
            watched[node_id] = Watched(sign, 0.0, known.spoke)
    return Silence(watched, now)


def silent(silence: Silence, timeout_s: float) -> dict[str, str]:
    """Who has been silent for too long, with the sign that did not change; or was given up by somebody else."""
    return {
        node_id: one.sign
        for node_id, one in silence.watched.items()
        if is_evicted(one.sign) or one.silent_s >= timeout_s
    }


def anyone_spoke(silence: Silence) -> bool:
    """Whether any of those who are watched has been heard."""
    return any(one.spoke for one in silence.watched.values())


def patience_s(silence: Silence, timeout_s: float) -> float:
    """How long after the last look somebody will have been silent for too long, unless it is heard before."""
    left_s = (timeout_s - one.silent_s for one in silence.watched.values() if not is_evicted(one.sign))
    return min((each for each in left_s if each > 0), default=timeout_s)
