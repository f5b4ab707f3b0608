"""One life of an elected server, in the process of a peer: production's coordinator on the peer's own clock."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rallypoint.client.view import View
from rallypoint.core.model import Run
from rallypoint.location.actions import Serve
from rallypoint.server.coordinator import Coordinator
from rallypoint.server.effects import Effects
from rallypoint.tokens import token_of
from simulation.fixed_server import UNLIMITED
from simulation.virtual_time import Action as Deed

if TYPE_CHECKING:
    from simulation.virtual_process import VirtualProcess


class VirtualServer:
    """One life of an elected server, in the process of a peer."""

    def __init__(self, peer: VirtualProcess, serve: Serve) -> None:
        self.peer = peer
        self.claim = serve.claim
        self.epoch = serve.record.epoch
        self.record = serve.record
        self.serves = True
        self._alarm: float | None = None
        world = peer.elected
        self.coordinator = Coordinator(
            monotonic=peer.now,
            mint=world.mint,
            only_run=world.run_id,
            remote_admins=True,
            keeps_records=True,
            restored=[(serve.run, serve.record.epoch)],
            limits=UNLIMITED,
            process=peer.process,
            claim_id=serve.claim.id,
            token=token_of(serve.claim.secret),
            pause_s=serve.claim.rest_s / 2,
            own_place=_own_place(peer.view),
        )

    @property
    def run(self) -> Run:
        """What it knows, and may tell."""
        return self.coordinator.runs.known[self.peer.elected.run_id].run

    @property
    def decided(self) -> Run:
        """What it knows, and what it will tell when it is recorded."""
        hosted = self.coordinator.runs.known[self.peer.elected.run_id]
        return (hosted.ahead or hosted.state).run

    @property
    def renewed_at(self) -> float:
        """When the claim was last known to stand, by the process's own clock."""
        serving = self.peer.election.serving
        return serving.renewed_at if serving is not None else 0.0

    @property
    def alive(self) -> bool:
        """Whether it can be connected to."""
        return self.serves and self.peer.alive

    def when_running(self, action: Deed) -> None:
        """Do it now, or when the process continues."""
        self.peer.when_running(lambda: action() if self.serves else None)

    def open(self, connection: int) -> None:
        """A connection was made."""
        self.perform(self.coordinator.opened(connection, self.peer.now))

    def receive(self, connection: int, data: bytes) -> None:
        """Bytes arrived."""
        if self.coordinator.knows(connection):
            self.peer.elected.arrived[connection] = self.peer.elected.time
            self.perform(self.coordinator.received(connection, data, self.peer.now))

    def end(self, connection: int) -> None:
        """The end of a connection arrived."""
        self.perform(self.coordinator.ended(connection, self.peer.now))

    def tick(self) -> None:
        """Time passed."""
        self._alarm = None
        self.perform(self.coordinator.tick(self.peer.now))

    def perform(self, effects: Effects) -> None:
        """Do what the coordinator decided."""
        peer, election = self.peer, self.peer.election
        serving = election.serving
        if serving is None or not self.serves:
            return
        for each in effects.records:
            serving.want(each.run, each.own_ranks)
        for incarnation, epoch in effects.epochs_heard:
            serving.hear_epoch(incarnation, epoch)
        for run in effects.deserted:
            serving.relinquish(run, peer.now)
        if self.coordinator.met:
            serving.meet()
        must_renew, self.coordinator.must_renew = self.coordinator.must_renew, False
        if must_renew:
            serving.renew(peer.now)
        peer.elected.server_acted(self, effects)
        self._send(effects)
        if effects.records or effects.epochs_heard or effects.deserted or self.coordinator.met or must_renew:
            peer.do(election.tick(peer.now))
        due = self.coordinator.wake_at(peer.now)
        if self._alarm is None or due < self._alarm:
            self._alarm = due
            peer.later(due - peer.now, partial(self._ring, due))

    def stop(self, why: str) -> None:
        """Serve no longer."""
        effects = self.coordinator.step_down(why)
        self.serves = False
        self._send(effects)

    def _send(self, effects: Effects) -> None:
        for connection, sent in effects.sends:
            self.peer.elected.send_to_node(connection, sent)
        for connection, _ in effects.hang_ups:
            self.peer.elected.hang_up(connection)

    def _ring(self, due: float) -> None:
        if self.serves and self._alarm == due:
            self.tick()


def _own_place(view: View) -> tuple[str, tuple[int, ...]]:
    return (view.world.seal_id, (view.world.rank,)) if view.world is not None else ("", ())
