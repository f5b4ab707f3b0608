"""The places of all workers of a round, made of what the nodes tell each other.  Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

__all__ = ["Places", "Told", "places_of"]


class Told(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a node tells the others before any worker starts.

    `host` is empty where this launcher has its host, or devices of its own, for itself; launchers with the same one number
    their workers together.  `cores` are those that it may use.  `coordinator` is where JAX's process 0 would listen.
    """

    workers: int
    role: str = ""
    host: str = ""
    cores: str = ""
    coordinator: tuple[str, int] | None = None


class Places(msgspec.Struct, frozen=True):
    """The first rank of a node's workers among all, on its host and in its role, and how many workers there are of each.

    `shares_cores`: the launchers of its host have the same cores, and so have to share them.
    """

    first_rank: int
    world_size: int
    first_local_rank: int
    local_world_size: int
    first_role_rank: int
    role_world_size: int
    shares_cores: bool = False


def places_of(told: Sequence[Told], node: int) -> Places:
    """Where the workers of a node stand; `told` is in the order of the nodes' ranks."""
    own = told[node]
    beside = [number for number, other in enumerate(told) if number == node or (own.host and other.host == own.host)]
    alike = [number for number, other in enumerate(told) if other.role == own.role]
    return Places(
        first_rank=sum(other.workers for other in told[:node]),
        world_size=sum(other.workers for other in told),
        first_local_rank=sum(told[number].workers for number in beside if number < node),
        local_world_size=sum(told[number].workers for number in beside),
        first_role_rank=sum(told[number].workers for number in alike if number < node),
        role_world_size=sum(told[number].workers for number in alike),
        shares_cores=len(beside) > 1 and len({told[number].cores for number in beside}) == 1,
    )
