"""Slurm's node lists, `gpu[01-03,07],login`, expanded without `scontrol`, which an image rarely has."""

from __future__ import annotations

import re
from collections.abc import Iterator

LONGEST = 100_000
"""More hosts than that are taken for a mistake."""
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def expand(text: str) -> list[str]:
    """The hosts of a node list in order; ValueError that shows the list where it cannot be read."""
    hosts: list[str] = []
    for part in _split(text):
        for host in _expand_part(part, text):
            hosts.append(host)
            if len(hosts) > LONGEST:
                raise ValueError(f"The node list {text[:80]!r} names more than {LONGEST} hosts.")
    return hosts


def first(text: str) -> str:
    """The first host of a node list."""
    for part in _split(text):
        return next(_expand_part(part, text))
    raise ValueError(f"The node list {text!r} names no host.")


def _split(text: str) -> Iterator[str]:
    """The parts of a list between the commas that stand outside of brackets."""
    depth, start = 0, 0
    for at, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if depth not in (0, 1):
            raise ValueError(f"The node list {text!r} has brackets that do not match.")
        if char == "," and depth == 0:
            yield from filter(None, [text[start:at].strip()])
            start = at + 1
    if depth:
        raise ValueError(f"The node list {text!r} has brackets that do not match.")
    yield from filter(None, [text[start:].strip()])


def _expand_part(part: str, whole: str) -> Iterator[str]:
    """The hosts of one part; it may have several pairs of brackets."""
    before, bracket, rest = part.partition("[")
    if not bracket:
        yield before
        return
    ranges, _, after = rest.partition("]")
    for piece in ranges.split(","):
        match = _RANGE.fullmatch(piece.strip())
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ValueError(f"The node list {whole!r} has the range {piece!r}, which cannot be read.")
        low, high = match[1], match[2] or match[1]
        for number in range(int(low), int(high) + 1):
            for tail in _expand_part(after, whole):
                yield f"{before}{number:0{len(low)}d}{tail}"
