"""Threads that use a store, and a way to know that they wait in it without sleeping for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

import pytest

from tests.support.store_kinds import BRIEFLY, SOON_S

T = TypeVar("T")


class WaitCounter:
    """Counts the threads that begin to wait, in any store of this process."""

    def __init__(self) -> None:
        self._arrived = threading.Semaphore(0)

    def came(self) -> None:
        self._arrived.release()

    def expect(self, waiters: int = 1) -> None:
        """Returns when as many more have begun to wait."""
        for _ in range(waiters):
            assert self._arrived.acquire(timeout=SOON_S), "nobody came to wait"


class Threads:
    """Threads whose failures are the test's."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool

    def start(self, task: Callable[..., T], *args: Any) -> Future[T]:
        return self._pool.submit(task, *args)


def result(future: Future[T]) -> T:
    return future.result(timeout=SOON_S)


class WaitChecks:
    """Sees that others wait, on any kind of store."""

    def __init__(self, watched: bool, wait_counter: WaitCounter) -> None:
        self._watched = watched
        self._parking = wait_counter

    def __call__(self, *futures: Future[Any]) -> None:
        """Returns when all of them wait; on a store that nobody can look into, when none has come back for a while."""
        if self._watched:
            self._parking.expect(len(futures))
        done, _ = wait(futures, 0 if self._watched else BRIEFLY.total_seconds(), FIRST_COMPLETED)
        assert not done, "it did not wait"

    def gave_up(self) -> None:
        """Someone waited and does so no more."""
        if self._watched:
            self._parking.expect()


@pytest.fixture
def threads() -> Iterator[Threads]:
    with ThreadPoolExecutor(16) as pool:
        yield Threads(pool)
