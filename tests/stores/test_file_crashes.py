"""Whatever happens to a writer, at whatever byte: what was there stays, and nothing torn is ever read."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from rallypoint.stores import FileStore, StoreError
from rallypoint.stores.data import Operation, Verb
from rallypoint.stores.file import locked_file, locks, record_format
from tests.stores.file_processes import Worker
from tests.support.store_kinds import SOON

Contents = tuple[dict[str, bytes], int]


def contents(store: FileStore) -> Contents:
    keys = sorted(store.list_keys())
    return dict(zip(keys, store.multi_get(keys), strict=True)), store.queue_len("q")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def worker() -> Iterator[Worker]:
    with Worker() as worker:
        yield worker


@pytest.fixture
def compacts_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_format, "COMPACT_FROM", 64)


@contextmanager
def in_use(path: Path) -> Iterator[None]:
    """Somebody has the file open, so that nobody takes its run for dead."""
    file = os.open(path, os.O_RDWR)
    assert locks.try_lock(file, locks.PRESENCE, locks.SHARED)
    yield
    os.close(file)


# Killed at every byte -------------------------------------------------------------------------------------------------

CHANGES: dict[str, tuple[list[object], Callable[[FileStore], object]]] = {
    "multi_set": (["multi_set", ["a", "key"], ["1", "2"]], lambda store: store.multi_set(["a", "key"], ["1", "2"])),
    "pop": (["queue_pop", "q"], lambda store: store.queue_pop("q")),
    "barrier": (["barrier", "b", 1], lambda store: store.barrier("b", 1)),
}
NEVER = 1 << 40


def fill(store: FileStore) -> None:
    store.multi_set(["key", "n", "more"], ["old", "4", "x" * 20])
    store.queue_push("q", "one")
    store.queue_push("q", "two")


@pytest.mark.parametrize(
    ("change", "compact_from"),
    [*((change, NEVER) for change in CHANGES), ("multi_set", 16)],
    ids=[*CHANGES, "multi_set and compact"],
)
def test_a_writer_killed_at_any_byte_leaves_all_or_nothing(
    path: Path, worker: Worker, change: str, compact_from: int
) -> None:
    order, make = CHANGES[change]
    written, ended, seen = 0, False, set[bool]()
    while not ended:
        store = FileStore(path, 0, timeout=SOON)
        fill(store)
        before = contents(store)
        ended = worker.do("perish", str(path), written, compact_from, *order)
        after = contents(store)
        with FileStore(path) as fresh:
            assert contents(fresh) == after
        seen.add(after != before)
        store.set("later", "v")
        with FileStore(path) as fresh:
            assert contents(fresh) == ({**after[0], "later": b"v"}, after[1])
        if after != before:
            store.delete_key("later")
            with FileStore(path.with_name("model"), 0) as model:
                fill(model)
                make(model)
                assert contents(model) == after == contents(store)
        store.close()
        assert not path.exists()
        written += 1
    assert seen == {False, True}
    assert written > 2 * record_format.SECOND_COPY - 2 * record_format.FIRST_COPY, "it was not killed at every byte"


@pytest.mark.parametrize("left", ["nothing", "a run that was killed", "a run that ended well"])
def test_an_opener_killed_at_any_byte_keeps_nobody_out(path: Path, worker: Worker, left: str) -> None:
    written, ended = 0, False
    while not ended:
        if left != "nothing":
            other = Worker(path)
            other.do("set", "key", "old")
            other.kill() if left == "a run that was killed" else other.end()
        ended = worker.do("perish", str(path), written, NEVER, "open", str(path))
        with FileStore(path, 0) as store:
            # A run that ended well may be gone on with; not so if the killed one had come to belong to it.
            assert contents(store)[0] in ({}, {"key": b"old"} if left == "a run that ended well" else {})
            store.set("key", "new")
            with FileStore(path) as second:
                assert second.get("key") == b"new"
        assert not path.exists()
        # Every byte of a new file; for the others, the few steps in which something may differ.
        written += 1 if left == "nothing" else 23


# Torn, cut, flipped ---------------------------------------------------------------------------------------------------


def watch_writes(make: Callable[[], object]) -> list[tuple[bytes, int]]:
    """All that is written to files meanwhile, and where."""
    writes, write_at = list[tuple[bytes, int]](), locked_file.write_at

    def watched(file: int, content: bytes, place: int) -> None:
        writes.append((content, place))
        write_at(file, content, place)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(locked_file, "write_at", watched)
        make()
    return writes


def states(file: bytes, writes: list[tuple[bytes, int]]) -> Iterator[bytes]:
    """What is in a file after each byte that is written to it."""
    state = bytearray(file)
    for content, place in writes:
        for byte in range(len(content)):
            state[place + byte : place + byte + 1] = content[byte : byte + 1]
            yield bytes(state)


@pytest.mark.usefixtures("compacts_soon")
@pytest.mark.parametrize("compacting", [False, True])
def test_every_prefix_of_every_write_reads_as_before_or_after(
    path: Path, monkeypatch: pytest.MonkeyPatch, compacting: bool
) -> None:
    if not compacting:
        monkeypatch.setattr(record_format, "COMPACT_FROM", NEVER)
    store = FileStore(path, timeout=SOON)
    fill(store)
    file, before = path.read_bytes(), contents(store)
    writes = watch_writes(lambda: store.set("key", "new" * 30))
    after = contents(store)
    assert len(writes) == (4 if compacting else 2)
    torn, found = path.with_name("torn"), list[bool]()
    for state in states(file, writes):
        torn.write_bytes(state)
        with in_use(torn), FileStore(torn) as reader:
            assert contents(reader) in (before, after)
            found.append(contents(reader) == after)
            reader.set("later", "v")
            with FileStore(torn) as second:
                assert contents(second)[0] == {**(after if found[-1] else before)[0], "later": b"v"}
    assert found == sorted(found)
    assert {*found} == {False, True}


def test_what_was_seen_after_one_writer_was_killed_is_not_lost_when_a_second_one_is(path: Path) -> None:
    store = FileStore(path, timeout=SOON)
    fill(store)
    file = path.read_bytes()
    writes = watch_writes(lambda: store.set("key", "new"))
    # The first was killed between the two copies of the head, so that what it wrote can be seen.
    half = [
        raw
        for raw in states(file, writes)
        if raw[record_format.SECOND_COPY :][:84] == file[record_format.SECOND_COPY :][:84]
    ]
    path.write_bytes(half[-1])
    with FileStore(path) as reader:
        assert reader.get("key") == b"new"

    def come_and_write() -> None:
        with FileStore(path) as second:
            second.set("later", "v")

    path.write_bytes(half[-1])
    writes = watch_writes(come_and_write)
    for state in states(half[-1], writes):
        path.write_bytes(state)
        with FileStore(path) as reader:
            assert reader.get("key") == b"new"


TAILS = {
    "one byte": b"\xff",
    "zeros": bytes(500),
    "noise": bytes(range(255, 0, -1)),
    "half a record": record_format.record([Operation(Verb.PUT, b"key", b"torn")], 0)[:-3],
}


@pytest.mark.parametrize("tail", TAILS)
def test_what_is_behind_the_end_is_not_seen_and_goes_with_the_next_write(path: Path, tail: str) -> None:
    store = FileStore(path)
    fill(store)
    before, size = contents(store), path.stat().st_size
    with path.open("ab") as file:
        file.write(TAILS[tail])
    assert contents(store) == before
    with FileStore(path) as fresh:
        assert contents(fresh) == before
    assert path.stat().st_size == size
    with path.open("ab") as file:
        file.write(TAILS[tail])
    store.set("key", "v")
    assert path.read_bytes().endswith(b"keyv")


def test_a_whole_record_that_was_not_committed_is_not_seen(path: Path) -> None:
    store = FileStore(path)
    fill(store)
    before = contents(store)
    record = record_format.record([Operation(Verb.PUT, b"key", b"torn")], record_format.seed(store._shared._head))
    with path.open("ab") as file:
        file.write(record)
    with FileStore(path) as fresh:
        assert contents(fresh) == contents(store) == before


def closed_file(path: Path) -> tuple[bytes, Contents]:
    with FileStore(path) as store:
        fill(store)
        before = contents(store)
    return path.read_bytes(), before


@pytest.mark.parametrize("used", [False, True])
def test_a_flipped_bit_is_harmless_or_an_error_but_never_another_value(path: Path, used: bool) -> None:
    whole, before = closed_file(path)
    refused = 0
    for place in range(len(whole)):
        for bit in (0, 3, 7):
            flipped = bytearray(whole)
            flipped[place] ^= 1 << bit
            path.write_bytes(flipped)
            with ExitStack() as stack:
                if used:
                    stack.enter_context(in_use(path))
                try:
                    store = stack.enter_context(FileStore(path))
                    assert contents(store) == before
                    store.set("key", "old")
                    assert contents(FileStore(path)) == before
                    assert place < record_format.LOG_START, "a record without a checksum"
                except StoreError as exc:
                    assert "damaged" in str(exc) or "Rallypoint" in str(exc)  # noqa: PT017  # it may be harmless
                    refused += 1
    assert refused == 3 * (len(whole) - record_format.LOG_START + len(record_format.MAGIC))


def test_damage_is_said_to_all_again_and_again(path: Path) -> None:
    store, other = FileStore(path), FileStore(path)
    store.set("first", "v")
    assert other.get("first") == b"v"
    store.set("second", "v")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"w")
    for _ in range(2):
        for ask in (lambda: other.get("first"), lambda: other.set("key", "v"), lambda: FileStore(path).get("first")):
            with pytest.raises(StoreError, match=r"the record at byte \d+ is damaged.*remove it"):
                ask()


@pytest.mark.parametrize("used", [False, True])
def test_a_file_that_was_cut_off_is_an_error(path: Path, used: bool) -> None:
    whole, before = closed_file(path)
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with ExitStack() as stack:
            if used:
                stack.enter_context(in_use(path))
            elif size < record_format.SECOND_COPY:
                # Nobody is there, and no more of it than of a file that was never used.
                with FileStore(path) as store:
                    assert store.num_keys() == 0
                continue
            with pytest.raises(StoreError, match=r"cut off at byte \d+, and \d+ were written|head is damaged"):
                contents(stack.enter_context(FileStore(path)))
    assert before == ({"key": b"old", "n": b"4", "more": b"x" * 20}, 2)


# Full disks -----------------------------------------------------------------------------------------------------------


def test_a_file_that_may_not_grow_says_so_and_keeps_what_it_has(path: Path, worker: Worker) -> None:
    store = FileStore(path)
    fill(store)
    before, size = contents(store), path.stat().st_size
    worker.do("open", str(path))
    worker.do("may_not_grow_beyond", size + 50)
    with pytest.raises(StoreError, match=r"cannot set 'key'.*may not grow any more.*what was in it is still there"):
        worker.do("set", "key", "x" * 100)
    assert path.stat().st_size == size
    assert contents(store) == before
    assert worker.do("get", "key") == "old"
    assert worker.do("add", "n", 1) == 5
    assert store.get("n") == b"5"


FULL = """
import sys
from rallypoint.stores import FileStore, StoreError
from rallypoint.stores.file import record_format
record_format.COMPACT_FROM = 1000
store = FileStore(sys.argv[1] + "/store")
store.set("first", "v")
wrote = 0
try:
    while wrote < 100:
        store.set(f"key {wrote}", "v" * 10_000)
        wrote += 1
