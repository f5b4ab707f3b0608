"""What an election asks its shell to do (rule 17).

`ReadRecord`, `WriteRecord` and `Bind` are answered; there is at most one of them at a time.  The others are decisions.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rallypoint.core.model import EndedIncarnation, Run
from rallypoint.record import Claim, Record


class ReadRecord(msgspec.Struct, frozen=True):
    """Read the register; answered by `read` or `away`."""


class WriteRecord(msgspec.Struct, frozen=True):
    """Write this value where the token is right; answered by `wrote` or `away`."""

    record: Record
    value: bytes
    token: Any


class Bind(msgspec.Struct, frozen=True):
    """Bind a port to serve on; answered by `bound`."""


class Unbind(msgspec.Struct, frozen=True):
    """The port is not needed."""


class Listen(msgspec.Struct, frozen=True):
    """Call `changed` when the register may have changed since this token; replaces an earlier one."""

    token: Any


class Connect(msgspec.Struct, frozen=True):
    """The nodes of this process are to connect to the server with this claim."""

    claim: Claim
    epoch: int


class Serve(msgspec.Struct, frozen=True):
    """Serve on the port that was bound, from this run on (rule 17f)."""

    record: Record
    claim: Claim
    run: Run


class Recorded(msgspec.Struct, frozen=True):
    """What the server wanted to be recorded is: it may be told (rule 17c)."""

    run_id: str


class Renewed(msgspec.Struct, frozen=True):
    """The claim stood when the register was asked: the server may go on after a pause before that (rule 17e)."""

    run_id: str
    asked_at: float


class ClaimedAgain(msgspec.Struct, frozen=True):
    """The claim has a higher epoch now; the server keeps its nodes and memory (rule 17d)."""

    epoch: int


class Doubt(msgspec.Struct, frozen=True):
    """The claim cannot be renewed, for this reason; or it can again, where there is none (rule 17e)."""

    why: str


class Stop(msgspec.Struct, frozen=True):
    """Serve no longer: tell the callers, drop what was queued.  `epoch` is the highest that was seen."""

    why: str
    epoch: int
    handed_over: bool = False


class Ended(msgspec.Struct, frozen=True):
    """The incarnation that the nodes of this process are in has ended: they need no server to know it (rule 17h)."""

    how: EndedIncarnation


Action = (
    ReadRecord
    | WriteRecord
    | Bind
    | Unbind
    | Listen
    | Connect
    | Serve
    | Recorded
    | Renewed
    | ClaimedAgain
    | Doubt
    | Stop
    | Ended
)
