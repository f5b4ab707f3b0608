"""Several processes on one file: exact sums, one winner, nobody left waiting, and a file that stays small."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from rallypoint.stores import FileStore, Store
from rallypoint.stores.data import Operation, Verb
from rallypoint.stores.file import record_format
from rallypoint.stores.file.locked_file import LockedFile
from rallypoint.stores.local import WaitingThread
from rallypoint.waiting import Deadline
from tests.stores.file_processes import Worker
from tests.stores.test_model import FileHistories
from tests.support.store_kinds import SOON, SOON_S
from tests.support.store_threads import Threads, WaitCounter, result

StartWorkers = Callable[[int], list[Worker]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def start_workers(path: Path) -> Iterator[StartWorkers]:
    with ExitStack() as stack:

        def start(count: int) -> list[Worker]:
            workers = [stack.enter_context(Worker()) for _ in range(count)]
            for worker in workers:
                worker.order("open", str(path))
            assert [worker.answer() for worker in workers] == [None] * count
            return workers

        yield start


def all_do(workers: list[Worker], *order: Any) -> list[Any]:
    for worker in workers:
        worker.order(*order)
    return [worker.answer() for worker in workers]


def test_additions_of_many_processes_are_all_counted(path: Path, start_workers: StartWorkers) -> None:
    sums = all_do(start_workers(8), "add_often", "n", 200)
    assert sorted(total for found in sums for total in found) == list(range(1, 1601))
    assert all(found == sorted(found) for found in sums)
    assert FileStore(path).get("n") == b"1600"


def test_compare_set_has_one_winner_among_processes(start_workers: StartWorkers) -> None:
    workers = start_workers(6)
    for number, worker in enumerate(workers):
        worker.order("compare_set", "leader", "", str(number))
    assert len({worker.answer() for worker in workers}) == 1


def test_entries_of_a_queue_go_to_one_process_each_and_in_order(start_workers: StartWorkers) -> None:
    pushing, *popping = start_workers(4)
    for worker in popping:
        worker.order("pop_often", "q", 40)
    pushing.order("push_often", "q", "entry", 120)
    popped = [worker.answer() for worker in popping]
    assert pushing.answer() is None
    numbers = [[int(entry.removeprefix("entry ")) for entry in entries] for entries in popped]
    assert sorted(number for found in numbers for number in found) == list(range(120))
    assert all(found == sorted(found) for found in numbers)


def test_who_waits_in_one_process_is_woken_by_another(path: Path, start_workers: StartWorkers) -> None:
    store = FileStore(path, timeout=SOON)
    getting, popping, *at_barrier = start_workers(4)
    getting.order("get", "key")
    popping.order("queue_pop", "q")
    for worker in at_barrier:
        worker.order("barrier", "b", 3)
    store.barrier("b", 3)
    assert [worker.answer() for worker in at_barrier] == [None, None]
    store.set("key", "v")
    store.queue_push("q", "entry")
    assert (getting.answer(), popping.answer()) == ("v", "entry")


def test_a_process_that_is_killed_in_the_middle_of_much_writing_harms_nobody(
    path: Path, start_workers: StartWorkers
) -> None:
    store = FileStore(path, timeout=SOON)
    for round_ in range(10):
        doomed, *others = start_workers(3)
        for worker in (doomed, *others):
            worker.order("add_often", f"n{round_}", 300)
        term = Deadline.of(SOON)
        while store.add(f"n{round_}", 0) < 100:
            assert term.left_s(), "nobody adds"
        doomed.kill()
        sums = [total for worker in others for total in worker.answer()]
        total = int(store.get(f"n{round_}"))
        assert len(set(sums)) == 600 <= total <= 900
        for worker in others:
            worker.kill()


# Compaction -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def compacts_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_format, "COMPACT_FROM", 200)


def head(store: FileStore) -> record_format.Head:
    return store._shared._head


@pytest.mark.usefixtures("compacts_soon")
def test_a_file_stays_as_small_as_its_data(path: Path) -> None:
    store, other = FileStore(path), FileStore(path)
    store.multi_set(["a", "b"], ["x" * 100, ""])
    store.queue_push("q", "one")
    sizes = []
    for number in range(500):
        assert store.add("n", 1) == number + 1
        sizes.append(path.stat().st_size)
    assert max(sizes) < 2500
    assert head(store).generation > 20
    for reader in (other, FileStore(path)):
        assert (reader.get("n"), reader.get("a"), reader.get("b")) == (b"500", b"x" * 100, b"")
        assert (reader.num_keys(), reader.queue_pop("q")) == (3, b"one")
        reader.queue_push("q", "one")


@pytest.mark.usefixtures("compacts_soon")
def test_who_looks_often_reads_nothing_twice(path: Path) -> None:
    store, other = FileStore(path), FileStore(path)
    for number in range(500):
        store.add("n", 1)
        assert other.get("n") == str(number + 1).encode()
    assert head(store).generation > 20
    assert other._shared.reloads == 1


def compact(store: FileStore, *operations: Operation) -> None:
    """Makes changes and compacts, before anybody can look."""
    with store._shared.opened(SOON_S, write=True):
        store._shared.write(*operations)
        assert store._shared._file is not None
        store._shared._compact(store._shared._file, store._shared._head)


def test_what_came_and_went_before_a_compaction_is_seen_by_who_waits(path: Path) -> None:
    store, other = FileStore(path), FileStore(path)
    sleeper = WaitingThread()
    with store._shared.opened(SOON_S) as data:
        assert not data.wait(sleeper, [b"key"])
    other.set("key", "v")
    compact(other, Operation(Verb.DELETE, b"key"))
    assert not sleeper.awake.is_set()
    assert store.num_keys() == 0
    assert sleeper.awake.is_set()
    assert store._shared.reloads == 1


def test_who_was_asleep_for_two_compactions_begins_again(
    path: Path, wait_counter: WaitCounter, threads: Threads
) -> None:
    store, other = FileStore(path, timeout=SOON), FileStore(path)
    waiting: list[Future[Any]] = [
        threads.start(store.get, "key"),
        threads.start(store.barrier, "b", 2),
        threads.start(store.queue_pop, "q"),
    ]
    wait_counter.expect(3)
    with other._shared.opened(SOON_S, write=True):
        file = other._shared._file
        assert file is not None
        other._shared.write(
            Operation(Verb.PUT, b"key", b"v"), Operation(Verb.ARRIVE, b"b", b"2"), Operation(Verb.PUSH, b"q", b"entry")
        )
        for _ in range(2):
            other._shared._compact(file, other._shared._head)
    assert [result(future) for future in waiting] == [b"v", None, b"entry"]
    assert store._shared.reloads == 2


def test_the_end_of_the_old_log_that_was_overwritten_is_not_read(path: Path) -> None:
    store, other = FileStore(path), FileStore(path)
    store.multi_set(["keep", "pad"], ["k", "x" * 500])
    compact(store, Operation(Verb.DELETE, b"pad"))
    store.set("key", "1")
    assert other.get("key") == b"1"
    store.set("key", "2")
    compact(store, Operation(Verb.PUT, b"key", b"3"))
    assert head(store).start == record_format.LOG_START
    store.set("pad", "y" * 2000)
    assert (other.get("key"), other.get("pad")) == (b"3", b"y" * 2000)
    assert other._shared.reloads == 2


def test_a_log_that_cannot_be_compacted_grows(path: Path, monkeypatch: pytest.MonkeyPatch, compacts_soon: None) -> None:
    store = FileStore(path)

    def full(*_: object) -> bytes:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(record_format, "snapshot", lambda *_: b"x" * 10)
        patched.setattr(LockedFile, "write_log", fails_for(b"x" * 10, full))
        for number in range(100):
            assert store.add("n", 1) == number + 1
    assert head(store).generation == 0
    store.set("pad", "x" * 10_000)
    assert head(store).generation == 1
    assert FileStore(path).get("n") == b"100"


def fails_for(content: bytes, fail: Callable[[], object]) -> Callable[..., None]:
    write_log = LockedFile.write_log

    def write(self: LockedFile, head: record_format.Head, place: int, written: bytes) -> None:
        if written == content:
            fail()
        write_log(self, head, place, written)

    return write


def test_threads_and_processes_agree_while_the_log_is_compacted(
    path: Path, start_workers: StartWorkers, compacts_soon: None
) -> None:
    store, workers = FileStore(path, timeout=SOON), start_workers(3)
    for worker in workers:
        worker.order("add_often", "n", 200)
    threads = [threading.Thread(target=lambda: [store.add("n", 1) for _ in range(200)]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON_S)
    for worker in workers:
        worker.answer()
    assert (store.get("n"), FileStore(path).get("n")) == (b"1000", b"1000")
    assert head(store).generation > 5


class CompactedHistories(FileHistories):
    """The same histories, with a compaction every few steps."""

    def open(self) -> list[Store]:
        self.compact_from, record_format.COMPACT_FROM = record_format.COMPACT_FROM, 60
        return super().open()

    def teardown(self) -> None:
        super().teardown()
        record_format.COMPACT_FROM = self.compact_from


TestCompactedHistories = CompactedHistories.TestCase
TestCompactedHistories.settings = settings(max_examples=50, stateful_step_count=40)
