"""Threads of a member wait until what the node knows is as they want it, and are not woken before."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from rallypoint.client.waiters import Waiters
from tests.support.waiting import PATIENCE_S, until


class Watched:
    """A number that a thread waits for; it notes from where its condition was looked at."""

    def __init__(self, wanted: int) -> None:
        self.waiters = Waiters()
        self.number = 0
        self.looks: list[threading.Thread] = []
        self.answer: bool | None = None
        self._wanted = wanted
        self.thread = threading.Thread(target=self._wait, daemon=True)
        self.thread.start()
        until(lambda: self.waiters._waiters)

    def is_so(self) -> bool:
        self.looks.append(threading.current_thread())
        return self.number >= self._wanted

    def change(self, number: int) -> None:
        self.number = number
        self.waiters.wake()

    def _wait(self) -> None:
        self.answer = self.waiters.wait(self.is_so)


def test_a_thread_sleeps_through_changes_that_are_not_what_it_waits_for() -> None:
    watched = Watched(3)
    for number in (1, 2):
        watched.change(number)
    assert watched.looks.count(watched.thread) == 1, "it looked once, before it slept"
    watched.change(3)
    watched.thread.join(PATIENCE_S)
    assert watched.answer is True


def test_a_thread_that_is_overtaken_by_another_change_waits_on() -> None:
    """What it was woken for is over before it has looked."""
    watched = Watched(3)
    with watched.waiters._lock:  # it cannot look now
        (waiter,) = watched.waiters._waiters
        waiter.asleep.release()
    until(lambda: watched.waiters._waiters != [waiter] and watched.waiters._waiters)
    assert watched.answer is None
    watched.change(3)
    watched.thread.join(PATIENCE_S)
    assert watched.answer is True


def test_a_wait_ends_with_its_deadline_and_leaves_nothing_behind() -> None:
    waiters = Waiters()
    looks: list[Callable[[], bool]] = []
    assert waiters.wait(lambda: bool(looks), time.monotonic() + 0.01) is False
    assert waiters.wait(lambda: bool(looks), time.monotonic() - 1.0) is False
    assert not waiters._waiters
    assert waiters.wait(lambda: True, time.monotonic() - 1.0) is True
