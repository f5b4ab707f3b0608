"""Counts, times and names as they stand in sentences."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from itertools import islice

from rallypoint.messages.types import Bounds

SHOWN = 6
"""How many names a sentence lists."""

_TIMES = re.compile(r"\b\d+(\.\d+)? (d|h|min|s)\b( \d+ (h|min|s)\b)?")


def nodes(count: int) -> str:
    """A number of nodes, in words that read well."""
    return count_of(count, "node")


def count_of(number: int, noun: str) -> str:
    """A number of things, in words that read well."""
    return f"1 {noun}" if number == 1 else f"{number} {noun}s"


def size(bounds: Bounds) -> str:
    """How many nodes a run is for."""
    return nodes(bounds.max) if bounds.min == bounds.max else f"{bounds} nodes"


def are(count: int) -> str:
    """The verb for so many, or nobody."""
    return "are" if count > 1 else "is"


def seconds(left: float) -> str:
    """A rest of time, never negative."""
    return f"{max(left, 0.0):.1f} s"


def gist(sentence: str) -> str:
    """A sentence without its times: two with the same gist give the same reason, only later."""
    return _TIMES.sub("… s", sentence)


def duration(total: float) -> str:
    """A time that may be long, in its two largest units."""
    whole = math.ceil(max(total, 0.0) - 0.001)
    days, hours, minutes, rest = whole // 86400, whole // 3600 % 24, whole // 60 % 60, whole % 60
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    first = next((i for i, (count, _) in enumerate(parts) if count), len(parts) - 1)
    return " ".join(f"{count} {unit}" for count, unit in parts[first : first + 2] if count or unit == parts[first][1])


def names(some: Iterable[str], count: int) -> str:
    """The first few names, and how many more there are."""
    shown = list(islice(some, SHOWN))
    rest = f" and {count - len(shown)} more" if count > len(shown) else ""
    if not shown:
        return nodes(count) if count else "nobody"
    return ", ".join(shown) + rest
