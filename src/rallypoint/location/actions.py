"""What an election asks its shell to do (rule 17).

`ReadRecord`, `WriteRecord` and `Bind` are answered; there is at most one of them at a time.  The others are decisions.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rallypoint.core.model import EndedIncarnation, Run
from rallypoint.record import Claim, Record


class Action(msgspec.Struct, frozen=True):
    """Any of them."""


class ReadRecord(Action, frozen=True):
    """Read the register; answered by `read` or `away`."""


class WriteRecord(Action, frozen=True):
    """Write this value where the token is right; answered by `wrote` or `away`."""

    record: Record
    value: bytes
    token: Any


class Bind(Action, frozen=True):
    """Bind a port to serve on; answered by `bound` or `not_bound`."""


class Unbind(Action, frozen=True):
    """The port is not needed."""


class Connect(Action, frozen=True):
    """The nodes of this process are to connect to the server with this claim."""

    claim: Claim


class Serve(Action, frozen=True):
    """Serve on the port that was bound, from this run on (rule 17f)."""

    record: Record
    claim: Claim
    run: Run


class Recorded(Action, frozen=True):
    """What the server wanted to be recorded is: it may be told (rule 17c)."""


class Renewed(Action, frozen=True):
    """The claim stood when the register was asked: the server may go on after a pause before that (rule 17e)."""

    asked_at: float


class ClaimedAgain(Action, frozen=True):
    """The claim has a higher epoch now; the server keeps its nodes and memory (rule 17d)."""

    epoch: int


class Doubt(Action, frozen=True):
    """The claim cannot be renewed, for this reason; or it can again, where there is none (rule 17e)."""

    why: str


class Stop(Action, frozen=True):
    """Serve no longer: tell the callers, drop what was queued.  `epoch` is the highest that was seen."""

    why: str
    epoch: int
    handed_over: bool = False


class Ended(Action, frozen=True):
    """The incarnation that the nodes of this process are in has ended: they need no server to know it (rule 17h)."""

    how: EndedIncarnation
