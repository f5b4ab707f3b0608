"""The runs that a server hosts: their states, what waits for a record, and when each is due again.

It knows no connections; `coordinator` does.  An input goes in with the time, and what came of it is returned as `AppliedInput`s.

Recorded before told (rule 17c): where the server keeps records, a seal, a close and a finish are withheld until the record
is written.  Meanwhile the run's inputs queue and its clock stands; then they are applied in order up to the first seal or
close, which is one write again.
"""

from __future__ import annotations

import heapq
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

import msgspec

from rallypoint.core.changes import Durability
from rallypoint.core.model import Phase, Run
from rallypoint.messages.requests import Left
from rallypoint.messages.types import Settings
from rallypoint.server import liveness, run_state
from rallypoint.server.run_state import Output, RunState

log = logging.getLogger("rallypoint.server")

DEFAULTS = Settings()
RECORD_AWAITED_S = 2.0
"""From when on a node that waits is told that the record is awaited."""
LONGEST_HOLD_S = 120.0
"""A run whose nodes never come would otherwise stay in memory for as long as its own settings say."""

KEPT_S = DEFAULTS.outage_grace_s
"""How long an empty run that had an earlier incarnation is remembered: a member of that one may be away for so long, and
would bring it back at a server that has forgotten how it ended."""


def hold_of(settings: Settings) -> float:
    """How long a server that has just started listens for the nodes of a run's earlier life (rule 14)."""
    return min(settings.hold_s, LONGEST_HOLD_S)


Change = Callable[[RunState, float, str], Output]
"""What an input does to the state of a run, at a time of the run's own clock, with a fresh random text."""


class RunInput(msgspec.Struct, frozen=True):
    """Something that happens to a run; a question where there is no change.  `is_time`: only that time passed.

    `asked` is the number of a question of the connection `asker`, which `answer` answers once the input is taken.
    """

    change: Change | None
    leave: Left | None = None
    asker: int = 0
    asked: int = 0
    answer: str = ""
    evicted: str = ""
    """The node that is given up by it."""
    is_time: bool = False

    @property
    def is_repeated(self) -> bool:
        """Whether a node says this until it is acknowledged."""
        return self.leave is not None or self.change is None

    def says_the_same(self, other: RunInput) -> bool:
        """Whether another input is this one, said before."""
        return (self.leave, self.asker, self.asked) == (other.leave, other.asker, other.asked) and other.is_repeated


class AppliedInput(msgspec.Struct, frozen=True):
    """What came of an input: when, in which run, how the run was before, and the core's output."""

    now: float
    run_id: str
    before: Run
    output: Output
    taken: RunInput

    @property
    def gone(self) -> Iterator[str]:
        """The nodes that were lost by it, that left, or that were evicted."""
        leave = self.taken.leave.node_id if self.taken.leave is not None else ""
        return chain((lost.node_id for lost in self.output.losses), filter(None, (leave, self.taken.evicted)))


@dataclass
class HostedRun:
    """One run.  `state` is what is recorded; `ahead` is what it will be when the write that is in flight is done."""

    state: RunState
    hold_s: float
    epoch: int = 0
    idle_since: float | None = None
    stood_s: float = 0.0
    is_deserted: bool = False
    written_since: float | None = None
    """Since when a write of its record has been in flight."""
    ahead: RunState | None = None
    withheld: list[AppliedInput] = field(default_factory=list)
    queue: deque[RunInput] = field(default_factory=deque)
    beats: dict[str, float] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    """The token of the process that each node is in, for as long as the run knows the node."""

    @property
    def run(self) -> Run:
        """The run as it is recorded, and as everybody may know it."""
        return self.state.run

    def held_up(self, now: float) -> str:
        """Why nodes that wait hear nothing for longer than usual; empty where they do."""
        since = self.written_since
        if since is None or now - since < RECORD_AWAITED_S:
            return ""
        if self.withheld:
            return f"what was decided is being recorded, and the record has not been confirmed for {now - since:.1f} s"
        if self.is_deserted:
            return "the server does not hear most of its nodes, and waits whether another process serves them"
        return "the server was paused, and finds out whether another one serves by now"

    def time(self, now: float) -> float:
        """The run's own clock, which stands while a write is in flight."""
        return (now if self.written_since is None else self.written_since) - self.stood_s

    def suspend(self, now: float) -> None:
        """Take no input from now on, as while a write is in flight."""
        self.ahead, self.written_since = self.state, now

    def deserted_at(self, output: Output, now: float) -> float | None:
        """When most nodes will have been silent for the time-out, where these losses show that they may be (rule 17e)."""
        if not output.losses or self.run.phase is Phase.CLOSED:
            return None
        return liveness.deserted_at(self.state.life, output.losses, self.run.settings, self.time(now), self.beats)


