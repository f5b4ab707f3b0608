"""Threads that wait for a condition, each woken only once its own is met.

A thread that is woken for nothing takes the interpreter from the loop that has the news for all the others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress


class _WaitingThread:
    def __init__(self, until: Callable[[], bool]) -> None:
        self.until = until
        # A plain lock and no Event: an Event that is interrupted, as by Ctrl-C, may keep its own lock.
        self.asleep = threading.Lock()
        self.asleep.acquire()


class Waiters:
    """The threads that wait for one thing to change."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may look while its thread does
        self._waiters: list[_WaitingThread] = []

    def wait(self, until: Callable[[], bool], deadline: float | None = None) -> bool:
        """Wait until a condition is met; False where the deadline passes first.  `wake` evaluates the condition too."""
        while True:
            waiter = _WaitingThread(until)
            try:
                with self._lock:
                    if until():
                        return True
                    self._waiters.append(waiter)
                left_s = -1 if deadline is None else min(max(deadline - time.monotonic(), 0.0), threading.TIMEOUT_MAX)
                if not waiter.asleep.acquire(timeout=left_s):
                    return until()
            finally:
                with self._lock, suppress(ValueError):
                    self._waiters.remove(waiter)

    def wake(self) -> None:
        """Something changed: wake the threads whose condition is met."""
        with self._lock:
            for waiter in [each for each in self._waiters if each.until()]:
                self._waiters.remove(waiter)
                waiter.asleep.release()
