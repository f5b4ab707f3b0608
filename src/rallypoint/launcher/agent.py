"""The launcher of one node: join, start the workers, watch them and the world, and begin anew when either changes.

One thread, the main one, decides; everything that happens reaches it as an event in one queue: a worker ended, the world
changed, a join came to something, a signal arrived.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import FrameType

import msgspec

from rallypoint.client.member import Member
from rallypoint.client.wait_reports import reported
from rallypoint.errors import (
    RendezvousClosedError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousTimeoutError,
)
from rallypoint.launcher.exit_codes import LaunchExit
from rallypoint.launcher.output import OutputRouter
from rallypoint.launcher.plan import Plan
from rallypoint.launcher.processes import (
    GUARD_LOST,
    GuardLostError,
    ProcessGuard,
    StartError,
    Survivor,
    WorkerEnded,
)
from rallypoint.launcher.restarts import RestartPolicy
from rallypoint.launcher.round import Round, RoundChange
from rallypoint.launcher.status import StatusReporter
from rallypoint.messages.notices import Placed
from rallypoint.messages.types import Reason
from rallypoint.server.sockets import file_limit
from rallypoint.stores.errors import RoundOverError, StoreError
from rallypoint.verdict import Verdict, signal_name

__all__ = ["Agent"]

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
ENDING = {
    signal.SIGINT: LaunchExit.INTERRUPTED,
    signal.SIGTERM: LaunchExit.PREEMPTED,
    signal.SIGHUP: LaunchExit.PREEMPTED,
}
"""What a signal makes of this launcher; the others are only passed on."""
VERDICT_S = 15.0
"""How long the verdict is awaited; a server that was replaced meanwhile must hear all reports again."""
CAUSE_S = 2.0
"""How long the cause of a failure is awaited on this node."""
FINISHED_S = 7 * 86400.0
"""How long a node that has finished stays for the others."""
GROUP_S = 0.05
"""How often it is looked whether anything is left of a worker's process group."""
HEARSAY_S = 1.0
"""How long a node whose own workers did not fail asks for the verdict."""


class Signalled(msgspec.Struct, frozen=True):
    """A signal arrived."""

    number: int


class JoinDone(msgspec.Struct, frozen=True):
    """A join came to something."""

    placed: Placed | None
    error: BaseException | None = None


class LeaveDone(msgspec.Struct, frozen=True):
    """This node has left the run."""


class GuardLost(msgspec.Struct, frozen=True):
    """The guard was ended from outside."""


Event = Signalled | JoinDone | LeaveDone | GuardLost | WorkerEnded | RoundChange


class _Done(Exception):  # noqa: N818  # it ends the launcher, well or not
    """This launcher ends with a code."""

    def __init__(self, code: int, why: str, reason: Reason, *, at_once: bool = False) -> None:
        super().__init__(why)
        self.code, self.why, self.reason, self.at_once = code, why, reason, at_once