@dataclass
class HostedRuns:
    """Many runs at once, each in a namespace of its own."""

    started: float
    mint: Callable[[], str]
    keeps_records: bool
    elected: bool = False
    fixed_hold_s: float | None = None
    """The hold of every run; None: that of each run's settings."""
    known: dict[str, HostedRun] = field(default_factory=dict)
    to_record: list[str] = field(default_factory=list)
    """Runs whose record is to be written now: the shell does it and calls `recorded`."""
    forgotten: list[str] = field(default_factory=list)
    """Runs that have ended, whose records are of no more use."""
    deserted: list[str] = field(default_factory=list)
    """Runs most of whose nodes cannot be heard: the shell lets others serve, and calls `resume` if nobody does."""
    faults: int = 0
    """How many runs were closed because our own code failed on them."""
    _wakes: list[tuple[float, str]] = field(default_factory=list)
    _wake: dict[str, float] = field(default_factory=dict)

    def restore(self, run: Run, epoch: int, now: float) -> None:
        """A run that a record tells of; the epoch is that of this start of the server."""
        hosted = self.known[run.run_id] = HostedRun(RunState(run), self._hold_s(run.settings), epoch)
        self._keep(run.run_id, hosted, now)

    def open(self, run_id: str, now: float, settings: Settings = DEFAULTS) -> HostedRun:
        """The run of that name; one that is not known is opened, with the settings of the node that names it."""
        hosted = self.known.get(run_id)
        if hosted is None:
            hold_s = self._hold_s(settings)
            state = run_state.open_run(run_id, self.started, now, hold_s)
            hosted = self.known[run_id] = HostedRun(state, hold_s, int(self.keeps_records))
        return hosted

    def _hold_s(self, settings: Settings) -> float:
        return hold_of(settings) if self.fixed_hold_s is None else self.fixed_hold_s

    def take(self, run_id: str, taken: RunInput, now: float) -> Iterator[AppliedInput]:
        """Something happens to a run: what came of it, unless it has to wait for a record."""
        hosted = self.open(run_id, now)
        is_writing = hosted.written_since is not None
        if is_writing and taken.is_repeated and any(taken.says_the_same(other) for other in hosted.queue):
            return  # a node repeats it with every beat, and the first one still waits
        hosted.queue.append(taken)
        if not is_writing:
            yield from self._drain(run_id, hosted, now)

    def recorded(self, run_id: str, now: float) -> Iterator[AppliedInput]:
        """The record of a run is written: what was withheld, and what came of the inputs that waited."""
        hosted = self.known.get(run_id)
        if hosted is None or hosted.written_since is None or hosted.ahead is None:
            return
        hosted.stood_s += now - hosted.written_since
        hosted.written_since = None
        hosted.state, hosted.ahead = hosted.ahead, None
        withheld, hosted.withheld = hosted.withheld, []
        yield from withheld
        yield from self._drain(run_id, hosted, now)

    def suspend(self, now: float) -> None:
        """Take no input of any run before `resume` is called for it."""
        for hosted in self.known.values():
            if hosted.written_since is None:
                hosted.suspend(now)

    def resume(self, run_id: str, now: float) -> Iterator[AppliedInput]:
        """Take the inputs of a suspended run again; a write that is in flight is still awaited."""
        hosted = self.known.get(run_id)
        if hosted is not None and not hosted.withheld:
            if hosted.is_deserted:
                hosted.is_deserted, beats = False, hosted.beats
                give_up = RunInput(lambda state, run_now, mint: run_state.give_up_silent(state, beats, run_now, mint))
                hosted.queue.appendleft(give_up)
            yield from self.recorded(run_id, now)

    def beat(self, run_id: str, node_id: str, now: float) -> None:
        """A node of a run said nothing new: only the time is noted."""
        hosted = self.known[run_id]
        hosted.beats[node_id] = hosted.time(now)

    def tick(self, now: float) -> Iterator[AppliedInput]:
        """Time passed: what came of it in the runs that are due."""
        while self._wakes and self._wakes[0][0] <= now:
            moment, run_id = heapq.heappop(self._wakes)
            hosted = self.known.get(run_id)
            if self._wake.get(run_id) != moment or hosted is None:
                continue
            del self._wake[run_id]
            if hosted.written_since is None:
                # Where another process may serve instead, that is found out, and not waited for (rule 17e).
                hosted.queue.append(RunInput(_time_passes(hosted.beats, not self.elected), is_time=True))
                yield from self._drain(run_id, hosted, now)

    def wake_at(self) -> float | None:
        """When the next run is due, if any."""
        return self._wakes[0][0] if self._wakes else None

    def _drain(self, run_id: str, hosted: HostedRun, now: float) -> Iterator[AppliedInput]:
        """Apply what waits, up to the first seal or close that must be recorded."""
        run_now = hosted.time(now)
        while hosted.queue:
            taken = hosted.queue.popleft()
            state = hosted.ahead or hosted.state
            output = Output(state) if taken.change is None else self._changed(run_id, taken.change, state, run_now)
            if self.elected and taken.is_time and self._waits_for_others(run_id, hosted, output, now):
                return
            applied = AppliedInput(run_now, run_id, state.run, output, taken)
            for node_id in applied.gone:
                hosted.owners.pop(node_id, None)
            if hosted.ahead is not None or (self.keeps_records and output.durability):
                hosted.withheld.append(applied)
                hosted.ahead = output.state
                if output.durability is Durability.SEAL_OR_CLOSE:
                    break
            else:
                hosted.state = output.state
                yield applied
        if hosted.ahead is not None:
            hosted.written_since = now
            self.to_record.append(run_id)
        else:
            self._keep(run_id, hosted, now)

    def _changed(self, run_id: str, change: Change, state: RunState, now: float) -> Output:
        """What an input does; where our own code fails on it, that run is closed in words, and the others go on."""
        try:
            return change(state, now, self.mint())
        except Exception as exc:
            log.exception("run %r cannot go on", run_id)
            self.faults += 1
            return run_state.fail(
                state, f"the server failed on it, which is a fault of Rallypoint's: {exc!r:.200}", now
            )

    def _waits_for_others(self, run_id: str, hosted: HostedRun, output: Output, now: float) -> bool:
        """Whether these losses are put off: most nodes are silent, and another process may hear them (rule 17e)."""
        deserted_at = hosted.deserted_at(output, now)
        if deserted_at is None:
            return False
        if deserted_at > hosted.time(now):
            self._plan(run_id, max(deserted_at + hosted.stood_s, now + 0.001))
        else:
            hosted.is_deserted = True
            hosted.suspend(now)
            self.deserted.append(run_id)
        return True

    def _keep(self, run_id: str, hosted: HostedRun, now: float) -> None:
        is_idle = not self.elected and run_state.is_idle(hosted.state)
        hosted.idle_since = None if not is_idle else now if hosted.idle_since is None else hosted.idle_since
        kept_s = KEPT_S if hosted.run.last is not None else 0.0
        settled_at = max(self.started + hosted.hold_s, (hosted.idle_since or 0.0) + kept_s)
        if is_idle and now >= settled_at:
            self.known.pop(run_id, None)
            self._wake.pop(run_id, None)
            if self.keeps_records:
                self.forgotten.append(run_id)
            return
        if is_idle and run_id not in self._wake:
            # Until every node of an earlier life must have spoken, a forgotten run would be recovered once more.
            self._plan(run_id, settled_at)
        due, planned = run_state.wake_at(hosted.state, hosted.time(now)), self._wake.get(run_id)
        if due is not None and (planned is None or due + hosted.stood_s < planned):
            self._plan(run_id, due + hosted.stood_s)

    def _plan(self, run_id: str, moment: float) -> None:
        self._wake[run_id] = moment
        heapq.heappush(self._wakes, (moment, run_id))


def _time_passes(beats: Mapping[str, float], waits_when_deaf: bool) -> Change:
    return lambda state, now, mint: run_state.tick(state, now, mint, beats, waits_when_deaf=waits_when_deaf)
