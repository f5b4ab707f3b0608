"""How long a call may take, how it waits between two attempts, and how Ctrl-C ends one that hangs."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple, TypeVar

T = TypeVar("T")

LONGEST_WAIT_S = 3 * 7 * 24 * 3600.0
"""The longest time-out that the operating system's own waits accept: three weeks."""


def in_seconds(timeout: timedelta) -> float:
    """A time-out as the operating system takes it."""
    if not isinstance(timeout, timedelta):
        raise TypeError(f"a time-out is a timedelta, not {type(timeout).__name__}")
    return min(max(timeout.total_seconds(), 0.0), LONGEST_WAIT_S)


class Deadline(NamedTuple):
    """How long a call may take, and when that time is over, on the monotonic clock."""

    timeout_s: float
    at: float

    @staticmethod
    def of(timeout: timedelta) -> Deadline:
        """A time-out that begins now."""
        return Deadline.after(in_seconds(timeout))

    @staticmethod
    def after(timeout_s: float) -> Deadline:
        """So many seconds from now."""
        timeout_s = min(max(timeout_s, 0.0), LONGEST_WAIT_S)
        return Deadline(timeout_s, time.monotonic() + timeout_s)

    def left_s(self) -> float:
        """The time that is left; 0 when it is over."""
        return max(self.at - time.monotonic(), 0.0)


class Backoff:
    """The pauses between attempts: each twice as long as the one before.

    Chance shortens each of them by up to a half, so that many callers do not come back together.
    """

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._next_s = first_s
        self._longest_s = longest_s

    def pause(self, deadline: Deadline) -> bool:
        """Wait before the next attempt; False where the deadline has passed, so that there is none."""
        left_s = deadline.left_s()
        if not left_s:
            return False
        time.sleep(min(left_s, self._next_s * random.uniform(0.5, 1.0)))
        self._next_s = min(2 * self._next_s, self._longest_s)
        return True


def interruptible(act: Callable[[], T]) -> T:
    """Make a call that may hang outside Python, as the lookup of a name does: Ctrl-C ends the wait for it, not the call.

    Signals concern the main thread alone; any other one makes the call itself.
    """
    if threading.current_thread() is not threading.main_thread():
        return act()
    done = threading.Event()
    results: list[T] = []
    problems: list[BaseException] = []

    def work() -> None:
        try:
            results.append(act())
        except BaseException as exc:  # noqa: BLE001  # whatever it is, it belongs to the one that asked
            problems.append(exc)
        done.set()

    try:
        threading.Thread(target=work, name="rallypoint-call", daemon=True).start()
    except RuntimeError:  # Python ends, and starts no thread any more
        return act()
    done.wait()
    for problem in problems:
        raise problem
    return results[0]
