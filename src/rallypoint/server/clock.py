"""The server's clock (rule 10): monotonic, its own, and standing still while the server was stalled.

A process that was stopped, swapped out or starved could not have heard any node, so that time does not count.
"""

from __future__ import annotations

import msgspec

LOOK_S = 0.25
"""How often a server looks at its clock at least; a much longer gap is a stall."""


class AwakeClock(msgspec.Struct, frozen=True):
    """When the server last looked at its clock, for how long it was stalled in all and last, and when that ended."""

    looked: float
    stalled_s: float = 0.0
    last_stall_s: float = 0.0
    woke: float = 0.0


def look(clock: AwakeClock, monotonic: float) -> tuple[AwakeClock, float]:
    """Look at the clock: the clock as it is now, and the time on it."""
    gap = monotonic - clock.looked
    if gap <= 2 * LOOK_S:
        return msgspec.structs.replace(clock, looked=monotonic), monotonic - clock.stalled_s
    stalled_s = clock.stalled_s + gap - LOOK_S
    now = monotonic - stalled_s
    return AwakeClock(monotonic, stalled_s, gap - LOOK_S, now), now


def just_woke(clock: AwakeClock, timeout_s: float, now: float) -> bool:
    """Whether a stall ended a moment ago that was so long that nodes may have hung up, and be about to come back."""
    return clock.last_stall_s >= timeout_s / 2 and now < clock.woke + timeout_s
