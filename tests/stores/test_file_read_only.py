"""A reader of a store file sees what its users see, ours or torch's, and leaves no trace."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rallypoint.stores import FileStore, StoreError
from rallypoint.stores.file import locks
from rallypoint.stores.file.read_only import read_keys

ours: Callable[[str], Any] = FileStore


def torchs(path: str) -> Any:
    from torch.distributed import FileStore as TorchsFileStore

    return TorchsFileStore(path)


KEYS = st.sampled_from(["a", "a/b", "-", "-/a", "/", "refcount/", "cleanup/", "ä"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), KEYS, st.binary(min_size=1, max_size=300)),
        st.tuples(st.just("delete"), KEYS, st.just(b"")),
    ),
    max_size=20,
)


@pytest.mark.parametrize("opened", [ours, torchs], ids=["ours", "torch's"])
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_all_keys_are_seen_and_nothing_is_written(
    opened: Callable[[str], Any], tmp_path: Path, steps: list[tuple[str, str, bytes]]
) -> None:
    path = tmp_path / os.urandom(8).hex()
    store = opened(str(path))
    expected: dict[bytes, bytes] = {}
    for verb, key, value in steps:
        if verb == "set":
            store.set(key, value)
            expected[key.encode()] = value
        else:
            store.delete_key(key)
            expected.pop(key.encode(), None)
    before = path.read_bytes()
    assert read_keys(str(path), 5.0) == expected
    assert path.read_bytes() == before


def test_the_file_of_a_killed_run_is_not_started_anew(tmp_path: Path) -> None:
    path = tmp_path / "store"
    program = "import os, sys; from rallypoint.stores import FileStore; s = FileStore(sys.argv[1]); s.set('a', 'b'); os._exit(9)"
    assert subprocess.run([sys.executable, "-c", program, str(path)], check=False).returncode == 9
    for _ in range(2):
        assert read_keys(str(path), 5.0) == {b"a": b"b"}
    with FileStore(path) as store:
        assert store.list_keys() == [], "the next user of the store starts it anew"


def test_a_store_that_outgrew_its_log(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with FileStore(path) as store:
        for number in range(30):
            store.set(f"key{number % 3}", bytes([number]) * 100_000)
        assert path.stat().st_size < 3_000_000, "the log was compacted"
        found = read_keys(str(path), 5.0)
    assert found == {b"key%d" % number: bytes([27 + number]) * 100_000 for number in range(3)}


def test_half_an_entry_of_a_killed_writer_of_torchs_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = torchs(str(path))
    store.set("a", "b")
    whole = path.read_bytes()
    store.set("c", "d")
    more = path.read_bytes()
    copy = tmp_path / "copy"  # torch's own store would look for the rest, for minutes
    for size in range(len(whole), len(more)):
        copy.write_bytes(more[:size])
        assert read_keys(str(copy), 5.0) == {b"a": b"b"}


def test_a_file_that_anybody_may_only_read(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with FileStore(path) as store:
        store.set("a", "b")
        path.chmod(stat.S_IRUSR)
        assert read_keys(str(path), 5.0) == {b"a": b"b"}


def test_whoever_keeps_the_lock_is_not_waited_for_long(tmp_path: Path) -> None:
    words = "cannot be read: another process has been keeping its lock for 0.05 s; see whether one of them was stopped"
    path = tmp_path / "store"
    with FileStore(path), path.open("r+b") as other:
        locks.lock(other.fileno(), locks.EXCLUSIVE, 5.0)
        with pytest.raises(StoreError, match=words):
            read_keys(str(path), 0.05)
    path = tmp_path / "torchs"
    kept = torchs(str(path))
    with path.open("r+b") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(StoreError, match=words):
            read_keys(str(path), 0.05)
    del kept


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(StoreError, match="it is no regular file"):
        read_keys(str(path), 5.0)
