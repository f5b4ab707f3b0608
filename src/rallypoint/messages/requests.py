"""What a node says to its server: it joins, announces itself, leaves, or asks for the run to be closed."""

from __future__ import annotations

import enum

import msgspec

from rallypoint.messages.types import Bounds, Count, Ending, Name, Node, Reason, Round, Seen, Settings, Size, Token, Why


class Standing(enum.Enum):
    """What a node says of itself when it announces itself (rule 14)."""

    WAITING = "waiting"
    SPARE = "spare"
    HOLDS = "holds"
    BROKEN = "broken"
    FINISHED = "finished"
    CLOSED = "closed"


class Seat(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node's place in a world, as the node remembers it: all that is needed to rebuild that world from its members."""

    round: Round
    seal_id: Token
    size: Size
    rank: Count
    mac: Token = ""

    def __post_init__(self) -> None:
        if not self.seal_id or self.rank >= self.size or self.round < 1:
            raise ValueError(
                f"a seat must name its world and lie inside it, not rank {self.rank} of {self.size} "
                f"in round {self.round} with seal id {self.seal_id!r}"
            )


class Joined(msgspec.Struct, frozen=True, tag="join", omit_defaults=True):
    """A node asks for a place in the next world.

    `seat` is the place that it last received; its seal id is the `after` of rule 6a.  `round_seen` is the highest round
    that it has heard of, be it in it or not.
    """

    node: Node
    bounds: Bounds
    settings: Settings = Settings()
    incarnation: Token = ""
    seat: Seat | None = None
    round_seen: Seen = 0


class Announced(msgspec.Struct, frozen=True, tag="announce", omit_defaults=True):
    """A node says all that it knows, on every new connection and with every heartbeat (rule 14).

    It changes nothing where the server knows the same, and repairs whatever a lost message left behind.  `waiting`
    is the number of newcomers that it was told of.
    """

    node: Node
    bounds: Bounds
    standing: Standing
    settings: Settings = Settings()
    incarnation: Token = ""
    seat: Seat | None = None
    round_seen: Seen = 0
    waiting: Count = 0
    ending: Ending = Ending.FAILED
    why: Why = ""


class Left(msgspec.Struct, frozen=True, tag="leave", omit_defaults=True):
    """A node leaves for good, and says why (rule 8).  `seal_id` names the world that it speaks of, if it has one."""

    node_id: Name
    reason: Reason
    seal_id: Token = ""
    why: Why = ""


class CloseAsked(msgspec.Struct, frozen=True, tag="close", omit_defaults=True):
    """Somebody closes the run for everybody.  `incarnation`, where given, must be the run's own."""

    by: Name
    why: Why = ""
    ending: Ending = Ending.FAILED
    incarnation: Token = ""


NodeMessage = Joined | Announced | Left | CloseAsked


def sender_of(message: NodeMessage) -> str:
    """The node that a message is from, by its own account."""
    if isinstance(message, (Joined, Announced)):
        return message.node.id
    return message.node_id if isinstance(message, Left) else message.by


def settings_of(message: NodeMessage) -> Settings:
    """The settings of the node that a message is from, where it tells them."""
    return message.settings if isinstance(message, (Joined, Announced)) else Settings()
