"""Virtual time: a queue of what is to happen when."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial

Action = Callable[[], None]

SPIN = 10_000


class VirtualTime:
    """Runs actions in the order of their times; equal times in the order in which they were asked for."""

    def __init__(self) -> None:
        self.time = 0.0
        self._queue: list[tuple[float, int, Action]] = []
        self._count = 0

    def at(self, moment: float, action: Action) -> None:
        """Run the action at a moment of virtual time."""
        self._count += 1
        heapq.heappush(self._queue, (moment, self._count, action))

    def after(self, delay_s: float, action: Action) -> None:
        """Run the action so many seconds from now."""
        self.at(self.time + delay_s, action)

    def run_until(self, moment: float) -> None:
        """Let time pass up to and including the moment; a world that never gets on is an AssertionError."""
        queue, since, limit, pop = self._queue, 0, 0, heapq.heappop
        while queue and queue[0][0] <= moment:
            due, _, action = pop(queue)
            if due > self.time or not limit:
                since, limit = 0, SPIN + 20 * len(queue)
            self.time = due
            action()
            since += 1
            assert since < limit, f"{since} things happened in one moment, and there is no end to it"
        self.time = moment


class Process:
    """Something that can be stopped and continued like a process under SIGSTOP: what is due meanwhile happens after."""

    def __init__(self, virtual_time: VirtualTime, offset: float = 0.0, rate: float = 1.0) -> None:
        self.virtual_time = virtual_time
        self.offset = offset
        self.rate = rate
        self.alive = True
        self.stopped = False
        self.was_seen = False
        """Whether others saw its connections end when it died."""
        self._stopped_at = 0.0
        self._stopped_s = 0.0
        self._backlog: list[Action] = []

    @property
    def stopped_s(self) -> float:
        """For how long it was stopped, up to now."""
        return self._stopped_s + (self.virtual_time.time - self._stopped_at if self.stopped else 0.0)

    @property
    def stopped_now_s(self) -> float:
        """For how long it has been stopped this time."""
        return self.virtual_time.time - self._stopped_at if self.stopped else 0.0

    @property
    def now(self) -> float:
        """This process's own monotonic clock: it starts anywhere and may run fast or slow."""
        return self.offset + self.virtual_time.time * self.rate

    def when_running(self, action: Action) -> None:
        """Do it now, or when the process continues, or never if it is dead."""
        if not self.alive:
            return
        if self.stopped:
            self._backlog.append(action)
        else:
            action()

    def later(self, delay_s: float, action: Action) -> None:
        """Do it so many seconds from now by this process's own clock."""
        self.virtual_time.after(delay_s / self.rate, partial(self.when_running, action))

    def stop(self) -> None:
        """SIGSTOP."""
        if not self.stopped:
            self.stopped, self._stopped_at = True, self.virtual_time.time

    def resume(self) -> None:
        """SIGCONT."""
        self._stopped_s, self.stopped = self.stopped_s, False
        backlog, self._backlog = self._backlog, []
        for action in backlog:
            self.when_running(action)
