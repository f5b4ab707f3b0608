"""The runs that a server hosts: their authorities, and when to look at which of them again.

It knows no connections; `coordinator` does.  What is said to a run goes in with the time, and what came of it is
returned as a `Turn`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping

import msgspec

from rallypoint.core import authority as host
from rallypoint.core.authority import Authority, Output
from rallypoint.core.clock import AwakeClock
from rallypoint.core.events import CloseAsked, Lost, Message
from rallypoint.core.liveness import NO_BEATS
from rallypoint.core.model import Run
from rallypoint.core.ranks import RankPolicy


class Turn(msgspec.Struct, frozen=True):
    """What came of something: when, in which run, how it was before, and the core's output."""

    now: float
    run_id: str
    before: Run
    output: Output


class Runs:
    """Many runs at once, each in a namespace of its own."""

    def __init__(
        self, started: float, mint: Callable[[], str], hold_s: float, policies: Mapping[str, RankPolicy]
    ) -> None:
        self.hold_s = hold_s
        self.known: dict[str, Authority] = {}
        self._started = started
        self._mint = mint
        self._policies = policies
        self._wakes: list[tuple[float, str]] = []
        self._wake: dict[str, float] = {}
        self._beats: dict[str, dict[str, float]] = {}

    def restore(self, run: Run, now: float) -> None:
        """A run that a record tells of."""
        self._keep(run.run_id, host.restore(run, now), now)

    def receive(self, run_id: str, node_id: str, connection: int, message: Message, now: float) -> Turn:
        """A node said something on one of its connections; a run that is not known is opened by that."""
        authority = self.known.get(run_id)
        if authority is None:
            authority = self.known[run_id] = host.open_run(run_id, self._started, now, self.hold_s)
        output = host.receive(authority, node_id, connection, message, now, self._mint(), self._policies)
        return self._done(run_id, output, now)

    def beat(self, run_id: str, node_id: str, now: float) -> None:
        """A node said once more what is known of it: only the time is noted."""
        self._beats.setdefault(run_id, {})[node_id] = now

    def apply(self, run_id: str, event: CloseAsked | Lost, now: float) -> Turn:
        """An administrator's word about a run that is known."""
        return self._done(run_id, host.apply(self.known[run_id], event, now, self._mint(), self._policies), now)

    def connection_ended(
        self, run_id: str, node_id: str, connection: int, now: float, clock: AwakeClock
    ) -> Turn | None:
        """A connection of a node is gone."""
        authority = self.known.get(run_id)
        if authority is None:
            return None
        self._beats.get(run_id, {}).pop(node_id, None)
        return self._done(run_id, host.connection_ended(authority, node_id, connection, now, clock), now)

    def tick(self, now: float) -> Iterator[Turn]:
        """Time passed: what came of it in the runs that are due."""
        while self._wakes and self._wakes[0][0] <= now:
            moment, run_id = heapq.heappop(self._wakes)
            if self._wake.get(run_id) == moment:
                del self._wake[run_id]
                beats = self._beats.get(run_id, NO_BEATS)
                yield self._done(run_id, host.tick(self.known[run_id], now, self._mint(), self._policies, beats), now)

    def wake_at(self) -> float | None:
        """When the next run is due, if any."""
        return self._wakes[0][0] if self._wakes else None

    def _done(self, run_id: str, output: Output, now: float) -> Turn:
        before = self.known[run_id].run
        self._keep(run_id, output.authority, now)
        return Turn(now, run_id, before, output)

    def _keep(self, run_id: str, authority: Authority, now: float) -> None:
        settled_at = self._started + self.hold_s
        if host.is_idle(authority) and now >= settled_at:
            self.known.pop(run_id, None)
            self._wake.pop(run_id, None)
            self._beats.pop(run_id, None)
            return
        self.known[run_id] = authority
        if host.is_idle(authority) and run_id not in self._wake:
            # Until every node of an earlier life must have spoken, a forgotten run would be recovered once more.
            self._plan(run_id, settled_at)
        due, planned = host.wake_at(authority, now), self._wake.get(run_id)
        if due is not None and (planned is None or due < planned):
            self._plan(run_id, due)

    def _plan(self, run_id: str, moment: float) -> None:
        self._wake[run_id] = moment
        heapq.heappush(self._wakes, (moment, run_id))
