"""The document's clock: no node owns the document, so its time is what its editors have seen pass between them.

Each editor lets it run on while it reads, takes the higher time where another knows more, and lets it stand still while
it could not read: an outage or a pause is nobody's last call (rule 10).
"""

from __future__ import annotations

import msgspec


class DocumentClock(msgspec.Struct, frozen=True):
    """The document's time at the moment of the last look, and when that was on the editor's own monotonic clock."""

    time: float = 0.0
    looked: float | None = None


def look(clock: DocumentClock, monotonic: float, longest_s: float) -> DocumentClock:
    """A look after at most `longest_s` lets the clock run on; a longer gap is a stall, and counts as that much."""
    gap_s = 0.0 if clock.looked is None else max(monotonic - clock.looked, 0.0)
    return DocumentClock(clock.time + min(gap_s, longest_s), monotonic)


def heard(clock: DocumentClock, time: float, monotonic: float, longest_s: float) -> DocumentClock:
    """Another editor knows what time it is; the higher one is right, for nobody counts time that did not pass.

    What has passed on this editor's own clock since its last look is in that time already, and not to be counted again.
    """
    clock = look(clock, monotonic, longest_s)
    return msgspec.structs.replace(clock, time=time) if time > clock.time else clock
