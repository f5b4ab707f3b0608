"""The virtual authority process: it hosts one run of the production core, crashes, stalls and comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rallypoint.core import authority as host
from rallypoint.core import codec
from rallypoint.core.events import Message
from rallypoint.simulation.clockwork import Action, Process

if TYPE_CHECKING:
    from rallypoint.simulation.world import World


class Coordinator(Process):
    """One life of the authority; a restart makes another, on another clock."""

    def __init__(self, world: World, offset: float, record: bytes | None) -> None:
        super().__init__(world.clockwork, offset)
        self.world = world
        self.started_at = self.now
        if record is None:
            self.state = host.open_run(world.run_id, self.now, self.now, world.settings.hold_s)
        else:
            self.state = host.restore(codec.decode_run(record, self.now), self.now)
        self._alarm: float | None = None

    def receive(self, node_id: str, connection: int, message: Message) -> None:
        """A message arrived."""
        self.world.arrived[node_id, connection] = self.world.awake_time
        self._done(
            host.receive(self.state, node_id, connection, message, self.now, self.world.mint(), self.world.policies),
            message,
        )
        self.world.pong(node_id, connection)

    def connection_ended(self, node_id: str, connection: int) -> None:
        """The end of a connection arrived."""
        self._done(host.connection_ended(self.state, node_id, connection, self.now), None)

    def tick(self) -> None:
        """Time passed."""
        self._alarm = None
        self._done(host.tick(self.state, self.now, self.world.mint(), self.world.policies), None)

    def _done(self, output: host.Output, message: Message | None) -> None:
        before, self.state = self.state, output.authority
        self.world.authority_acted(before.run, output, message)
        if output.durable and self.world.durable:
            self.world.record = codec.encode_run(self.state.run, self.now)
        for node_id, said in output.sends:
            self.world.send_to_node(node_id, said)
        due = host.wake_at(self.state, self.now)
        if self._alarm is None or due < self._alarm:
            self._alarm = due
            self.later(due - self.now, self._ring(due))

    def _ring(self, due: float) -> Action:
        return lambda: self.tick() if self._alarm == due else None