except StoreError as exc:
    print(exc)
with FileStore(sys.argv[1] + "/store") as fresh:
    for reader in (store, fresh):
        assert reader.num_keys() == wrote + 1, (reader.num_keys(), wrote)
        assert reader.get("first") == b"v" and reader.get(f"key {wrote - 1}") == b"v" * 10_000
print(wrote > 5)
"""
READ_ONLY = """
import sys
from rallypoint.stores import FileStore, StoreError
try:
    FileStore(sys.argv[1] + "/store")
except StoreError as exc:
    print(exc)
"""


def on_a_disk_of_its_own(folder: Path, options: str, code: str) -> list[str]:
    mounted = f'mount -t tmpfs -o {options} none "$1" && exec {sys.executable} -c "$2" "$1"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mounted, "sh", str(folder), code],
        capture_output=True,
        text=True,
        check=False,
        timeout=SOON.total_seconds(),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.root
def test_a_full_disk_is_said_and_nothing_is_lost(tmp_path: Path) -> None:
    said, enough = on_a_disk_of_its_own(tmp_path, "size=256k", FULL)
    assert "its disk is full; nothing was changed, and what was in it is still there" in said
    assert enough == "True"


@pytest.mark.root
def test_a_read_only_disk_is_said(tmp_path: Path) -> None:
    (said,) = on_a_disk_of_its_own(tmp_path, "ro", READ_ONLY)
    assert said.endswith("its file system is read-only; give a path on another one")
