"""What a server says to a node: O(1) bytes each (rule 12)."""

from __future__ import annotations

import msgspec

from rallypoint.messages.types import Count, Ending, Round, Seconds, Text, Token


class Placed(msgspec.Struct, frozen=True, tag="placed", omit_defaults=True):
    """A node's place in a sealed world, and which ranks of it are in the process that serves.

    `store_secret` is what this node and the round's store prove to each other; empty where the store cannot (rule 16).
    `mac` is the server's own mark of the place, where it has a token: the node shows it with its seat.
    """

    incarnation: Token
    round: Round
    seal_id: Token
    rank: Count
    size: Count
    store: Token
    remark: Text = ""
    server_ranks: tuple[Count, ...] = ()
    mac: Token = ""
    store_secret: Token = ""


class Broken(msgspec.Struct, frozen=True, tag="broken"):
    """The world with this seal id is over (rules 6 and 9)."""

    seal_id: Token
    why: Text


class WaitingCount(msgspec.Struct, frozen=True, tag="waiting"):
    """How many newcomers could be admitted to this world (rule 6b)."""

    seal_id: Token
    count: Count


class KeepWaiting(msgspec.Struct, frozen=True, tag="wait"):
    """You are in the queue, and this is what is awaited (rule 11), at most for so long where that is known.

    `round` is the last one that was sealed: a node that has heard of it can tell a server that forgot it.
    """

    incarnation: Token
    round: Round
    why: Text
    at_most_s: Seconds | None = None


class StandBy(msgspec.Struct, frozen=True, tag="standby"):
    """You are a spare: no deadline runs until you are needed (rule 7)."""

    incarnation: Token
    round: Round
    why: Text


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """You cannot join as you asked to; asking again changes nothing."""

    why: Text


class RunClosed(msgspec.Struct, frozen=True, tag="closed"):
    """The run is closed (rules 1 and 8)."""

    incarnation: Token
    ending: Ending
    why: Text


class Fenced(msgspec.Struct, frozen=True, tag="fenced"):
    """You are no longer part of the world with this seal id: stop, and join as a newcomer (rule 9)."""

    seal_id: Token
    why: Text


NodeNotice = Placed | Broken | WaitingCount | KeepWaiting | StandBy | Refused | RunClosed | Fenced
