"""Changes of a store's data as values, so that a file can keep them and every process can repeat them.  Pure."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from rallypoint.stores.data import KeyValues, W


class Verb(IntEnum):
    """What can be done to a key."""

    PUT = 1
    APPEND = 2
    DELETE = 3
    PUSH = 4
    POP = 5
    ARRIVE = 6  # at a barrier; the value is the world size


class Operation(NamedTuple):
    """One change of one key."""

    verb: Verb
    key: bytes
    value: bytes = b""


def arrival(key: bytes, world_size: int) -> Operation:
    """One more caller at a barrier."""
    return Operation(Verb.ARRIVE, key, b"%d" % world_size)


def apply(data: KeyValues[W], operation: Operation) -> None:
    """Make the change."""
    verb, key, value = operation
    match verb:
        case Verb.PUT:
            data.put(key, value)
        case Verb.APPEND:
            data.append(key, value)
        case Verb.DELETE:
            data.delete(key)
        case Verb.PUSH:
            data.push(key, value)
        case Verb.POP:
            data.pop(key)
        case Verb.ARRIVE:
            data.arrive(key, int(value))
