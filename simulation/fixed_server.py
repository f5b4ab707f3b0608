"""The virtual server process: production's coordinator on a virtual clock; it crashes, stalls and comes back."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rallypoint import record as recording
from rallypoint.core.model import Run
from rallypoint.server import run_state
from rallypoint.server.admission import ServerLimits
from rallypoint.server.coordinator import Coordinator
from rallypoint.server.effects import Effects
from simulation.virtual_time import Action, Process

if TYPE_CHECKING:
    from simulation.cluster import Cluster


UNLIMITED = ServerLimits(connections=10**9, nodes_a_run=10**9, silent_connections=10**9)
"""A virtual machine has all the memory in the world."""


class FixedServer(Process):
    """One life of the server; a restart makes another, on another clock."""

    def __init__(self, cluster: Cluster, offset: float, record: bytes | None) -> None:
        super().__init__(cluster.virtual_time, offset)
        self.cluster = cluster
        self.started_at = self.now
        self._alarm: float | None = None
        self._unknown: Run | None = None
        self.server = Coordinator(
            monotonic=self.now,
            mint=cluster.mint,
            keeps_records=cluster.durable,
            restored=[] if record is None else [_restored(record, self.now)],
            limits=UNLIMITED,
            hold_s=cluster.settings.hold_s,
        )

    @property
    def run(self) -> Run:
        """What it knows of the world's run, or would start with if it does not know it."""
        run_id = self.cluster.run_id
        hosted = self.server.runs.known.get(run_id)
        if hosted is not None:
            return hosted.run
        if self._unknown is None or (self._unknown.hold_ends or self.now) < self.now:
            self._unknown = run_state.open_run(run_id, self.started_at, self.now, self.cluster.settings.hold_s).run
        return self._unknown

    def open(self, connection: int) -> None:
        """A connection was made."""
        self._done(self.run, self.server.opened(connection, self.now), None)

    def receive(self, connection: int, data: bytes) -> None:
        """Bytes arrived."""
        if not self.server.knows(connection):
            return  # it was hung up on: no bytes arrive after that
        before = self.run
        effects = self.server.received(connection, data, self.now)
        self.cluster.arrived[connection] = self.cluster.awake_time
        self._done(before, effects, data)

    def end(self, connection: int) -> None:
        """The end of a connection arrived."""
        self._done(self.run, self.server.ended(connection, self.now), None)

    def tick(self) -> None:
        """Time passed."""
        self._alarm = None
        self._done(self.run, self.server.tick(self.now), None)

    def _done(self, before: Run, effects: Effects, data: bytes | None) -> None:
        if effects.forgotten:
            self.cluster.record = None
        for each in effects.records:
            written = recording.of(each.run, epoch=each.epoch, write_id=self.cluster.mint())
            self.cluster.record = recording.encode(written)
            self.later(0.0, partial(self._recorded, each.run.run_id))
        self.cluster.fixed_server_acted(before, self.run, effects, data)
        for connection, sent in effects.sends:
            self.cluster.send_to_node(connection, sent)
        for connection, _ in effects.hang_ups:
            self.cluster.hang_up(connection)
        due = self.server.wake_at(self.now)
        if self._alarm is None or due < self._alarm:
            self._alarm = due
            self.later(due - self.now, self._ring(due))

    def _recorded(self, run_id: str) -> None:
        before = self.run
        effects = self.server.recorded(run_id, self.now)
        for happening in effects.happenings:
            happening.losses = ()  # decided before the record was written: what was heard since says nothing of them
        self._done(before, effects, None)

    def _ring(self, due: float) -> Action:
        return lambda: self.tick() if self._alarm == due else None


def _restored(data: bytes, now: float) -> tuple[Run, int]:
    """The run of a record, and the epoch of the server that starts with it."""
    known = recording.decode(data)
    return recording.restored(known, now, known.settings.hold_s), known.epoch + 1
