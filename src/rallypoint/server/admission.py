"""Which callers a server takes: how many, what a hello must say, and the sentence for a caller that is turned away."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from rallypoint import protocol
from rallypoint.core.model import Phase, Run
from rallypoint.messages.notices import Fenced, Placed
from rallypoint.messages.requests import Announced, Joined, NodeMessage, Seat, Standing
from rallypoint.messages.types import Settings
from rallypoint.server.runs import DEFAULTS, HostedRun
from rallypoint.tokens import AccessRole, Side, Token
from rallypoint.tokens import nonce as fresh_nonce

log = logging.getLogger("rallypoint.server")


@dataclass(frozen=True)
class ServerLimits:
    """Bounds that keep one client from harming the others."""

    connections: int = 100_000
    runs: int = 10_000
    nodes_a_run: int = 200_000
    silent_connections: int = 16_384
    """Connections that have not said hello."""
    hello_s: float = 10.0
    """How long a connection may take to say hello."""
    idle_s: float = 60.0
    """How long a caller that takes part in no run may say nothing."""
    questions: int = 64
    """How many questions of one caller are answered before others have their turn."""
    frame: int = 64 * 1024
    unread: int = 4 * 1024 * 1024
    """Bytes that wait for a peer that does not read."""


@dataclass
class Connection:
    """What a server knows of one connection: nothing until it has said hello."""

    number: int
    reader: protocol.Reader
    is_local: bool = False
    """Whether it is on the server's own machine."""
    hello: protocol.Hello | None = None
    nonce: str = ""
    """The caller was challenged by it, and has not proven yet that it has the token (rules 16, 17j)."""
    frame: bytes = b""
    """The last announcement that needed no answer, as it came, and the run as it was then."""
    run: Run | None = None
    standing: Standing | None = None
    """What the node last said of itself, if it needed no other answer."""
    patience: Settings = DEFAULTS
    """The node's own settings: how often it must hear something may differ from what the run was founded with."""
    takes_part: bool = False
    """Whether it has said anything as a node; a server that leaves does not wait for one that has only connected."""
    answered: float = 0.0
    greeted: bool = False
    """Whether the server has said anything on this connection."""
    questions: int = 0
    """How many it has asked in the bytes that arrived together."""

    @property
    def key(self) -> tuple[str, str]:
        """Its run and its node; empty ones for an administrator."""
        assert self.hello is not None, "it has said hello"
        return self.hello.run_id, self.hello.node_id

    def opening(self) -> bytes:
        """What goes before the first message to it."""
        opening = b"" if self.greeted else protocol.MAGIC
        self.greeted = True
        return opening


NEWER = "the node has a newer connection"


def conflict(hello: protocol.Hello, owner: str | None, other: protocol.Hello | None) -> str:
    """Why a caller is not taken for the node that it names; empty if it is.

    `owner` is the process of that node, where the run knows the node, and `other` the hello on its present connection.
    """
    # Anybody sees the id of a node, and only its process knows its token.
    if any(
        process != hello.process
        for process in (owner, other.process if other is not None else None)
        if process is not None
    ):
        return "that node is in another process"
    return NEWER if other is not None and hello.connection <= other.connection else ""


