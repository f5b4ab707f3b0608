"""A store in a file: who opens it, who leaves it, what becomes of it, and what is said when it cannot be used."""

from __future__ import annotations

import errno
import gc
import os
import signal
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rallypoint.stores import FileStore, StoreError, StoreLimits, StoreTimeoutError
from rallypoint.stores.data import KeyValues, Operation
from rallypoint.stores.file import append_log, locks, record_format
from rallypoint.stores.file import store as file
from rallypoint.stores.local import LocalData
from tests.stores.file_processes import Worker
from tests.support.store_kinds import BRIEFLY, SOON, SOON_S


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def worker() -> Iterator[Worker]:
    with Worker() as worker:
        yield worker


# As torch's -----------------------------------------------------------------------------------------------------------


def test_it_is_made_as_torchs_is(path: Path) -> None:
    store = FileStore(str(path), 1)
    assert (store.path, store.timeout) == (str(path), timedelta(seconds=300))
    assert repr(store) == f"FileStore({str(path)!r}, 1)"
    assert path.stat().st_mode & 0o777 == 0o600


def test_an_empty_file_will_do(path: Path) -> None:
    path.touch()
    with FileStore(path) as store:
        store.set("key", "v")
        assert FileStore(path).get("key") == b"v"


def test_who_comes_after_all_have_left_finds_the_keys(path: Path) -> None:
    with FileStore(path) as store:
        store.set("key", "v")
    with FileStore(path) as store:
        assert store.get("key") == b"v"


def test_a_store_that_is_forgotten_is_left(path: Path) -> None:
    store = FileStore(path, 1)
    store.set("key", "v")
    del store
    gc.collect()
    assert not path.exists()


def test_the_last_of_all_removes_the_file(path: Path) -> None:
    first = FileStore(path, 2)
    first.set("key", "v")
    first.close()
    assert path.exists(), "the second has not been here yet"
    second = FileStore(path, 2)
    assert second.get("key") == b"v"
    third = FileStore(path, 2)
    second.close()
    assert path.exists(), "the third is still here"
    third.close()
    assert not path.exists()


def test_a_clone_is_nobody_who_was_awaited(path: Path) -> None:
    store = FileStore(path, 2)
    clone = store.clone()
    store.set("key", "v")
    clone.close()
    store.close()
    assert path.exists()
    assert FileStore(path, 2).get("key") == b"v"


def test_a_clone_outlives_its_origin(path: Path) -> None:
    store = FileStore(path, 1)
    clone = store.clone()
    store.set("key", "v")
    store.close()
    assert clone.get("key") == b"v"
    clone.close()
    assert not path.exists()


def test_a_closed_store_says_so_also_to_who_waits_on_it(path: Path) -> None:
    store = FileStore(path)
    told: list[str] = []

    def wait() -> None:
        try:
            store.get("never")
        except StoreError as exc:
            told.append(str(exc))

    waiting = threading.Thread(target=wait)
    waiting.start()
    store.close()
    store.close()
    waiting.join(SOON_S)
    assert told == [f"cannot get 'never' in the store file {path}: it was closed here"]
    with pytest.raises(StoreError, match="closed here"):
        store.set("key", "v")


def test_a_path_means_the_same_file_from_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "target").touch()
    (tmp_path / "link").symlink_to("target")
    monkeypatch.chdir(tmp_path)
    store = FileStore("link", 1)
    monkeypatch.chdir("/")
    store.set("key", "v")
    assert FileStore(tmp_path / "target").get("key") == b"v"
    assert store.clone().get("key") == b"v"
    store.close()
    assert not (tmp_path / "target").exists()


def test_a_link_to_nothing_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(StoreError, match="it is a symbolic link"):
        FileStore(tmp_path / "link", 1)
    assert not (tmp_path / "target").exists()


# Killed runs ----------------------------------------------------------------------------------------------------------


def test_the_run_after_one_that_was_killed_starts_with_an_empty_store(path: Path) -> None:
    killed = [Worker(path, 2), Worker(path, 2)]
    killed[0].do("set", "key", "old")
    killed[0].kill()
    with FileStore(path, 2) as store:
        assert store.get("key") == b"old", "one of them is still alive"
    killed[1].kill()
    with FileStore(path, 2) as store:
        assert store.num_keys() == 0
        store.set("key", "new")
        with Worker(path, 2) as other:
            assert other.do("get", "key") == "new"


