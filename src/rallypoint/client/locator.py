"""What a link asks of whatever finds the server: where to connect now (rule 17).

`location` implements it: at a fixed address, or by an election through a register.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from rallypoint.client.session import Session


class Target(msgspec.Struct, frozen=True):
    """Where the server is said to be, and the secret by which a node shows that it may connect (rule 17j)."""

    host: str
    port: int
    secret: str = ""


class Locator(Protocol):
    """Finds the server of one run for the nodes of this process.  On the background loop only."""

    async def find(self, session: Session) -> Target:
        """Where this node is to connect now; this process itself may become the server by that."""

    def where(self) -> str:
        """Where the server is looked for, as it stands in sentences."""

    async def release(self, timeout_s: float) -> bool:
        """A node of this process has no more use for the server; whether everything was in order within that time."""
