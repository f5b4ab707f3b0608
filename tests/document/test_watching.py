"""A backend of a user's that can be watched: nobody asks it again and again, and no watch holds anybody up."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from rallypoint.document.waiting import Waker
from rallypoint.document.watching import Watch, Watchable
from rallypoint.elastic.dynamic_rendezvous import DynamicRendezvousHandler, RendezvousBackend, RendezvousTimeout
from tests.waiting import until

PATIENCE_S = 20.0
SLOW_S = 10.0
"""With beats this far apart, nothing happens in the document that nobody caused."""


class Notebook(RendezvousBackend):
    """The document in this process; it counts how often it is read."""

    def __init__(self) -> None:
        self.reads = 0
        self.changed = threading.Condition()
        self.state: bytes | None = None
        self.version = 0

    @property
    def name(self) -> str:
        return "notebook"

    def get_state(self) -> tuple[bytes, Any] | None:
        with self.changed:
            self.reads += 1
            return None if self.state is None else (self.state, self.version)

    def set_state(self, state: bytes, token: Any | None = None) -> tuple[bytes, Any, bool] | None:
        with self.changed:
            stands = token == (None if self.state is None else self.version)
            if stands:
                self.state, self.version = state, self.version + 1
                self.changed.notify_all()
            return None if self.state is None else (self.state, self.version, stands)


class WatchedNotebook(Notebook):
    """One that can be watched."""

    def __init__(self) -> None:
        super().__init__()
        self.watches = 0

    def wait_for_change(self, token: Any | None, timeout_s: float) -> None:
        with self.changed:
            self.watches += 1
            self.changed.wait_for(lambda: token != (None if self.state is None else self.version), timeout_s)


class FailingNotebook(WatchedNotebook):
    """One whose watch fails."""

    def wait_for_change(self, token: Any | None, timeout_s: float) -> None:
        super().wait_for_change(token, 0.0)
        raise RuntimeError("it cannot watch today")


class HastyNotebook(WatchedNotebook):
    """One whose watch always says that something changed."""

    def wait_for_change(self, token: Any | None, timeout_s: float) -> None:
        super().wait_for_change(token, 0.0)


class Cast:
    """Handlers on one backend, and threads that wait for them."""

    def __init__(self) -> None:
        self.handlers: list[DynamicRendezvousHandler] = []
        self.pool = ThreadPoolExecutor(32)

    def world(self, backend: RendezvousBackend, nodes: tuple[int, int], count: int) -> list[DynamicRendezvousHandler]:
        made = [self.handler(backend, nodes) for _ in range(count)]
        joinings = [self.pool.submit(handler.next_rendezvous) for handler in made]
        assert {joining.result(PATIENCE_S).world_size for joining in joinings} == {count}
        return made

    def handler(self, backend: RendezvousBackend, nodes: tuple[int, int]) -> DynamicRendezvousHandler:
        timeout = RendezvousTimeout(last_call=timedelta(seconds=0.2), join=timedelta(seconds=PATIENCE_S))
        made = DynamicRendezvousHandler.from_backend(
            "run", None, backend, *nodes, local_addr="127.0.0.1", timeout=timeout, keep_alive_interval=SLOW_S
        )
        self.handlers.append(made)
        return made


@pytest.fixture
def cast() -> Iterator[Cast]:
    made = Cast()
    try:
        yield made
    finally:
        for handler in made.handlers:
            handler._stop_heartbeats()
        made.pool.shutdown()


def reads_in(backend: Notebook, seconds: float) -> int:
    began, before = time.monotonic(), backend.reads
    until(lambda: time.monotonic() - began > seconds)
    return backend.reads - before


def until_nobody_reads(backend: Notebook) -> None:
    """Nothing happens any more; who asks again and again would still read."""
    until(lambda: reads_in(backend, 1.0) == 0)


def test_who_can_watch_does_not_ask(cast: Cast) -> None:
    asked, watched = Notebook(), WatchedNotebook()
    for backend in (asked, watched):
        cast.world(backend, (2, 3), 2)
    until_nobody_reads(watched)
    assert reads_in(asked, 2.0) >= 4
    assert isinstance(watched, Watchable)
    assert not isinstance(asked, Watchable)


def test_what_changes_is_seen_at_once(cast: Cast) -> None:
    backend = WatchedNotebook()
    a, b = cast.world(backend, (2, 3), 2)
    until_nobody_reads(backend)
    late = cast.handler(backend, (2, 3))
    joinings = [cast.pool.submit(late.next_rendezvous)]
    until(lambda: (a.num_nodes_waiting(), b.num_nodes_waiting()) == (1, 1))
    joinings += [cast.pool.submit(node.next_rendezvous) for node in (a, b)]
    assert {joining.result(PATIENCE_S).world_size for joining in joinings} == {3}


def test_a_watch_that_fails_is_replaced_by_asking(cast: Cast, caplog: pytest.LogCaptureFixture) -> None:
    backend = FailingNotebook()
    a, b = cast.world(backend, (2, 3), 2)
    assert reads_in(backend, 2.0) >= 4
    late = cast.handler(backend, (2, 3))
    joinings = [cast.pool.submit(late.next_rendezvous)]
    until(lambda: (a.num_nodes_waiting(), b.num_nodes_waiting()) == (1, 1))
    joinings += [cast.pool.submit(node.next_rendezvous) for node in (a, b)]
    assert {joining.result(PATIENCE_S).world_size for joining in joinings} == {3}
    assert any("wait_for_change failed" in record.message for record in caplog.records)
    assert len([record for record in caplog.records if "wait_for_change" in record.message]) <= 6


def test_a_watch_that_cries_wolf_does_not_make_anybody_run(cast: Cast) -> None:
    backend = HastyNotebook()
    cast.world(backend, (2, 2), 2)
    # Two nodes, each at most four times a second once nothing happens.
    reads_in(backend, 1.0)
    assert reads_in(backend, 2.0) <= 2 * 4 * 2 + 8


def test_nobody_waits_for_a_watch_in_order_to_leave(cast: Cast) -> None:
    backend = WatchedNotebook()
    nodes = cast.world(backend, (2, 2), 2)
    reads_in(backend, 0.5)
    began = time.monotonic()
    leaving = [cast.pool.submit(node.shutdown) for node in nodes]
    assert [one.result(PATIENCE_S) for one in leaving] == [True, True]
    assert time.monotonic() - began < 3.0


def test_who_is_woken_by_a_watch_can_ask_for_the_same_again() -> None:
    """Or it would wait for a watch that has ended."""

    class NotingWaker(Waker):
        def wake(self) -> None:
            noted.append(watch._under_way)
            super().wake()

    noted: list[Any] = []
    backend, waker = HastyNotebook(), NotingWaker()
    watch = Watch(backend)
    for number in (1, 2, 3):
        watch.wait(None, PATIENCE_S, waker)
        assert backend.watches == number
    assert noted == [None, None, None]
    watch.end()
    waker.close()


def test_a_crowd_that_can_watch_forms(cast: Cast) -> None:
    cast.world(WatchedNotebook(), (16, 16), 16)
