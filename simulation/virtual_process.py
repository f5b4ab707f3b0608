"""A virtual node process that may serve: production's session, election and coordinator, and a user's agent around them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rallypoint.client.session import Session
from rallypoint.client.view import State, View
from rallypoint.errors import RendezvousStateError
from rallypoint.location.actions import (
    Action,
    Bind,
    ClaimedAgain,
    Connect,
    Doubt,
    Ended,
    ReadRecord,
    Recorded,
    Renewed,
    Serve,
    Stop,
    Unbind,
    WriteRecord,
)
from rallypoint.location.claiming import Claimant
from rallypoint.location.election import SUSPICIOUS, Election
from rallypoint.location.register import Entry
from rallypoint.messages.types import Reason
from rallypoint.record import Claim
from rallypoint.tokens import token_of
from simulation.agent import Agent
from simulation.virtual_server import VirtualServer

if TYPE_CHECKING:
    from simulation.elected_cluster import ElectedCluster

CLOSE_S = 6.0
"""How long a process that leaves stays for others at most."""


class VirtualProcess(Agent):
    """One process: a node, and the server when it is elected."""

    def __init__(
        self,
        cluster: ElectedCluster,
        view: View,
        offset: float,
        rate: float,
        *,
        stop_s: float,
        timeout_s: float,
        rest_s: float,
        may_claim: bool,
    ) -> None:
        super().__init__(cluster, view, offset, rate, stop_s=stop_s, timeout_s=timeout_s)
        self.elected = cluster
        self.process = f"p-{view.node.id}"
        self.session = Session(cluster.run_id, view, process=self.process)
        self.server: VirtualServer | None = None
        self.leaving: Reason | None = None
        self.last_pause = (0.0, 0.0)
        """How long it was stopped last, and when it went on."""
        self.close_asked = ""
        """The incarnation that this process asked to close, until that was acknowledged."""
        self.frozen = False
        self._leaves_by = 0.0
        self._target: Claim | None = None
        self._tries = 0
        self._attempts = 0
        self._calls = 0
        self._alarm: float | None = None
        self._welcomed_on = 0
        self.election_may_claim = may_claim
        self.election = Election(
            cluster.run_id,
            self.candidate,
            mint=cluster.mint,
            chance=cluster.chance.random,
            rest_s=rest_s,
            is_host=None if may_claim else False,
            secret=cluster.mint,
        )

    def resume(self) -> None:
        """SIGCONT."""
        self.last_pause = (self.stopped_now_s, self.now)
        self.frozen = False
        super().resume()

    def candidate(self) -> Claimant:
        """What the process knows of its own node."""
        view = self.view
        in_world = view.world if view.state not in (State.CLOSED, State.REFUSED, State.FENCED) else None
        return Claimant(
            bounds=view.bounds,
            settings=view.settings,
            incarnation=view.incarnation,
            round=view.round_seen,
            seal_id=in_world.seal_id if in_world is not None else "",
            ranks=(in_world.rank,) if in_world is not None else (),
            leaving=self.leaving is not None,
            delivers=not self.session.is_heard,
            heard_at=self.session.answered_at,
        )

    # What an election decides -------------------------------------------------------------------------------------

    def do(self, actions: list[Action]) -> None:
        """Do what the election decided."""
        for action in actions:
            if self.alive:
                self._perform(action)
        self._plan()

    def _perform(self, action: Action) -> None:
        if isinstance(action, (ReadRecord, WriteRecord)):
            self._call(action)
        elif isinstance(action, Bind):
            port = self.elected.free_port()
            self.later(0.0, lambda: self.do(self.election.bound((self.name,), port, self.now)))
        elif isinstance(action, Connect):
            self._connect_to(action.claim)
        elif isinstance(action, Serve):
            self.server = VirtualServer(self, action)
            self.elected.server_started(self.server)
            self.server.tick()
        elif isinstance(action, Renewed):
            self._with_server(lambda server: server.coordinator.renewed(self.elected.run_id, action.asked_at, self.now))
        elif isinstance(action, Recorded):
            self._with_server(lambda server: server.coordinator.recorded(self.elected.run_id, self.now))
            self.elected.meet_doom(self, "tell")
        elif isinstance(action, Doubt):
            self.cluster.note(self.name, f"is in doubt: {action.why}" if action.why else "has renewed its claim")
            self._with_server(lambda server: server.coordinator.set_doubt(action.why, self.now))
        elif isinstance(action, ClaimedAgain):
            self._claimed_again(action.epoch)
        elif isinstance(action, Stop):
            self._stop_serving(action)
        elif isinstance(action, Ended):
            self._do(lambda: self.session.told_ended(action.how))
            self._react()
        else:
            assert isinstance(action, Unbind), f"{action!r} is done"

    def _with_server(self, act: object) -> None:
        if self.server is not None and self.server.serves and callable(act):
            self.server.perform(act(self.server))

    def _claimed_again(self, epoch: int) -> None:
        if self.server is not None:
            self.server.epoch = epoch
            self.server.coordinator.claimed_again(epoch)

    def _stop_serving(self, stop: Stop) -> None:
        self.cluster.note(self.name, f"serves no longer: {stop.why}")
        if self.server is not None:
            self.server.stop(stop.why)
            self.elected.server_stopped(self.server)
        self.server = None
        if self.leaving is not None:
            self._try_to_leave()

    def _call(self, call: ReadRecord | WriteRecord) -> None:
        self._calls += 1
        number = self._calls
        if isinstance(call, WriteRecord) and self.election.serving is None:
            self.elected.elected_invariants.tries_to_claim(self)

        def answered(entry: Entry | None) -> None:
            if number == self._calls:
                answer = self.election.read if isinstance(call, ReadRecord) else self.election.wrote
                self.do(answer(entry, self.now))
                self._watch(call, entry)

        def away(why: str) -> None:
            if number == self._calls:
                self.do(self.election.away(why, self.now))

        self.elected.register.call(
            self.name,
            call,
            lambda entry: self.when_running(lambda: answered(entry)),
            lambda why: self.when_running(lambda: away(why)),
            partial(self.elected.committed, self),
        )

    def _watch(self, call: ReadRecord | WriteRecord, entry: Entry | None) -> None:
        """A process that looks for a server, and has read the register, wants to hear of changes."""
        election, elected = self.election, self.elected
        looks = election.serving is None and not election.is_content and not election.is_calling
        if looks and isinstance(call, ReadRecord) and elected.register.has_leases and self.alive:
            elected.watch(self, None if entry is None else entry.token)

    def _plan(self) -> None:
        due = self.election.wake_at()
        if due is None or due == float("inf"):
            return
        due = max(due, self.now + 0.001)
        if self._alarm is None or due < self._alarm:
            self._alarm = due
            self.later(due - self.now, partial(self._ring, due))

    def _ring(self, due: float) -> None:
        if self._alarm == due:
            self._alarm = None
            self.do(self.election.tick(self.now))

    # Its connection -----------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        self.do(self.election.look(self.now))

    def _connect_to(self, claim: Claim) -> None:
        if (self.session.is_open or self._tries) and self._target is not None and self._target.id == claim.id:
            return
        if self.session.is_open:
            self._drop()
        self._tries = 0  # a changed record ends the attempt
        self._target = claim
        self._try()

    def _drop(self) -> None:
        self.cluster.close_connection(self.connection, self.cluster.network.delay())
        self._do(lambda: self.session.ended(self.now))

    def _try(self) -> None:
        """Try to connect: that succeeds, is refused after a moment, or fails after a time-out."""
        claim = self._target
        if claim is None or self._tries or self.session.is_open or self.is_turned_away:
            return
        outcome = self.elected.reach(self, claim)
        if isinstance(outcome, VirtualServer):
            self.session.token = token_of(claim.secret)
            self.connection = self.elected.open_connection_to(self, outcome)
            self._do(lambda: self._send(self.session.opening(self.now)))
            return
        self._attempts += 1
        attempt = self._tries = self._attempts
        refused = outcome == "refused"
        delay = self.cluster.network.delay() if refused else self.view.settings.heartbeat_timeout_s / 2
        self.later(delay, lambda: self._failed(claim, attempt, refused))

    def _failed(self, claim: Claim, attempt: int, refused: bool) -> None:
        if attempt != self._tries:
            return
        self._tries = 0
        self._do(lambda: self.session.ended(self.now))
        self.do(self.election.failed(claim.id, self.now, refused=refused))
        self._retry()

    @property
    def is_turned_away(self) -> bool:
        """Whether a server said that trying again is of no use; a node that holds a world tries on all the same."""
        goodbye = self.session.goodbye
        return goodbye is not None and goodbye.final and self.view.state is not State.HOLDS

    def connection_lost(self, connection: int) -> None:
        """The connection to the server ended."""
        if connection == self.connection and self.session.is_open:
            self._do(lambda: self.session.ended(self.now))
            if self._target is not None:
                self.do(self.election.failed(self._target.id, self.now, refused=False))
            self._retry()

    def receive(self, connection: int, data: bytes) -> None:
        """Bytes arrived."""
        was_heard = self.session.is_heard
        try:
            super().receive(connection, data)
        except RendezvousStateError:
            # Another server has the port of the claim: the register is read again (rule 17a).
            self.cluster.close_connection(connection, self.cluster.network.delay())
            self.connection_lost(connection)
        if connection != self.connection or not self.session.is_open:
            return
        if self.session.is_outdated:
            self._drop()
            self._retry()
        elif self.session.welcomed and self._welcomed_on != connection and self._target is not None:
            self._welcomed_on = connection
            self.do(self.election.welcomed(self._target.id, self.session.serving.epoch, self.now))
        if self.session.welcomed and not self.session.is_outdated:
            self.elected.elected_invariants.served(self)
        # What an earlier server acknowledged says nothing about what this one does.
        if self.session.is_heard and (not was_heard or self.close_asked):
            self.elected.elected_invariants.heard(self)
        if self.leaving is not None:
            self._try_to_leave()

    def _retry(self) -> None:
        backoff = self.cluster.chance.uniform(0.01, self.cluster.settings.reconnect_backoff_s)
        self.later(backoff, self._again)

    def _again(self) -> None:
        if not self.session.is_open and not self._tries:
            self._try()
            self.do(self.election.look(self.now))

    def _beat(self) -> None:
        super()._beat()
        session, suspicious_s = self.session, SUSPICIOUS * self.view.settings.heartbeat_timeout_s
        silent = self.now - session.heard_at > suspicious_s
        if not session.is_open or silent or session.serving.in_doubt:
            self.do(self.election.look(self.now))
        elif session.welcomed:
            self.do(self.election.content(self.now))
        if self.leaving is not None:
            self._try_to_leave()

    # Leaving ------------------------------------------------------------------------------------------------------

    def join(self) -> None:
        """Call next_rendezvous(), unless it is leaving."""
        if self.leaving is None:
            super().join()

    def close_run(self) -> None:
        """Call set_closed()."""
        if self.view.state not in (State.CLOSED, State.IDLE, State.REFUSED, State.FENCED):
            self.close_asked = self.view.incarnation
            self._do(lambda: self._send(self.session.close_run()))

    def leave(self, reason: Reason) -> None:
        """End: the work is done, a signal came, or the restarts are used up."""
        if self.leaving is not None:
            return
        if self.view.state is not State.CLOSED:
            self._do(lambda: self._send(self.session.leave(reason)))
        self.leaving = reason
        self._leaves_by = self.now + CLOSE_S
        self.later(CLOSE_S, self._try_to_leave)
        self._try_to_leave()

    def _exit(self) -> None:
        """It was told that the run is closed, or refused, and ends."""
        if self.alive and self.leaving is None:
            self.leaving = Reason.WITHDREW
            self._leaves_by = self.now + CLOSE_S
            self._try_to_leave()

    def _try_to_leave(self) -> None:
        """Leave as soon as everything was sent; a server hands over first, and stays for the others if its node has finished."""
        if not self.alive:
            return
        late = self.now >= self._leaves_by
        if self.server is not None and self.server.serves:
            stays = self.view.state is State.FINISHED and not late
            if (self.session.is_heard or late) and not stays:
                self.do(self.election.leave(self.server.run, self.now))
            return
        heard = self.session.is_heard and not (self.view.state is State.FINISHED and not late)
        if heard or late:
            self.do(self.election.leave(None, self.now))
            self.cluster.end_process(self, seen=True)
