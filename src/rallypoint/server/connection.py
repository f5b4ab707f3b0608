"""What a server knows of one connection."""

from __future__ import annotations

from dataclasses import dataclass

from rallypoint import protocol
from rallypoint.core.model import Run


@dataclass
class Connection:
    """One connection: nobody until it has said hello."""

    opened: float
    reader: protocol.Reader
    is_local: bool = False
    """Whether it is on the server's own machine."""
    hello: protocol.Hello | None = None
    nonce: str = ""
    """An administrator was challenged by it, and has not proven yet that it knows the secret (rule 17j)."""
    frame: bytes = b""
    """The last announcement that needed no answer, as it came, and the run as it was then."""
    known: Run | None = None
    holds: bool = False
    waits: bool = False
    takes_part: bool = False
    """Whether it has said anything as a node; one that has only connected is not waited for by a server that leaves."""
    answered: float = 0.0
    greeted: bool = False
    """Whether the server has said anything on this connection."""

    @property
    def key(self) -> tuple[str, str]:
        """Its run and its node; empty ones for an administrator."""
        assert self.hello is not None, "only who said hello has a name"
        return self.hello.run_id, self.hello.node_id

    def opening(self) -> bytes:
        """What goes before the first message to it."""
        opening = b"" if self.greeted else protocol.MAGIC
        self.greeted = True
        return opening