def test_a_process_that_ends_well_is_not_taken_for_killed(path: Path) -> None:
    worker = Worker(path)
    worker.do("set", "key", "v")
    assert worker.end() == 0
    assert FileStore(path).get("key") == b"v"


def test_who_was_taken_for_dead_is_told(path: Path) -> None:
    store = FileStore(path)
    store.set("key", "old")
    opened = store._shared._file
    assert opened is not None
    locks.unlock(opened._file, locks.PRESENCE)  # as when a file server forgets its clients
    with FileStore(path) as other:
        assert other.num_keys() == 0
        for ask in (lambda: store.get("key"), lambda: store.set("key", "old"), store.clone):
            with pytest.raises(StoreError, match="another run has started it anew"):
                ask()
        store.close()
        other.set("key", "new")
        assert other.get("key") == b"new"


def test_a_file_that_is_removed_or_replaced_is_noticed(path: Path) -> None:
    store = FileStore(path, 1)
    store.set("key", "v")
    path.unlink()
    for ask in (lambda: store.get("key"), lambda: store.set("key", "v"), store.clone):
        with pytest.raises(StoreError, match="removed or replaced while in use"):
            ask()
    with FileStore(path) as other:
        assert other.num_keys() == 0
        with pytest.raises(StoreError, match="removed or replaced while in use"):
            store.get("key")
        with pytest.raises(StoreError, match="another run"):
            store.clone()
        store.close()
        assert path.exists(), "it was not the other's to remove"


def test_an_opener_does_not_hold_on_to_a_file_that_its_last_user_removes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = FileStore(path, 1)
    lock = locks.lock

    def lock_late(file: int, kind: int, lock_timeout_s: float) -> None:
        monkeypatch.setattr(locks, "lock", lock)
        last.close()
        assert not path.exists()
        lock(file, kind, lock_timeout_s)

    monkeypatch.setattr(locks, "lock", lock_late)
    with FileStore(path) as store:
        store.set("key", "v")
        assert path.exists()
        assert FileStore(path).get("key") == b"v"


# Forks and threads ----------------------------------------------------------------------------------------------------


def test_a_forked_child_goes_on_with_the_store_of_its_parent(path: Path, worker: Worker) -> None:
    worker.do("open", str(path), 1)
    worker.do("set", "key", "v")
    assert worker.do("in_a_child", "get", "key") == "v"
    assert worker.do("in_a_child", "add", "n", 1) == 1
    assert worker.do("add", "n", 1) == 2
    assert path.exists(), "the end of a child is not that of its parent"
    with FileStore(path) as store:
        assert store.get("n") == b"2"


def test_a_child_that_uses_nothing_leaves_its_parents_locks_alone(path: Path, worker: Worker) -> None:
    worker.do("open", str(path), 1)
    worker.do("set", "key", "v")
    assert worker.do("in_a_child", "forget") is None
    with FileStore(path) as store:
        assert store.get("key") == b"v"
    assert path.exists()
    assert worker.do("get", "key") == "v"


def test_a_waiting_thread_stands_in_nobodys_way(path: Path) -> None:
    store = FileStore(path, timeout=SOON)
    got: list[bytes] = []
    waiting = threading.Thread(target=lambda: got.append(store.get("key")))
    waiting.start()
    for number in range(20):
        store.set("other", str(number))
    store.set("key", "v")
    waiting.join(SOON_S)
    assert got == [b"v"]


