"""A small checker: whether calls that overlapped can be put into one order that explains all their answers.

The search is Wing and Gong's: of the calls that are not in order yet, any may be next that began before the first of
them had ended, if its answer is the one that the model gives.  Situations that were tried before are remembered, as
Lowe added.  Each key is checked by itself: an order for each key makes an order for all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Call(NamedTuple):
    """One call on one key, by a clock that all callers share."""

    began: int
    ended: int
    verb: str
    key: str
    args: tuple[bytes | int, ...]
    answer: bytes | int


def explain(calls: Iterable[Call]) -> str | None:
    """Why no order explains the calls; None if there is one."""
    by_key: defaultdict[str, list[Call]] = defaultdict(list)
    for call in calls:
        by_key[call.key].append(call)
    for key, of_key in by_key.items():
        if (stuck := _stuck(sorted(of_key))) is not None:
            return f"no order explains the calls on {key!r}; the longest that was found ends before one of {stuck}"
    return None


def _answer(verb: str, args: tuple[bytes | int, ...], value: bytes | None) -> tuple[bytes | int, bytes | None]:
    """What a register would answer, and what it would hold then."""
    match verb, args:
        case "add", (int(amount),):
            total = int(value or b"0") + amount
            return total, b"%d" % total
        case "compare_set", (bytes(expected), bytes(desired)):
            if (value or b"") == expected:
                return desired, desired
            return expected if value is None else value, value
        case "get", () if value is not None:
            return value, value
        case _:
            return b"no such answer", value


def _stuck(calls: Sequence[Call]) -> list[Call] | None:
    """The calls that could not be next in the longest order that was found; None if all have their place."""
    everything = (1 << len(calls)) - 1
    tried: set[tuple[int, bytes | None]] = set()
    pending: list[tuple[int, bytes | None]] = [(0, None)]
    longest, stuck = -1, list(calls[:1])
    while pending:
        done, value = pending.pop()
        if done == everything:
            return None
        if (done, value) in tried:
            continue
        tried.add((done, value))
        candidates = _candidates(calls, done)
        if done.bit_count() > longest:
            longest, stuck = done.bit_count(), [calls[index] for index in candidates]
        for index in reversed(candidates):
            answer, then = _answer(calls[index].verb, calls[index].args, value)
            if answer == calls[index].answer:
                pending.append((done | 1 << index, then))
    return stuck if calls else None


def _candidates(calls: Sequence[Call], done: int) -> list[int]:
    """Which calls may be next: those that began before any other that is left had ended.  Calls are by their start."""
    candidates: list[int] = []
    first_end: int | None = None
    index = (~done & (done + 1)).bit_length() - 1  # all before it are done
    while index < len(calls) and (first_end is None or calls[index].began <= first_end):
        if not done >> index & 1:
            candidates.append(index)
            ended = calls[index].ended
            first_end = ended if first_end is None else min(first_end, ended)
        index += 1
    return candidates
