"""Rank policies (rule 5): which node gets which rank when a world is sealed.

A policy is a function from candidates to a `Ranking`; pass your own to the transition under a name of its own and let
`Settings.rank_policy` name it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import msgspec

from rallypoint.errors import RendezvousError
from rallypoint.messages.types import Node


class Candidate(msgspec.Struct, frozen=True):
    """A node that will be in the world: when it came, and its rank in the world before, if it was there."""

    node: Node
    arrival: int
    old_rank: int | None = None


class Ranking(msgspec.Struct, frozen=True):
    """The nodes in the order of their ranks, and a remark for each that did not get what it asked for."""

    members: tuple[Node, ...]
    remarks: dict[str, str] = {}


RankPolicy = Callable[[Sequence[Candidate]], Ranking]
Policies = Mapping[str, RankPolicy]

_DIGITS = re.compile(r"(\d+)")
NaturalKey = tuple[tuple[bool, int, str], ...]


def natural(name: str) -> NaturalKey:
    """A sorting key by which node9 comes before node10."""
    return tuple((part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in _DIGITS.split(name))


def by_nature(candidate: Candidate) -> tuple[list[NaturalKey], NaturalKey, int]:
    """The order of nodes without a rank to keep or a wanted one: topology, then host name, then arrival."""
    node = candidate.node
    return [natural(part) for part in node.topology.split("/")], natural(node.name), candidate.arrival


def sticky(candidates: Sequence[Candidate]) -> Ranking:
    """A survivor keeps its rank, rank 0 goes to one, then hints, then topology, name and arrival fill the gaps."""
    size = len(candidates)
    survivors = {c.old_rank: c for c in candidates if c.old_rank is not None}
    taken = {old_rank: c for old_rank, c in survivors.items() if old_rank < size}
    if survivors and 0 not in taken:
        # Rank 0 often holds what the job cannot rebuild: it goes to the survivor nearest to it.
        nearest = min(survivors)
        taken.pop(nearest, None)
        taken[0] = survivors[nearest]
    settled = {c.node.id for c in taken.values()}
    rest = [c for c in candidates if c.node.id not in settled]
    return _fill(taken, rest, size)


def arrival(candidates: Sequence[Candidate]) -> Ranking:
    """First come, first ranked."""
    return Ranking(tuple(c.node for c in sorted(candidates, key=lambda c: c.arrival)))


def _fill(taken: dict[int, Candidate], rest: Sequence[Candidate], size: int) -> Ranking:
    """Give the free ranks to the rest: first as wanted, then by nature."""
    remarks: dict[str, str] = {}
    unsettled: list[Candidate] = []
    for candidate in sorted(rest, key=lambda c: c.arrival):
        wanted = candidate.node.wanted_rank
        if wanted is not None and wanted < size and wanted not in taken:
            taken[wanted] = candidate
            continue
        if wanted is not None:
            why = f"{taken[wanted].node.name} has it" if wanted < size else f"the world has only {size} nodes"
            remarks[candidate.node.id] = f"rank {wanted} was wanted, but {why}"
        unsettled.append(candidate)
    free = [rank for rank in range(size) if rank not in taken]
    taken.update(zip(free, sorted(unsettled, key=by_nature), strict=True))
    return Ranking(tuple(taken[rank].node for rank in range(size)), remarks)


STICKY = "sticky"
POLICIES: Policies = {STICKY: sticky, "arrival": arrival}


def rank(policies: Policies, name: str, candidates: Sequence[Candidate]) -> Ranking:
    """Ask the named policy; what it answers must be the candidates, each once."""
    if name not in policies:
        raise RendezvousError(f"there is no rank policy {name!r}; there are {', '.join(sorted(policies))}")
    ranking = policies[name](candidates)
    if sorted(n.id for n in ranking.members) != sorted(c.node.id for c in candidates):
        raise RendezvousError(
            f"the rank policy {name!r} must return each of the {len(candidates)} candidates once; "
            f"it returned {len(ranking.members)} nodes: mend the policy, or use 'sticky'"
        )
    return ranking
