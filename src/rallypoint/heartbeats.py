"""How often a node beats, and when it is answered: both ends of a connection go by this, without a word about it."""

from __future__ import annotations

from rallypoint.messages.types import Settings

_SHARE = 0.7
"""The share of the time-out that may pass without an answer; the rest is for delays on the way."""


def beat_after_s(settings: Settings, *, holds: bool) -> float:
    """How long a node waits before its next beat: while it holds its world, three beats a time-out are enough."""
    if not holds:
        return settings.heartbeat_interval_s
    return max(settings.heartbeat_interval_s, settings.heartbeat_timeout_s / 3)


def patience_s(settings: Settings) -> float:
    """For how long a server may be silent before a node gives up on its connection."""
    return settings.heartbeat_timeout_s


def must_answer(settings: Settings, unanswered_s: float, *, holds: bool) -> bool:
    """Whether a beat is to be answered: whether waiting for the next one would try the node's patience."""
    return unanswered_s + beat_after_s(settings, holds=holds) >= _SHARE * patience_s(settings)
