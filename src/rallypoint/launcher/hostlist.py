"""Slurm's node lists, `gpu[01-03,07],login`, read without `scontrol`, which an image rarely has."""

from __future__ import annotations

import re

_HOST = re.compile(r"(?:[^\[\],]|\[[^\[\]]*\])+")
"""What stands between the commas that are outside of brackets."""
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def first(text: str) -> str:
    """The first host of a node list; ValueError that shows the list where it cannot be read."""
    if not re.fullmatch(r"(?:[^\[\]]|\[[^\[\]]*\])*", text):
        raise ValueError(f"The node list {text!r} has brackets that do not match.")
    host = next((part.strip() for part in _HOST.findall(text) if part.strip()), "")
    if not host:
        raise ValueError(f"The node list {text!r} names no host.")
    return re.sub(r"\[([^\]]*)\]", lambda found: _first_number(found[1], text), host)


def _first_number(ranges: str, whole: str) -> str:
    """The first number of 01-03,07, with its zeros; all of it is read, so that a list that is not Slurm's is noticed."""
    for piece in ranges.split(","):
        match = _RANGE.fullmatch(piece.strip())
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ValueError(f"The node list {whole!r} has the range {piece!r}, which cannot be read.")
    return ranges.partition(",")[0].partition("-")[0].strip()
