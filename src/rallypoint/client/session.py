"""A node's end of the protocol, sans-IO: what it sends on a new connection, with each beat, and what it makes of answers.

A session outlives connections: whoever brings the sockets says when one is open, and the session says the rest.
"""

from __future__ import annotations

from collections.abc import Callable

from rallypoint import heartbeats, protocol
from rallypoint.core import node as core
from rallypoint.core.model import Node, Reason
from rallypoint.core.node import State, View


class Session:
    """One node in one run.  Every method returns the bytes to send now."""

    def __init__(self, run_id: str, view: View) -> None:
        self.run_id = run_id
        self.view = view
        self.connection = 0
        self.connected = False
        self.welcomed = False
        self.goodbye: protocol.Goodbye | None = None
        self.has_standalone_server = False
        self.heard_at = 0.0
        self._reader = protocol.Reader()
        self._questions: dict[int, Callable[[protocol.Answer], None]] = {}
        self._asked = 0

    # The life of a connection -------------------------------------------------------------------------------------

    def opening(self, now: float) -> bytes:
        """A connection is open: say who this is and all that it knows, without waiting for the welcome."""
        self.connection += 1
        self.connected = True
        self.welcomed = False
        self.goodbye = None
        self.heard_at = now
        self._reader = protocol.Reader()
        hello = protocol.Hello(protocol.VERSION, self.run_id, self.view.node.id, self.connection)
        return protocol.MAGIC + protocol.frame(hello) + self._announce()

    def received(self, data: bytes, now: float) -> None:
        """Bytes arrived."""
        self.heard_at = now
        for body in self._reader.feed(data):
            self._take(protocol.read(body, protocol.FROM_SERVER))

    def ended(self, now: float) -> None:
        """The connection is gone."""
        self.connected = self.welcomed = False
        self.view = core.disconnected(self.view, now)
        for answer in self._take_questions():
            answer(protocol.Done(0, False, "the connection to the authority ended"))

    def beat(self, now: float) -> bytes:
        """A heartbeat is due: all that the node knows, once more (rule 14)."""
        self.view = core.passed(self.view, now)
        return self._announce() if self.connected else b""

    @property
    def beat_after_s(self) -> float:
        """How long to wait before the next beat."""
        return heartbeats.beat_after_s(self.view.settings, holds=self._holds)

    def is_stale(self, now: float) -> bool:
        """Whether the authority has been silent for so long that this connection is to be given up."""
        return self.connected and now - self.heard_at > heartbeats.patience_s(self.view.settings)

    @property
    def _holds(self) -> bool:
        return self.view.state is State.HOLDS

    # What the node does -------------------------------------------------------------------------------------------

    def join(self, now: float, timeout_s: float) -> bytes:
        """Ask for a place in the next world."""
        self.view, message = core.join(self.view, now, timeout_s)
        return protocol.frame(message) if self.connected else b""

    def leave(self, reason: Reason, why: str = "") -> bytes:
        """Leave for good."""
        self.view, message = core.leave(self.view, reason, why)
        return protocol.frame(message) if self.connected else b""

    def reborn(self, node: Node) -> None:
        """After being fenced: another identity, which needs a connection of its own."""
        self.view = core.reborn(self.view, node)
        self.connection = 0
        self.connected = self.welcomed = False

    def ask(self, ask: Callable[[int], protocol.Ask], answer: Callable[[protocol.Answer], None]) -> bytes:
        """Put a question; the answer goes to a function."""
        self._asked += 1
        self._questions[self._asked] = answer
        return protocol.frame(ask(self._asked))

    # Inside -------------------------------------------------------------------------------------------------------

    def _take(self, message: protocol.FromServer) -> None:
        if isinstance(message, protocol.Welcome):
            self.welcomed = True
            self.has_standalone_server = protocol.STANDALONE in message.capabilities
            self.view = core.connected(self.view)
        elif isinstance(message, protocol.Goodbye):
            self.goodbye = message
        elif isinstance(message, (protocol.Peers, protocol.Runs, protocol.Status, protocol.Done)):
            answer = self._questions.pop(message.number, None)
            if answer is not None:
                answer(message)
        elif not isinstance(message, protocol.Pong):
            self.view = core.hear(self.view, message)

    def _announce(self) -> bytes:
        message = core.announce(self.view)
        return b"" if message is None else protocol.frame(message)

    def _take_questions(self) -> list[Callable[[protocol.Answer], None]]:
        questions, self._questions = list(self._questions.values()), {}
        return questions