def test_an_interrupted_change_is_read_back_from_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore(path)
    store.append("key", "a")

    apply = LocalData.apply

    def interrupted(data: LocalData, operation: Operation) -> None:
        apply(data, operation)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(KeyValues, "apply", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.append("key", "b")
    assert store.get("key") == b"ab"
    store.append("key", "c")
    assert (store.get("key"), FileStore(path).get("key")) == (b"abc", b"abc")


def test_a_store_may_be_closed_in_the_middle_of_its_own_work(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_log, "_LEAVE_TIMEOUT_S", 0.0)
    store = FileStore(path)
    with store._shared.opened(SOON_S, write=True):  # where a signal's handler finds it
        store.close()
    with pytest.raises(StoreError, match="closed here"):
        store.get("key")


# What is said when it does not work -----------------------------------------------------------------------------------


def refusal(path: Path | str, match: str) -> str:
    with pytest.raises(StoreError, match=match) as caught:
        FileStore(path)
    text = str(caught.value)
    assert text.startswith(f"cannot open the store file {path}: ")
    return text


def test_a_path_that_will_not_do_is_refused_in_words(tmp_path: Path) -> None:
    refusal(tmp_path, "it is a folder; give the path of a file")
    refusal(tmp_path / "none" / "store", "its folder does not exist; make it first")
    (tmp_path / "file").touch()
    refusal(tmp_path / "file" / "store", "a part of its path is no folder")
    refusal("/dev/null", "it is no regular file")
    with pytest.raises(TypeError):
        FileStore(tmp_path / "store", "2")  # type: ignore[arg-type]


def test_what_is_no_store_is_not_touched(path: Path) -> None:
    for content in (b"dear diary", b"\0" * 1000, b"\x09\0\0\0refcount/\x01\0\0\x001"):
        path.write_bytes(content)
        refusal(path, "no store file of Rallypoint's")
        assert path.read_bytes() == content
    path.write_bytes(record_format.MAGIC.replace(b"1", b"2") + b"\0" * 300)
    refusal(path, "another version of Rallypoint")


@pytest.mark.root
def test_a_user_without_permission_is_told_so(tmp_path: Path, worker: Worker) -> None:
    tmp_path.chmod(0o755)
    for folder in tmp_path.parents[:2]:
        folder.chmod(0o755)
    with FileStore(tmp_path / "store"):
        worker.do("run_as", 65534)
        for path in (tmp_path / "store", tmp_path / "new"):
            with pytest.raises(StoreError, match="this user may not read and write it, or may not create it"):
                worker.do("open", str(path))


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.EROFS, "its file system is read-only; give a path on another one"),
        (errno.EDQUOT, "the quota of the disk is used up"),
        (errno.ESTALE, "removed or replaced"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_what_the_system_says_is_put_into_words(
    path: Path, code: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "open", fail)
    refusal(path, words)


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL])
def test_a_file_system_without_locks_is_refused(path: Path, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(locks, "_set_lock", unknown)
    refusal(path, rf"its file system knows no locks \({os.strerror(code)}\).*use a TCP store")


def test_a_file_system_whose_locks_mean_nothing_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_set_lock", lambda *_: None)
    refusal(path, r"grants one lock to two at a time.*use a TCP store")
    assert path.read_bytes() == b""


def test_a_lock_that_is_kept_for_ever_is_a_timeout_with_a_hint(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "_LOCK_TIMEOUT_S", 0.05)
    store = FileStore(path, timeout=BRIEFLY)
    with Worker(path) as worker:
        worker.do("stop_in_the_middle")
        for ask in (lambda: store.set("key", "v"), lambda: store.get("key"), lambda: FileStore(path, timeout=BRIEFLY)):
            with pytest.raises(StoreTimeoutError, match=r"lock for 0\.0\d+ s; see whether one of them was stopped"):
                ask()
        monkeypatch.undo()
        worker.popen.send_signal(signal.SIGCONT)
        assert worker.answer() is None
        store.set_timeout(SOON)
        store.set("key", "v")
        assert worker.do("get", "key") == "v"


def test_keys_and_values_have_the_limits_that_a_server_has(path: Path) -> None:
    store = FileStore(path, limits=StoreLimits(key_bytes=11, value_bytes=20, keys=2, unread_bytes=60))
    asks: list[tuple[str, Any]] = [
        ("a key of 11 bytes is over the limit of 10", lambda: store.get("k" * 11)),
        ("a key of 11 bytes is over the limit of 10", lambda: store.clone().queue_pop("k" * 11)),
        ("a key of 11 bytes", lambda: store.barrier("k" * 11, 1)),
        ("a value of 21 bytes is over the limit of 20", lambda: store.set("key", b"v" * 21)),
        ("a value of 21 bytes", lambda: store.compare_set("key", "", b"v" * 21)),
        ("a value of 21 bytes", lambda: store.queue_push("key", b"v" * 21)),
        ("3 keys at once", lambda: store.multi_set(["a", "b", "c"], ["1", "2", "3"])),
        ("longer than 30 bytes", lambda: store.append("log", b"v" * 11)),
    ]
    store.append("log", b"v" * 20)
    for match, ask in asks:
        with pytest.raises(StoreError, match=match):
            ask()
    assert (store.get("log"), store.list_keys()) == (b"v" * 20, ["log"])
