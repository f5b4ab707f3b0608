"""What the ranks of a job do together on a store: meet at a barrier, and give each other values.

They work on every store with the contract of `Store`, torch's own among them.  A time-out says which ranks did not come.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from rallypoint.stores.base import DEFAULT_TIMEOUT
from rallypoint.stores.errors import StoreTimeoutError
from rallypoint.waiting import in_seconds

# torch's stores have no class for time-outs alone.
_TIME_OUTS = (StoreTimeoutError, RuntimeError)


def barrier(
    store: Any, world_size: int, key: str = "barrier", timeout: timedelta = DEFAULT_TIMEOUT, *, rank: int | None = None
) -> None:
    """Wait until `world_size` callers have come to the barrier of that key.

    With a `rank` a time-out says which ranks are missing, and otherwise how many.  The same key may be used again and
    again, as long as all ranks come each time; after a time-out it is spoiled: take another.
    """
    _refuse_bad_world(world_size, rank)
    arrival = int(store.add(f"{key}/arrived", 1)) - 1
    # No rank can come for the next time before all have come for this one.
    meeting = f"{key}/{arrival // world_size}"
    if rank is not None:
        store.set(f"{meeting}/{rank}", b"here")
    if arrival % world_size == world_size - 1:
        store.set(f"{meeting}/open", b"yes")
        return
    try:
        store.wait([f"{meeting}/open"], timeout)
    except _TIME_OUTS as exc:
        if store.check([f"{meeting}/open"]):
            return
        here = int(store.add(f"{key}/arrived", 0)) - arrival // world_size * world_size
        missing: list[int] = _missing(store, meeting, world_size) if rank is not None else []
        raise StoreTimeoutError(
            f"{here} of {world_size} came to the barrier {key!r} within {in_seconds(timeout):g} s"
            + (f"; {_name_ranks(missing)}" if missing else "")
        ) from exc


def all_gather(
    store: Any,
    rank: int,
    world_size: int,
    value: bytes | str,
    key: str = "all_gather",
    timeout: timedelta = DEFAULT_TIMEOUT,
) -> list[bytes]:
    """Give all ranks a value, and get the values of all, in the order of their ranks.  Once for each key."""
    _refuse_bad_world(world_size, rank)
    store.set(f"{key}/{rank}", value)
    keys = [f"{key}/{other}" for other in range(world_size)]
    try:
        store.wait(keys, timeout)
    except _TIME_OUTS as exc:
        missing = _missing(store, key, world_size)
        if missing:
            raise StoreTimeoutError(
                f"{world_size - len(missing)} of {world_size} gave their values to {key!r} within "
                f"{in_seconds(timeout):g} s; {_name_ranks(missing)}"
            ) from exc
    return [bytes(given) for given in store.multi_get(keys)]


def _missing(store: Any, key: str, world_size: int) -> list[int]:
    return [rank for rank in range(world_size) if not store.check([f"{key}/{rank}"])]


def _name_ranks(ranks: list[int], most: int = 8) -> str:
    named = ", ".join(map(str, ranks[:most]))
    more = f" and {len(ranks) - most} more" if len(ranks) > most else ""
    return f"missing {'is rank' if len(ranks) == 1 else 'are the ranks'} {named}{more}"


def _refuse_bad_world(world_size: int, rank: int | None) -> None:
    if world_size < 1:
        raise ValueError(f"world_size is {world_size}, but should be the number of ranks, 1 or more")
    if rank is not None and not 0 <= rank < world_size:
        raise ValueError(f"rank is {rank}, but should be from 0 to {world_size - 1} in a world of {world_size}")
