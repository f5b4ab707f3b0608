"""A virtual node process: production's session, and a user's agent that works, stops, rejoins and finishes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rallypoint.client import view as views
from rallypoint.client.session import Session
from rallypoint.client.view import State, View
from rallypoint.messages.types import Reason
from simulation.virtual_time import Process

if TYPE_CHECKING:
    from simulation.cluster import Cluster


class Agent(Process):
    """One process of a node."""

    def __init__(
        self, cluster: Cluster, view: View, offset: float, rate: float, *, stop_s: float, timeout_s: float
    ) -> None:
        super().__init__(cluster.virtual_time, offset, rate)
        self.cluster = cluster
        self.name = view.node.name
        self.session = Session(cluster.run_id, view)
        self.stop_s = stop_s
        self.timeout_s = timeout_s
        self.connection = 0
        self.stopping = False
        self.lives = 0

    def begin(self) -> None:
        """The process starts: join, connect, and beat from then on."""
        self.join()
        self._connect()
        self.later(self.view.settings.heartbeat_interval_s, self._beat)

    @property
    def view(self) -> View:
        """What the node knows."""
        return self.session.view

    @property
    def id(self) -> str:
        """The identity that the node has at the moment; another one after it was fenced."""
        return self.view.node.id

    # What the user's agent does -----------------------------------------------------------------------------------

    def join(self) -> None:
        """Call next_rendezvous()."""
        self.stopping = False
        if self.view.state in (State.CLOSED, State.REFUSED, State.FINISHED):
            return
        if self.view.state is State.FENCED:
            self.lives += 1
            self.cluster.close_connection(self.connection, self.cluster.network.delay())
            self._do(lambda: self.session.reborn(self.cluster.identity(self.view.node, self.lives)))
            self.join()
            self._connect()
            return
        self._do(lambda: self._send(self.session.join(self.now, self.timeout_s)))
        self.later(self.timeout_s, self._check_deadline)

    def resend_join(self) -> None:
        """A join sent twice."""
        if self.view.state is State.WAITING:
            self._do(lambda: self._send(self.session.join(self.now, self.timeout_s)))

    def fail_workers(self) -> None:
        """The workers crash, and the agent rejoins although nobody told it to."""
        if self.view.state is State.HOLDS and not self.stopping:
            self.join()

    def leave(self, reason: Reason) -> None:
        """End: the work is done, a signal came, or the restarts are used up."""
        if self.view.state is State.CLOSED:
            self._exit()
            return
        self._do(lambda: self._send(self.session.leave(reason)))
        if self.view.state is State.FINISHED:
            # The process stays for a moment, as the host of a store would, so that a lost message is said again.
            self.later(3 * self.cluster.settings.heartbeat_interval_s, self._exit)
        else:
            self._exit()

    def _react(self) -> None:
        """What an agent does that looks at num_nodes_waiting() all the time."""
        state = self.view.state
        if state is State.REFUSED:
            self.later(0.01, self._exit)
        elif state is State.CLOSED:
            # Long enough to say once more what it was told: one announcer suffices (rule 14).
            self.later(self.cluster.settings.heartbeat_interval_s * 1.5, self._exit)
        elif views.num_nodes_waiting(self.view, self.now) > 0 and not self.stopping:
            self.stopping = True
            self.later(self.stop_s, self._stopped)

    def _stopped(self) -> None:
        if self.stopping:
            self.join()

    def _check_deadline(self) -> None:
        deadline = self.view.deadline if self.view.state is State.WAITING else None
        if deadline is not None and self.now >= deadline:
            self.cluster.note(self.name, f"timed out: {self.view.why}")
            self.leave(Reason.WITHDREW)

    def _exit(self) -> None:
        if self.alive:
            self.cluster.end_process(self, seen=True)

    # What its connection does -------------------------------------------------------------------------------------

    def receive(self, connection: int, data: bytes) -> None:
        """Bytes arrived."""
        if connection == self.connection and self.session.is_open:
            self._do(lambda: self._send(self.session.received(data, self.now)))
            self._react()

    def connection_lost(self, connection: int) -> None:
        """The connection to the server ended."""
        if connection == self.connection and self.session.is_open:
            self._do(lambda: self.session.ended(self.now))
            self._retry()

    def _connect(self) -> None:
        if not self.cluster.reachable(self):
            self._do(lambda: self.session.ended(self.now))
            self._retry()
            return
        self.connection = self.cluster.open_connection(self)
        self._do(lambda: self._send(self.session.opening(self.now)))

    def _retry(self) -> None:
        backoff = self.cluster.chance.uniform(0.05, self.cluster.settings.reconnect_backoff_s)
        self.later(backoff, lambda: None if self.session.is_open else self._connect())

    def _beat(self) -> None:
        self.later(self.session.beat_after_s, self._beat)
        if self.session.is_stale(self.now):
            self.connection_lost(self.connection)
        self._do(lambda: self._send(self.session.beat(self.now)))
        self._react()

    def _send(self, data: bytes) -> None:
        if data:
            self.cluster.send_to_server(self, data)

    def _do(self, action: Callable[[], object]) -> None:
        """Let the session do something, and let the world see what it changed."""
        before = self.view
        action()
        if self.view is not before:
            self.cluster.agent_changed(self, before)
