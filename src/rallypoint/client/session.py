"""A node's end of the protocol, sans-IO: what it sends on a new connection, with each beat, and what it makes of answers.

A session outlives connections and servers.  What must not be lost, a request to close or a reason for leaving, is repeated
until a server has acknowledged it (rule 17c).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from rallypoint import heartbeats, protocol
from rallypoint.client import view as views
from rallypoint.client.view import State, View
from rallypoint.core.model import EndedIncarnation
from rallypoint.errors import RendezvousStateError
from rallypoint.messages.notices import Placed, RunClosed
from rallypoint.messages.requests import Announced, CloseAsked, Left
from rallypoint.messages.types import Node, Reason
from rallypoint.protocol import Serving
from rallypoint.tokens import AccessRole, Side, Token, nonce

_PING = protocol.frame(protocol.Ping())


class Session:
    """One node in one run.  Methods that return bytes return what to send now."""

    def __init__(self, run_id: str, view: View, *, process: str = "") -> None:
        self.run_id = run_id
        self.view = view
        self.process = process
        self.claim_id = ""
        """The claim which the next connection is made to (rule 17i); empty at a fixed address."""
        self.token: Token | None = None
        """What this node and its server prove to each other (rules 16, 17j)."""
        self._nonce = ""
        """This node's part of the challenge on a connection that is not proven yet."""
        self.connection = 0
        self.connected = self.welcomed = False
        self.is_outdated = False
        """Whether the connection is to a server that another one has replaced (rule 17i)."""
        self.goodbye: protocol.Goodbye | None = None
        self.has_standalone_server = False
        self.has_left = False
        """Whether the node has left for good; a join takes that back."""
        self.heard_at = 0.0
        """When the server last said something, or the connection was opened."""
        self.answered_at = float("-inf")
        """When a server last said something."""
        self.serving = Serving()
        self.server_ranks: tuple[str, tuple[int, ...]] = ("", ())
        """A seal id, and the ranks of that world which are in the process that serves (rules 14, 17f)."""
        self._epoch = Serving()
        self._looked_at: float | None = None
        self._reader = protocol.Reader()
        self._questions: dict[int, Callable[[protocol.Answer], None]] = {}
        self._asked = 0
        self._unheard: dict[int, CloseAsked | Left] = {}
        self._before_leaving: Announced | None = None

    def opening(self, now: float) -> bytes:
        """A connection is open: say who this is and all that it knows, without waiting for the welcome."""
        self._look(now)
        self.connection += 1
        self.connected = self.token is None
        self._nonce = nonce() if self.token is not None else ""
        self.welcomed = self.is_outdated = False
        self.goodbye = None
        self.heard_at = now
        self._reader = protocol.Reader()
        opening = protocol.MAGIC + protocol.frame(self._hello())
        return opening + self._introduction() if self.connected else opening

    def _introduction(self) -> bytes:
        """All that this node knows."""
        data = b""
        if self._before_leaving is not None and any(isinstance(said, Left) for said in self._unheard.values()):
            # The place that it had: a server that has just started learns by it which rank leaves.
            data += protocol.frame(self._before_leaving)
        return data + self._announce()

    def received(self, data: bytes, now: float) -> bytes:
        """Bytes arrived; what to send now."""
        self._look(now)
        self.heard_at = self.answered_at = now
        reply = b""
        for body in self._reader.feed(data):
            message = protocol.read(body, protocol.FROM_SERVER)
            if self._nonce and not isinstance(message, (protocol.Challenge, protocol.Welcome, protocol.Goodbye)):
                raise RendezvousStateError("the server spoke before it proved that it has this node's token")
            reply += self._prove(message) if isinstance(message, protocol.Challenge) else b""
            self._take(message, now)
        return reply

    def _prove(self, challenge: protocol.Challenge) -> bytes:
        """The server proves that it has the token, and so does this node; only then it says what it knows (rule 16)."""
        if self.token is None:
            return _PING  # whatever it says, the server turns this node away in words
        named = protocol.named(self._hello(), challenge.nonce)
        token = self.token.for_run(self.run_id, AccessRole.NODE)
        if not token.is_proof(challenge.proof, Side.SERVER, *named):
            raise RendezvousStateError(
                "another server was meant: what listens there does not know the secret of the claim"
                if self.claim_id
                else "the server did not prove that it has this node's token: it has another one, or none"
            )
        self._nonce, self.connected = "", True
        return protocol.frame(protocol.Proof(token.prove(Side.CLIENT, *named))) + self._introduction()

    def parting(self) -> bytes:
        """This node ends the connection: it is gone from a closed run, whose name is free once all are (rule 1)."""
        if not self.connected or self.view.state is not State.CLOSED:
            return b""
        return protocol.frame(Left(self.view.node.id, Reason.WITHDREW))

    def ended(self, now: float) -> None:
        """The connection is gone."""
        self.connected = self.welcomed = False
        self._nonce = ""
        self.view = views.disconnected(self.view, now)
        questions, self._questions = self._questions, {}
        for answer in questions.values():
            answer(protocol.Done(0, False, "the connection to the server ended"))

    def beat(self, now: float) -> bytes:
        """A heartbeat is due: all that the node knows, once more (rule 14); a ping where there is nothing to say."""
        self._look(now)
        self.view = views.passed(self.view, now)
        return (self._announce() or _PING) if self.connected else b""

    @property
    def beat_after_s(self) -> float:
        """How long to wait before the next beat."""
        return heartbeats.beat_after_s(self.view.settings, holds=self.view.state is State.HOLDS)

    def is_stale(self, now: float) -> bool:
        """Whether the server has been silent for so long that this connection is to be given up."""
        return self.is_open and now - self.heard_at > self.view.settings.heartbeat_timeout_s

    @property
    def is_open(self) -> bool:
        """Whether there is a connection, be it proven or not."""
        return self.connected or bool(self._nonce)

    def join(self, now: float, timeout_s: float) -> bytes:
        """Ask for a place in the next world; that it left before is over with that."""
        self.view, message = views.join(self.view, now, timeout_s)
        self.has_left = False
        self._keep(lambda asked: True)
        return protocol.frame(message) if self.connected else b""

    def leave(self, reason: Reason, why: str = "") -> bytes:
        """Leave for good."""
        place = _place_of(self.view)
        self.view, message = views.leave(self.view, reason, why)
        self.has_left = True
        self._before_leaving = place if message.reason is not Reason.FINISHED else None
        return self._insist(message)

    def close_run(self) -> bytes:
        """Ask for the run to be closed."""
        return self._insist(CloseAsked(by=self.view.node.id, incarnation=self.view.incarnation))

    def told_ended(self, how: EndedIncarnation) -> None:
        """The register says that an incarnation has ended: its members need no server to know it (rule 17h)."""
        self.view = views.hear(self.view, RunClosed(how.incarnation, how.ending, how.why))
        if self.view.state is State.CLOSED and self.view.incarnation == how.incarnation:
            self._keep(lambda asked: asked.incarnation not in ("", how.incarnation))

    @property
    def is_heard(self) -> bool:
        """Whether a server has acknowledged every request to close and reason for leaving."""
        return not self._unheard

    def reborn(self, node: Node) -> None:
        """After being fenced: another identity, which needs a connection of its own."""
        self.view = views.reborn(self.view, node)
        self._keep(lambda asked: True)
        self._unheard = {n: msgspec.structs.replace(said, by=node.id) for n, said in self._unheard.items()}
        self.connection = 0
        self.connected = self.welcomed = False
        self._nonce = ""

    def ask(self, ask: Callable[[int], protocol.Ask], answer: Callable[[protocol.Answer], None]) -> bytes:
        """Put a question; the answer goes to a function."""
        self._asked += 1
        self._questions[self._asked] = answer
        return protocol.frame(ask(self._asked))

    def _hello(self) -> protocol.Hello:
        known = self._epoch
        caller = (self.run_id, self.view.node.id, self.connection, (), self.process)
        return protocol.Hello(
            protocol.VERSION, *caller, known.incarnation, known.epoch, known.claim_id, nonce=self._nonce
        )

    def _keep(self, is_wanted: Callable[[CloseAsked], bool]) -> None:
        """Go on saying these of the requests to close, and nothing else."""
        unheard = self._unheard.items()
        self._unheard = {n: said for n, said in unheard if isinstance(said, CloseAsked) and is_wanted(said)}

    def _look(self, now: float) -> None:
        """A node that was itself paused for longer than it is waited for distrusts its world at once (rule 9)."""
        pause_s = now - self._looked_at if self._looked_at is not None else 0.0
        if pause_s > self.view.settings.heartbeat_timeout_s and not self._serves_here:
            self.view = views.paused(self.view, pause_s)
        self._looked_at = now

    @property
    def _serves_here(self) -> bool:
        """Whether this process serves at a fixed address: the server was paused with the node, and gave no node up.

        So a program that holds the interpreter for seconds, to load a model, does not cost the whole job a restart.
        """
        world, (seal_id, ranks) = self.view.world, self.server_ranks
        return world is not None and world.seal_id == seal_id and world.rank in ranks and not self.serving.claim_id

    def _take(self, message: protocol.FromServer, now: float) -> None:
        if isinstance(message, protocol.Goodbye):
            self.goodbye = message
        elif self.is_outdated or isinstance(message, protocol.Challenge):
            return
        elif isinstance(message, protocol.Welcome):
            self._welcome(message, now)
        elif isinstance(message, protocol.Pong):
            self._served_by(message.serving, now)
        elif isinstance(message, protocol.Answer):
            self._answered(message)
        else:
            self.view = views.hear(self.view, message)
            if isinstance(message, Placed):
                # A server in doubt seals nothing: this one is not, or not any more.
                self.view = views.connected(self.view)
                self.serving = msgspec.structs.replace(self.serving, in_doubt=False)
                self.server_ranks = (message.seal_id, message.server_ranks)

    def _welcome(self, welcome: protocol.Welcome, now: float) -> None:
        if welcome.protocol != protocol.VERSION:
            raise RendezvousStateError(
                f"the server speaks version {welcome.protocol} of the protocol and the node version {protocol.VERSION}: "
                f"run the same release of Rallypoint on both"
            )
        if self._nonce:
            raise RendezvousStateError(
                "the server wants no token, and this node has one: start the server with it, or leave it out here"
            )
        if self.claim_id and welcome.serving.claim_id != self.claim_id:
            self.is_outdated = True  # another server was meant
            return
        self.has_standalone_server = protocol.STANDALONE in welcome.capabilities
        self._served_by(welcome.serving, now)
        if not self.is_outdated:
            self.welcomed = True
            self.server_ranks = (welcome.seal_id, welcome.ranks)

    def _served_by(self, serving: Serving, now: float) -> None:
        """The server says who it is; one with a lower epoch than the node knows of is outdated (rule 17i).

        A server at a fixed address has no claim: where its record was deleted, its epochs start anew.
        """
        known = self._epoch
        is_lower = serving.incarnation == known.incarnation and 0 < serving.epoch < known.epoch
        if is_lower and serving.claim_id != known.claim_id:
            self.is_outdated = True
            return
        # A pong that was overtaken may name an older epoch of the same claim.
        self.serving = msgspec.structs.replace(serving, epoch=known.epoch) if is_lower and known.claim_id else serving
        self._epoch = known if is_lower else serving
        self.view = views.disconnected(self.view, now) if serving.in_doubt else views.connected(self.view)

    def _answered(self, message: protocol.Answer) -> None:
        self._unheard.pop(message.number, None)
        answer = self._questions.pop(message.number, None)
        if answer is not None:
            answer(message)

    def _insist(self, message: CloseAsked | Left) -> bytes:
        """Say something that is repeated until a server has acknowledged it."""
        self._asked += 1
        self._unheard[self._asked] = message
        return self._unheard_frames() if self.connected else b""

    def _unheard_frames(self) -> bytes:
        return b"".join(protocol.frame(m) + protocol.frame(protocol.AskHeard(n)) for n, m in self._unheard.items())

    def _announce(self) -> bytes:
        message = views.announce(self.view)
        return (b"" if message is None else protocol.frame(message)) + self._unheard_frames()


def _place_of(view: View) -> Announced | None:
    """What a node announces that has a place in a world, also if it waits for the next one."""
    if view.world is None or view.state not in (State.HOLDS, State.BROKEN, State.WAITING, State.SPARE):
        return None
    return views.announce(view if view.state is State.HOLDS else msgspec.structs.replace(view, state=State.BROKEN))
