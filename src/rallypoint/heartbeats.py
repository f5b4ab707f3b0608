"""How often a node sends a heartbeat, and when it is answered: both ends of a connection know this in advance."""

from __future__ import annotations

from rallypoint.messages.types import Settings

_SHARE = 0.7
"""The share of the time-out that may pass without an answer; the rest is for delays on the way."""


def beat_after_s(settings: Settings, *, holds: bool) -> float:
    """How long a node waits before its next heartbeat; one that holds its world sends three per time-out."""
    if not holds:
        return settings.heartbeat_interval_s
    return max(settings.heartbeat_interval_s, settings.heartbeat_timeout_s / 3)


def must_answer(settings: Settings, unanswered_s: float, *, holds: bool) -> bool:
    """Whether a heartbeat must be answered now, because the next one could come too late for the node."""
    return unanswered_s + beat_after_s(settings, holds=holds) >= _SHARE * settings.heartbeat_timeout_s