class Agent:
    """One launcher, for one plan."""

    def __init__(self, plan: Plan, open_member: Callable[[], tuple[Member, float]], output: OutputRouter) -> None:
        self._plan = plan
        self._open_member = open_member
        self._output = output
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._policy = RestartPolicy(
            plan.options["max_restarts"], plan.options["restart_window"], plan.options["no_progress"]
        )
        self._restarts = 0
        self._interrupts = 0
        self._ending: int | None = None
        """The first signal that asked this launcher to end."""
        self._verdict: Verdict | None = None
        """What ended the last round, if a failure did."""

    def run(self) -> int:
        """Run until the work is done or cannot be; the exit code."""
        guard = ProcessGuard(self._events.put, lambda: self._events.put(GuardLost()), adopts=True)
        # What is ignored stays so: `nohup`, and Ctrl-C in the background jobs of a script.
        heeded = [number for number in PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._signalled) for number in heeded}
        file_limit(raised=True)  # this process may serve; the workers come of the guard, which was there before
        try:
            try:
                member, join_s = self._open_member()
            except RendezvousError as exc:
                self._say(str(exc))
                return LaunchExit.REFUSED
            return self._run(guard, member, join_s)
        finally:
            guard.close()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _run(self, guard: ProcessGuard, member: Member, join_s: float) -> int:
        done: _Done
        try:
            while True:
                placed = self._join(member, join_s)
                with Round(self._plan, member, placed, guard, self._output, self._restarts) as current:
                    self._watch(current)
        except _Done as exc:
            done = exc
        except (RendezvousError, StoreError, OSError) as exc:
            done = _Done(LaunchExit.GAVE_UP, f"the workers of this node cannot go on: {exc}", Reason.GAVE_UP)
        if done.why:
            self._say(done.why)
        with suppress(RendezvousError):
            guard.sweep()  # nothing of this node works on while the others begin without it
        return self._leave(member, done)

    # Joining ------------------------------------------------------------------------------------------------------

    def _join(self, member: Member, join_s: float) -> Placed:
        """Wait for a place in the next world; signals are heard meanwhile."""

        def join() -> None:
            try:
                with reported(member, StatusReporter(self._output)):
                    placed = member.join(join_s)
                self._events.put(JoinDone(placed))
            except BaseException as exc:  # noqa: BLE001  # it belongs to the thread that decides
                self._events.put(JoinDone(None, exc))

        threading.Thread(target=join, name="rallypoint-join", daemon=True).start()
        while True:
            event = self._next()
            if isinstance(event, Signalled) and event.number in ENDING:
                raise _Done(
                    ENDING[signal.Signals(event.number)],
                    f"{signal_name(event.number)} came while this node waited",
                    Reason.WITHDREW,
                    at_once=True,
                )
            if isinstance(event, JoinDone):
                if event.placed is not None:
                    return event.placed
                assert event.error is not None, "a join gives a place or an error"
                if isinstance(event.error, RendezvousClosedError):
                    raise self._closed(str(event.error))
                raise _join_failed(event.error)

    # A round ------------------------------------------------------------------------------------------------------

    def _watch(self, current: Round) -> None:
        """Watch a round until the world changes; raises `_Done` where the launcher ends."""
        try:
            current.start(self._events.put, self._say, self._check_ending)
        except (StartError, GuardLostError):
            raise
        except (RendezvousError, StoreError, TimeoutError) as exc:
            self._check_ending()
            if not (isinstance(exc, RoundOverError) or current.is_over):
                raise
            self._say(f"the world changed before the workers started: {exc}")
            self._stop(current)
            return
        self._verdict = None
        while True:
            event = self._next()
            if isinstance(event, Signalled):
                self._pass_on(current, event.number)
            elif isinstance(event, RoundChange) and event.seal_id == current.seal_id:
                self._world_changed(current, event)
                return
            elif isinstance(event, WorkerEnded) and current.ended(event):
                if current.failures:
                    self._await_the_cause(current)
                    self._failed(current)
                    return
                if current.is_done:
                    raise _Done(LaunchExit.DONE, "", Reason.FINISHED)

    def _world_changed(self, current: Round, change: RoundChange) -> None:
        self._say(f"round {current.number} is over: {change.why}; the workers are stopped")
        self._judge(current, HEARSAY_S)
        self._stop(current)
        if change.is_closed:
            raise self._closed(change.why)
        self._count_a_failure_elsewhere()

    def _count_a_failure_elsewhere(self) -> None:
        """It is not charged to this node, but the same failure in a row ends the run wherever it happens."""
        first = self._verdict.first if self._verdict is not None else None
        if first is None:
            self._policy.progressed()
        elif not first.is_genuine:
            return  # a guess, of which its own node still finds out whether a peer's going was behind it
        elif (decision := self._policy.failed(first.signature)) is not None:
            raise _Done(first.code, decision.why, Reason.GAVE_UP)

    def _await_the_cause(self, current: Round) -> None:
        """A failure that names a peer may be of one on this node, which is still printing what went wrong."""
        deadline = time.monotonic() + CAUSE_S
        while current.running and not any(failure.is_genuine for failure in current.failures):
            event = self._next(deadline - time.monotonic())
            if event is None:
                return
            if isinstance(event, WorkerEnded):
                current.ended(event)
            elif isinstance(event, Signalled):
                self._pass_on(current, event.number)
            elif isinstance(event, RoundChange) and event.seal_id == current.seal_id:
                return  # the peer was on another node, and what still runs here may never end

    def _failed(self, current: Round) -> None:
        """A worker failed: its peers are stopped, and the cause decides whether it is charged."""
        # Workers that crash on a peer's death do so before anybody is told of it: the verdict tells cause and effect apart.
        self._judge(current, VERDICT_S)
        self._stop(current)
        own = next((mine for mine in current.failures if mine.is_genuine), None)
        # Without a verdict, a failure that names a peer is charged only where the world stands: then no peer was lost.
        own = own or (None if current.is_over else current.failures[0])
        failure = self._verdict.first if self._verdict is not None else own
        if failure is None or failure.rank not in {mine.rank for mine in current.failures}:
            self._say("the workers of this node failed because of that: it is not charged")
            self._count_a_failure_elsewhere()
            return
        if not failure.is_genuine and (gone := current.peer_gone()):
            self._say(f"{gone}: the workers of this node failed because of that, and it is not charged")
            self._policy.progressed()
            self._check_ending()
            return
        decision = self._policy.crashed(failure.signature, time.monotonic())
        if not decision.restart:
            raise _Done(failure.code, f"no more restarts: {decision.why}", Reason.GAVE_UP)
        self._restarts += 1
        self._say(f"the workers start again: {decision.why}")

    def _judge(self, current: Round, timeout_s: float) -> None:
        """Learn which worker failed first, and say so; every node says the same."""
        self._verdict = current.verdict(timeout_s)
        for line in self._verdict.lines() if self._verdict is not None else ():
            self._say(line)

    def _closed(self, why: str) -> _Done:
        """The run is closed: where a worker's failure led to it, its exit code is that of every node."""
        first = self._verdict.first if self._verdict is not None else None
        return _Done(first.code if first is not None else LaunchExit.CLOSED, why, Reason.WITHDREW)

    def _pass_on(self, current: Round, number: int) -> None:
        """Pass a signal on to the workers; one that ends the launcher gives them the grace to end."""
        if number not in ENDING:
            current.signal(number)
            return
        self._say(f"{signal_name(number)}: the workers have {self._plan.options['grace']:g} s to end")
        current.announce_stop(signal_name(number))
        self._stop(current, number)
        # Workers that end well on being asked to have finished their part for this time, not the work.
        raise _Done(ENDING[signal.Signals(number)], "", Reason.WITHDREW, at_once=True)

    def _stop(self, current: Round, number: int = signal.SIGTERM) -> None:
        """End the workers: ask them, wait for the grace, kill what is left, and prove that nothing is."""
        current.signal(number)
        deadline = time.monotonic() + self._plan.options["grace"]
        # A shell may end at once while the program that it started still saves: the grace is for the whole group, of which
        # nobody tells when it has ended.
        while (current.running or current.has_groups) and (left_s := deadline - time.monotonic()) > 0:
            event = self._next(left_s if current.running else min(left_s, GROUP_S))
            if isinstance(event, WorkerEnded):
                current.ended(event, stopped=True)
            elif isinstance(event, Signalled):
                if event.number == signal.SIGINT:
                    deadline = 0.0
                current.signal(event.number)
        left = current.sweep()
        if left:
            raise _Done(LaunchExit.GAVE_UP, _cannot_be_killed(left), Reason.GAVE_UP)
        self._check_ending()

    def _check_ending(self) -> None:
        """A signal that asks this launcher to end is heeded, whatever it was doing when it came."""
        if self._ending is not None:
            raise _Done(ENDING[signal.Signals(self._ending)], "", Reason.WITHDREW, at_once=True)

    # The end ------------------------------------------------------------------------------------------------------

    def _leave(self, member: Member, done: _Done) -> int:
        """Leave in order; the exit code.  A signal ends the wait for those who depend on this process."""
        if done.at_once:
            with suppress(RendezvousError):
                member.withdraw(done.why or "it was stopped")
            return done.code

        def leave() -> None:
            # One that has finished serves the store and the server to the others for as long as they work.
            timeout_s = FINISHED_S if done.reason is Reason.FINISHED else None
            with suppress(RendezvousError), reported(member, StatusReporter(self._output)):
                member.leave(done.reason, done.why, timeout_s=timeout_s)
            self._events.put(LeaveDone())

        threading.Thread(target=leave, name="rallypoint-leave", daemon=True).start()
        while not isinstance(event := self._events.get(), LeaveDone):
            if isinstance(event, Signalled) and event.number in ENDING:
                member.stop()
                return ENDING[signal.Signals(event.number)]
        return done.code

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        if number in ENDING and self._ending is None:
            self._ending = number
        if number == signal.SIGINT:
            self._interrupts += 1
            if self._interrupts > 2:
                os._exit(LaunchExit.INTERRUPTED)  # the guard ends what is left
        self._events.put(Signalled(number))

    def _next(self, timeout_s: float | None = None) -> Event | None:
        """What happens next; None where nothing does in that time."""
        try:
            event = self._events.get(timeout=None if timeout_s is None else max(timeout_s, 0.0))
        except Empty:
            return None
        if isinstance(event, GuardLost):
            raise GuardLostError(GUARD_LOST)
        return event

    def _say(self, line: str) -> None:
        self._output.say(f"rallypoint: {line}")


def _join_failed(error: BaseException) -> _Done:
    """What a join that failed makes of the launcher."""
    if isinstance(error, RendezvousGracefulExitError):
        return _Done(LaunchExit.DONE, f"this node stood by and was not needed: {error}", Reason.WITHDREW)
    if isinstance(error, RendezvousTimeoutError):
        return _Done(LaunchExit.JOIN_TIMEOUT, str(error), Reason.WITHDREW)
    if isinstance(error, (RendezvousError, GuardLostError)):
        return _Done(LaunchExit.REFUSED, str(error), Reason.WITHDREW)
    raise error


def _cannot_be_killed(left: list[Survivor]) -> str:
    listed = ", ".join(f"{process.pid} ({process.name}, state {process.state})" for process in left)
    return (
        f"these processes cannot be killed: {listed}; state D waits for a device or a network file system; this node "
        f"leaves, so that the others go on without it"
    )
