"""A virtual node process: the production node logic, and a user's agent that works, stops, rejoins and finishes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rallypoint.core import node as core
from rallypoint.core.events import Message
from rallypoint.core.model import Reason
from rallypoint.core.node import State, View
from rallypoint.core.notices import Said
from rallypoint.simulation.clockwork import Process

if TYPE_CHECKING:
    from rallypoint.simulation.world import World


class Agent(Process):
    """One process of a node."""

    def __init__(
        self, world: World, view: View, offset: float, rate: float, *, stop_s: float, timeout_s: float
    ) -> None:
        super().__init__(world.clockwork, offset, rate)
        self.world = world
        self.name = view.node.name
        self.view = view
        self.stop_s = stop_s
        self.timeout_s = timeout_s
        self.connection = 0
        self.connected = False
        self.stopping = False
        self.heard_at = self.now
        self.lives = 0

    def begin(self) -> None:
        """The process starts: connect, join, and beat from then on."""
        self._connect()
        self.join()
        self.later(self.world.settings.heartbeat_interval_s, self._beat)

    @property
    def id(self) -> str:
        """The identity that the node has at the moment; another one after it was fenced."""
        return self.view.node.id

    # What the user's agent does -----------------------------------------------------------------------------------

    def join(self) -> None:
        """Call next_rendezvous()."""
        self.stopping = False
        if self.view.state is State.FENCED:
            self.lives += 1
            self._become(core.reborn(self.view, self.world.identity(self.view.node, self.lives)))
            self.connection = 0
            self._connect()
        if self.view.state in (State.CLOSED, State.REFUSED, State.FINISHED):
            return
        view, message = core.join(self.view, self.now, self.timeout_s)
        self._become(view)
        self._send(message)
        self.later(self.timeout_s, self._check_deadline)

    def resend_join(self) -> None:
        """A join sent twice."""
        if self.view.state is State.WAITING:
            self._send(core.join(self.view, self.now, self.timeout_s)[1])

    def fail_workers(self) -> None:
        """The workers crash, and the agent rejoins although nobody told it to."""
        if self.view.state is State.HOLDS and not self.stopping:
            self.join()

    def leave(self, reason: Reason) -> None:
        """End: the work is done, a signal came, or the restarts are used up."""
        if self.view.state is State.CLOSED:
            self._exit()
            return
        view, message = core.leave(self.view, reason)
        self._become(view)
        self._send(message)
        if view.state is State.FINISHED:
            # The process stays for a moment, as the host of a store would, so that a lost message is said again.
            self.later(3 * self.world.settings.heartbeat_interval_s, self._exit)
        else:
            self._exit()

    def _react(self) -> None:
        """What an agent does that looks at num_nodes_waiting() all the time."""
        state = self.view.state
        if state is State.REFUSED:
            self.later(0.01, self._exit)
        elif state is State.CLOSED:
            # Long enough to say once more what it was told: one announcer suffices (rule 14).
            self.later(self.world.settings.heartbeat_interval_s * 1.5, self._exit)
        elif core.num_nodes_waiting(self.view, self.now) > 0 and not self.stopping:
            self.stopping = True
            self.later(self.stop_s, self._stopped)

    def _stopped(self) -> None:
        if self.stopping:
            self.join()

    def _check_deadline(self) -> None:
        if core.overdue(self.view, self.now):
            self.world.note(self.name, f"timed out: {self.view.why}")
            self.leave(Reason.WITHDREW)

    def _exit(self) -> None:
        if self.alive:
            self.world.end_process(self, seen=True)

    # What its connection does -------------------------------------------------------------------------------------

    def hear(self, said: Said) -> None:
        """The authority said something."""
        self.heard_at = self.now
        self._become(core.hear(self.view, said))
        self._react()

    def pong(self, connection: int) -> None:
        """The authority answered a beat."""
        if connection == self.connection:
            self.heard_at = self.now

    def connection_lost(self, connection: int) -> None:
        """The connection to the authority ended."""
        if connection != self.connection or not self.connected:
            return
        self.connected = False
        self._become(core.disconnected(self.view, self.now))
        self._retry()

    def _connect(self) -> None:
        if not self.world.reachable(self):
            self.connected = False
            self._become(core.disconnected(self.view, self.now))
            self._retry()
            return
        self.connection += 1
        self.connected = True
        self.heard_at = self.now
        self._become(core.connected(self.view))
        self._announce()
        self._react()

    def _retry(self) -> None:
        backoff = self.world.chance.uniform(0.05, self.world.settings.reconnect_backoff_s)
        self.later(backoff, lambda: None if self.connected else self._connect())

    def _beat(self) -> None:
        self.later(self.world.settings.heartbeat_interval_s, self._beat)
        self._become(core.passed(self.view, self.now))
        if self.connected and self.now - self.heard_at > self.world.settings.heartbeat_timeout_s:
            self.connection_lost(self.connection)
        elif self.connected:
            self._announce()
        self._react()

    def _announce(self) -> None:
        message = core.announce(self.view)
        if message is not None:
            self._send(message)

    def _send(self, message: Message) -> None:
        if self.connected:
            self.world.send_to_authority(self, message)

    def _become(self, view: View) -> None:
        before, self.view = self.view, view
        if view is not before:
            self.world.agent_changed(self, before)
