"""The server's clock (rule 10): monotonic, its own, and standing still while the server was stalled.

A process that was stopped, swapped out or starved could not have heard anybody.  So time in which it did not look at
its clock does not count, for losses or for anything else.
"""

from __future__ import annotations

import msgspec

LOOK_S = 0.25
"""How often a hosting looks at its clock at least; a much longer gap is a stall."""


class AwakeClock(msgspec.Struct, frozen=True):
    """When the hosting last looked at its monotonic clock, and for how long it has been stalled in all.

    `last_stall_s` is how long the last stall was, and `woke` when it ended, in the time of this clock.
    """

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
    """Whether there was a stall a moment ago that was so long that nodes may have hung up, and be about to come back."""
    return clock.last_stall_s >= timeout_s / 2 and now < clock.woke + timeout_s
