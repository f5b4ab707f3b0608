"""Threads that wait for a condition, each woken only once its own is met.

A thread that is woken for nothing takes the interpreter from the loop that has the news for all the others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress


class _Waiter:
    def __init__(self, until: Callable[[], bool]) -> None:
        self.until = until
        self.woken = threading.Event()


class Waiters:
    """The threads that wait for one thing to change."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: list[_Waiter] = []

    def wait(self, until: Callable[[], bool], deadline: float | None = None) -> bool:
        """Wait until a condition is met; False where the deadline, on the monotonic clock, passes first.

        The condition is evaluated by the threads that call `wake` too: it must be quick, and must not wait itself.
        """
        while True:
            waiter = _Waiter(until)
            with self._lock:
                if until():
                    return True
                self._waiters.append(waiter)
            try:
                if not waiter.woken.wait(None if deadline is None else max(deadline - time.monotonic(), 0.0)):
                    return until()
            finally:
                with self._lock, suppress(ValueError):
                    self._waiters.remove(waiter)

    def wake(self) -> None:
        """Something changed: wake the threads whose condition is met."""
        with self._lock:
            for waiter in [each for each in self._waiters if each.until()]:
                self._waiters.remove(waiter)
                waiter.woken.set()
