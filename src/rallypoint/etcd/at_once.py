"""The same thing done to several at a time.

By daemon threads, and not by those of an executor: the end of a process would wait for them, as long as etcd is away.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def at_once(do: Callable[[T], object], to: Iterable[T], most: int) -> None:
    """Do it to all of them, in any order, to so many at a time at most; what was raised first ends it, and is raised."""
    todo = deque(to)
    problems: list[Exception] = []

    def work() -> None:
        while not problems:
            try:
                one = todo.popleft()
            except IndexError:
                return
            try:
                do(one)
            except Exception as problem:  # noqa: BLE001  # it is raised below, where it belongs
                problems.append(problem)

    crew: list[threading.Thread] = []
    for _ in range(min(most, len(todo)) - 1):
        thread = threading.Thread(target=work, name="rallypoint-at-once", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # there are no more threads to be had: then fewer do it
            break
        crew.append(thread)
    work()
    for thread in crew:
        thread.join()
    if problems:
        raise problems[0]