class Admission(msgspec.Struct, frozen=True):
    """The rules of one server.

    `only_run` confines it to one run, as in a server that a node hosts for its own job (rule 16); `remote_admins` says
    whether administrators may be on other machines.  Every caller proves that it has the `token` before it learns anything:
    that of an elected server is the secret of its claim (rule 17j).
    """

    limits: ServerLimits
    only_run: str = ""
    remote_admins: bool = True
    token: Token | None = None
    is_elected: bool = False

    def refusal(
        self, hello: protocol.Hello, runs: Mapping[str, HostedRun], *, is_local: bool = False, is_proven: bool = True
    ) -> str:
        """Why a caller, which may be on this machine, is refused for good; empty if it is not.

        One that has not proven the token yet learns nothing but the version of the protocol.
        """
        if hello.protocol != protocol.VERSION:
            return (
                f"the node speaks version {hello.protocol} of the protocol and the server version {protocol.VERSION}: "
                f"run the same release of Rallypoint on both"
            )
        if self.token is not None and not is_proven:
            return ""
        if hello.node_id and not hello.run_id:
            return "a node names its run and itself"
        if hello.run_id and not (hello.node_id or self.token):
            return "this server wants no token, and the caller has one of a run: leave it out"
        if self.token is not None and bool(hello.node_id) != (hello.role is AccessRole.NODE):
            return "a node has the role node and names itself; an admin or a viewer names no node"
        if not (hello.node_id or self.remote_admins or self.token or is_local):
            return "this server is part of a job and is administered from its own machine only: run the command there"
        if self.only_run and hello.run_id and hello.run_id != self.only_run:
            return (
                f"this server is part of the job {self.only_run!r} and serves no other run; for {hello.run_id!r} start "
                f"`rallypoint serve`, or use another port"
            )
        if hello.run_id and hello.run_id not in runs and self._is_full(runs):
            return f"the server has {len(runs)} runs, as many as it takes: try again when some have ended"
        hosted = runs.get(hello.run_id)
        nodes = len(hosted.state.life.signs) if hosted is not None else 0
        if nodes >= self.limits.nodes_a_run:
            return f"run {hello.run_id!r} has {nodes} nodes, as many as the server takes"
        return ""

    def _is_full(self, runs: Mapping[str, HostedRun]) -> bool:
        """Whether no further run is taken.  A run that has ended is kept for a while and does not count, up to a point."""
        if len(runs) < self.limits.runs:
            return False
        open_runs = sum(hosted.run.phase is not Phase.CLOSED and hosted.idle_since is None for hosted in runs.values())
        return open_runs >= self.limits.runs or len(runs) >= 2 * self.limits.runs

    def warn_of_size(self, run_id: str, message: NodeMessage) -> None:
        """A node opens a run that may become larger than this server can hold."""
        if isinstance(message, (Joined, Announced)) and message.bounds.max > self.limits.connections:
            warning = "run %r is for up to %d nodes, and this server can hold %d (ulimit -n)"
            log.warning(warning, run_id, message.bounds.max, self.limits.connections)

    def challenge(self, hello: protocol.Hello, nonce: str) -> protocol.Challenge:
        """What a caller must answer; the server proves that it has the token."""
        key = self._key(hello)
        if key is None:
            # A caller that guesses runs and roles must not see which of them this server knows.
            return protocol.Challenge(nonce, fresh_nonce() * 2)
        return protocol.Challenge(nonce, key.prove(Side.SERVER, *protocol.named(hello, nonce)))

    def objection(self, hello: protocol.Hello, nonce: str, answer: protocol.FromNode) -> str:
        """Why a caller that was challenged by this nonce is not let in after this answer; empty if it is."""
        if not isinstance(answer, protocol.Proof):
            if self.is_elected:
                return "this server is part of a job: it answers only those who prove that they know the secret of its claim"
            return "this server wants a token: give its file as token_file, or put it into RALLYPOINT_TOKEN"
        key = self._key(hello)
        if key is None or not key.is_proof(answer.mac, Side.CLIENT, *protocol.named(hello, nonce)):
            if self.is_elected:
                return "another server was meant: the secret is not that of this server's claim; read the record again"
            return "the token is not that of this server, or not for this run and role"
        return ""

    def placed(self, placed: Placed, run_id: str, node_id: str, own_ranks: tuple[int, ...]) -> Placed:
        """A place as it is given out: with the ranks of this process, and the mark by which it is known again."""
        mac = self._place_mac(run_id, node_id, placed.incarnation, placed)
        return msgspec.structs.replace(placed, server_ranks=own_ranks, mac=mac)

    def forgery(self, run_id: str, said: NodeMessage) -> Fenced | None:
        """What a node is told that speaks of a place which no server with this token gave out; None for any other."""
        if not isinstance(said, (Joined, Announced)) or said.seat is None:
            return None
        if protocol.is_same_mac(
            said.seat.mac, mac := self._place_mac(run_id, said.node.id, said.incarnation, said.seat)
        ):
            return None
        why = f"no server with this token gave {said.node.name} rank {said.seat.rank} of round {said.seat.round}"
        return Fenced(said.seat.seal_id, why) if mac else None

    def _place_mac(self, run_id: str, node_id: str, incarnation: str, place: Placed | Seat) -> str:
        """By a key that no node has; empty where this server has none, or is part of a node, as the next one may be."""
        if self.token is None or self.only_run or self.is_elected:
            return ""
        named = (node_id, incarnation, place.round, place.seal_id, place.size, place.rank)
        try:
            return self.token.for_run(run_id, AccessRole.ADMIN).prove(Side.PLACE, *named)
        except ValueError:
            return ""

    def _key(self, hello: protocol.Hello) -> Token | None:
        """The key of the run and role that a caller names; None where this server cannot know it."""
        if self.token is None:
            return None
        try:
            return self.token.for_run(hello.run_id, hello.role)
        except ValueError:
            return None
