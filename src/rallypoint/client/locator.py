"""What a link asks of a locator in `location` (rule 17): where to connect now.  All of it is on the background loop."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import Protocol

import msgspec

from rallypoint.client.session import Session
from rallypoint.core.model import EndedIncarnation
from rallypoint.net import HTTP_PROBE, written
from rallypoint.tls import TlsContext
from rallypoint.tokens import Token

ASK_S = 1.0


class Target(msgspec.Struct, frozen=True):
    """Where the server is said to be, and how a node shows that it may connect: a token, TLS."""

    hosts: tuple[str, ...]
    port: int
    claim_id: str = ""
    token: Token | None = None
    tls: TlsContext | None = None

    @property
    def in_words(self) -> str:
        """The server, as it stands in sentences."""
        return f"the server at {written(self.hosts[0], self.port)}"

    @property
    def silence(self) -> str:
        """What may hang up without a word, as asyncio does where it believes no certificate."""
        if self.tls is not None:
            other = ", or it does not believe this node's certificate"
        else:
            other = "" if self.claim_id else ", or it wants certificates: give cacert, cert and key"
        return f"it closed the connection without a word: something else may listen there{other}"

    async def what_answers(self) -> str:
        """What is there that took a connection and never spoke, where it answers an HTTP request."""
        try:
            reader, writer = await asyncio.wait_for(asyncio.open_connection(self.hosts[0], self.port), ASK_S)
            with closing(writer):
                writer.write(HTTP_PROBE)
                answer = await asyncio.wait_for(reader.read(64), ASK_S)
        except (OSError, UnicodeError, asyncio.TimeoutError):
            return ""
        return ": an HTTP server is there" if answer.startswith(b"HTTP/") else ""


class Seeker(Protocol):
    """What a locator asks of the link that it finds the server for."""

    @property
    def session(self) -> Session:
        """The node's end of the protocol."""

    def move(self) -> None:
        """The server is elsewhere now: connect there at once."""

    def tell_ended(self, how: EndedIncarnation) -> None:
        """The register says that this incarnation has ended (rule 17h)."""

    def refuse(self, problem: Exception) -> None:
        """There is no use in looking for the server; a node that joins is to see this error."""


class Locator(Protocol):
    """Finds the server of one run for one node."""

    async def find(self, seeker: Seeker) -> Target:
        """Where this node is to connect now; this process itself may become the server by that."""

    def welcomed(self, seeker: Seeker, target: Target) -> None:
        """The server there has taken this node in."""

    def failed(self, seeker: Seeker, target: Target, *, refused: bool) -> None:
        """A connection there could not be made, or ended."""

    def beat(self, seeker: Seeker) -> None:
        """The node beats: its session tells whether it hears the server."""

    def where(self) -> str:
        """Where the server is looked for, as it stands in sentences."""

    def explain(self, trouble: str) -> str:
        """Why the server is not reached, in words, given what became of the last connection."""

    def doubt(self) -> str:
        """What is wrong with a server that answers and cannot renew its claim, in words (rule 17e)."""

    @property
    def hosts_medium(self) -> bool:
        """Whether what must outlive the server, or by which it is found, lives in this process, and ends with it."""

    async def release(self, timeout_s: float) -> bool:
        """This node has no more use for the server; whether everything was in order within that time."""

    async def abandon(self) -> None:
        """End without a word to anybody, as a process does that is killed."""
