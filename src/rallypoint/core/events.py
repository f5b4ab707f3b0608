"""What can happen to a run: what a node says, what the server itself finds, and what an administrator does."""

from __future__ import annotations

import msgspec

from rallypoint.messages.requests import NodeMessage
from rallypoint.messages.types import Name, Node, Seconds, Why


class Lost(msgspec.Struct, frozen=True, tag="lost"):
    """The server has given a node up (rule 6): its lease ended, or its connection did not come back."""

    node_id: Name
    why: Why


class Evicted(msgspec.Struct, frozen=True, tag="evict"):
    """An administrator gives a node up, and keeps it out for so long."""

    node: Node
    for_s: Seconds
    why: Why = ""


class EvictionLifted(msgspec.Struct, frozen=True, tag="lift"):
    """An administrator lets a node in again, by its name or id."""

    node: Name


class TimePassed(msgspec.Struct, frozen=True, tag="time"):
    """Nothing happened but time; due whenever `transition.wake_at` says so."""


Event = NodeMessage | Lost | Evicted | EvictionLifted | TimePassed
