"""Whatever fails, fills up or crashes: what the state file confirmed stays, and no line is appended to half a line."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rallypoint.server import state_file
from rallypoint.server.state_file import StateFile
from tests.server.state_files import (
    HEADER,
    LONG,
    Changes,
    failing_with,
    on_a_disk_of_its_own,
    opened,
    output_of,
    read,
    recorded_calls,
    written,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state"


# A write that fails costs nothing but durability ----------------------------------------------------------------------


@contextmanager
def failing_writes(budget_bytes: int, truncating_fails: bool = False) -> Iterator[None]:
    """The disk takes so many bytes and no more."""
    real_write = os.write
    left = budget_bytes

    def write(file: int, data: bytes) -> int:
        nonlocal left
        if not left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = real_write(file, data[:left])
        left -= taken
        return taken

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", write)
        if truncating_fails:
            patch.setattr(os, "ftruncate", failing_with(errno.EIO))
        yield


@pytest.mark.parametrize("truncating_fails", [False, True])
def test_a_write_that_failed_at_any_byte_leaves_no_half_line_and_the_next_one_repeats_it(
    path: Path, truncating_fails: bool
) -> None:
    whole = written(path, {"one": b"1", "two": b"2"})
    for budget in range(50):
        path.write_bytes(whole)
        with opened(path) as state:
            with failing_writes(budget, truncating_fails), pytest.raises(OSError, match="No space left"):
                state.write({"one": b"3", "two": None})
            if not truncating_fails:
                assert path.read_bytes() == whole
            state.write({"three": b"4"})
        assert read(path) == {"one": b"3", "three": b"4"}


def test_a_new_file_survives_that_its_first_write_fails(path: Path) -> None:
    with opened(path) as state:
        with failing_writes(10), pytest.raises(OSError, match="No space left"):
            state.write({"one": b"1"})
        state.write({})
    assert read(path) == {"one": b"1"}


def test_as_long_as_half_a_line_cannot_be_removed_nothing_is_appended_to_it(path: Path) -> None:
    whole = written(path, {"one": b"1"})
    with opened(path) as state:
        with failing_writes(10, truncating_fails=True), pytest.raises(OSError, match="No space left"):
            state.write({"one": b"2"})
        with failing_writes(1000, truncating_fails=True), pytest.raises(OSError, match="Input/output"):
            state.write({"one": b"3"})
        assert len(path.read_bytes()) == len(whole) + 10
        state.write({"two": b"4"})
    assert read(path) == {"one": b"3", "two": b"4"}


@pytest.mark.parametrize("syncing", ["fdatasync", "fsync"])
def test_what_could_not_be_synced_is_written_anew(path: Path, syncing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(path) as state:
        with monkeypatch.context() as patch:
            patch.setattr(os, syncing, failing_with(errno.EIO))
            with pytest.raises(OSError, match="Input/output"):
                state.write({"one": b"1"})
        assert path.read_bytes() == b""
        calls = recorded_calls(monkeypatch, "fdatasync", "fsync")
        state.write({"two": b"2"})
        assert calls == [("fdatasync", state._file), ("fsync", state._folder)]
    assert read(path) == {"one": b"1", "two": b"2"}


def test_a_run_that_ended_before_it_could_be_written_is_not_remembered(path: Path) -> None:
    with opened(path) as state:
        for number in range(20):
            with failing_writes(200, truncating_fails=True), pytest.raises(OSError, match=r"No space|Input"):
                state.write({f"run-{number}": LONG})
            with failing_writes(0, truncating_fails=True), pytest.raises(OSError, match=r"No space|Input"):
                state.write({f"run-{number}": None})
        state.write({})
    assert path.read_bytes() == HEADER


def test_a_run_that_cannot_be_written_stops_no_other(path: Path) -> None:
    with opened(path) as state:
        with pytest.raises(UnicodeEncodeError):
            state.write({"\ud800": b"1"})
        with pytest.raises(AssertionError, match="one line"):
            state.write({"one": b"[1,\n2]"})
        state.write({"two": b"2"})
    assert read(path) == {"two": b"2"}


# The disk is filled; then there is room again.  Lines of 700 bytes do not fit a page, so some write ends half-way.
FULL = """
import os, resource, sys
from pathlib import Path
from rallypoint.server.state_file import StateFile

folder, limit = Path(sys.argv[1]), sys.argv[2:]
path, ballast = folder / "state", folder / "ballast"
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
else:
    ballast.write_bytes(b"x" * 40_960)
state = StateFile(path)
state.read()
model, failures = {}, 0
while failures < 5:
    run, record = f"run-{len(model)}", b'"%b%d"' % (b"x" * 700, len(model))
    before = path.read_bytes()
    try:
        state.write({run: record, "run-0": record})
    except OSError as exc:
        failures += 1
        print(exc.strerror)
        assert path.read_bytes() == before
    model |= {run: record, "run-0": record}
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
else:
    ballast.unlink()
state.write({})
state.close()
state = StateFile(path)
assert state.read() == model
state.write({"run-0": None})
print(len(model) > 10)
"""


@pytest.mark.root
def test_a_full_disk_costs_nothing_once_there_is_room(tmp_path: Path) -> None:
    said = on_a_disk_of_its_own(tmp_path, "size=80k", FULL)
    assert said == 5 * ["No space left on device"] + ["True"]


def test_a_limit_on_the_size_of_files_costs_nothing_once_it_is_lifted(tmp_path: Path) -> None:
    said = output_of([sys.executable, "-c", FULL, str(tmp_path), "limit"])
    assert said == 5 * ["File too large"] + ["True"]


COMPACTED_ON_A_FULL_DISK = """
import logging, sys
from pathlib import Path
from rallypoint.server.state_file import StateFile

logging.basicConfig(stream=sys.stdout, format="%(message)s")
folder = Path(sys.argv[1])
path, ballast = folder / "state", folder / "ballast"
state = StateFile(path)
state.read()
record = b'"%b"' % (b"x" * 8_000)
state.write({"one": record})
ballast.write_bytes(b"x" * 4096 * 27)
for number in range(12):
    state.write({"one": record, "two": b"%d" % number})
assert path.stat().st_size > 100_000
assert sorted(folder.iterdir()) == [ballast, path]
ballast.unlink()
for number in range(6):
    state.write({"one": record, "two": b"%d" % number})
assert path.stat().st_size < 70_000
state.close()
assert StateFile(path).read() == {"one": record, "two": b"5"}
"""


@pytest.mark.root
def test_a_disk_too_full_for_compaction_still_takes_writes(tmp_path: Path) -> None:
    said = on_a_disk_of_its_own(tmp_path, "size=216k", COMPACTED_ON_A_FULL_DISK)
    assert said
    assert all("cannot be compacted: No space left on device" in sentence for sentence in said)


# Crashes --------------------------------------------------------------------------------------------------------------

# Each child ends at another call of a write that compacts the file.
CRASHING = """
import os, shutil, sys
from pathlib import Path
from rallypoint.server import state_file

def end_at(step):
    steps = iter(range(step))
    def counted(real):
        def call(*args, **keywords):
            if next(steps, None) is None:
                os._exit(3)
            return real(*args, **keywords)
        return call
    for name in ("open", "unlink", "write", "fsync", "fdatasync", "rename", "close", "stat"):
        setattr(os, name, counted(getattr(os, name)))

def crash_at(step, path):
    state = state_file.StateFile(path)
    state.read()
    state_file._SPARE_BYTES = 0
    end_at(step)
    state.write({"one": b"2"})
    os._exit(2)

whole = Path(sys.argv[1])
code, step = 3, 0
while code == 3:
    path = whole.with_name(f"crash-{step}")
    shutil.copy(whole, path)
    child = os.fork()
    if child == 0:
        try:
            crash_at(step, path)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    step += 1
assert code == 2
print(step)
"""


def test_a_crash_at_any_step_of_a_compaction_leaves_the_old_file_or_the_new_one(path: Path) -> None:
    written(path, *({"one": LONG, "two": None if number % 2 else b"0"} for number in range(8)), {"three": b"3"})
    (steps,) = map(int, output_of([sys.executable, "-c", CRASHING, str(path)]))
    assert steps > 8
    lengths = set()
    for step in range(steps):
        crashed = path.with_name(f"crash-{step}")
        lengths.add(len(crashed.read_bytes().splitlines()))
        one = LONG if step < 1 else b"2"  # the first step is the write itself
        assert read(crashed) == {"one": one, "three": b"3"}
        written(crashed, {"four": b"4"})
        assert read(crashed) == {"one": one, "three": b"3", "four": b"4"}
    assert lengths == {18, 19, 3}


WRITING = """
import sys
from pathlib import Path
from rallypoint.server import state_file

state_file._SPARE_BYTES = 300
state = state_file.StateFile(Path(sys.argv[1]))
number = max(map(int, state.read().values()), default=0)
while True:
    number += 1
    state.write({f"run-{number % 3}": b"%d" % number})
    print(number, flush=True)
"""


def test_whatever_a_killed_server_had_confirmed_is_there(path: Path) -> None:
    chance = random.Random(14)
    for _ in range(6):
        with subprocess.Popen([sys.executable, "-c", WRITING, str(path)], stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            said = "".join(child.stdout.readline() for _ in range(chance.randrange(1, 300)))
            child.kill()
            said += child.stdout.read()
        confirmed = int(said.split("\n")[-2])  # after the last newline is nothing, or a number that was cut off
        records = read(path)
        newest = max(map(int, records.values()))
        assert confirmed <= newest <= confirmed + 1
        assert records == {f"run-{number % 3}": b"%d" % number for number in range(max(newest - 2, 1), newest + 1)}


# Whatever happens in whatever order -----------------------------------------------------------------------------------

RUNS = st.sampled_from(["one", "two", "three", "", 'a "quoted"\n run'])
RECORDS = st.sampled_from([b"0", b"null", b'{"a":[1,2]}', b'"%b"' % (b"x" * 90)])
CHANGES = st.dictionaries(RUNS, st.none() | RECORDS, max_size=4)
ANYTHING: st.SearchStrategy[tuple[str, Changes, int, bool]] = st.one_of(
    st.tuples(st.just("write"), CHANGES, st.just(0), st.booleans()),
    st.tuples(st.just("fail"), CHANGES, st.integers(0, 400), st.booleans()),
    st.tuples(st.just("reopen"), st.just({}), st.just(0), st.booleans()),
)


class Model:
    """What must be in the file, and what may be there of writes that failed."""

    def __init__(self) -> None:
        self.certain: dict[str, bytes] = {}
        self.failed: list[Changes] = []

    def wrote(self, changes: Changes) -> None:
        for change in (*self.failed, changes):
            for run, record in change.items():
                self.certain.pop(run, None)
                if record is not None:
                    self.certain[run] = record
        self.failed = []

    def check(self, records: dict[str, bytes], exact: bool) -> None:
        """Compare with what was read; nothing of a failed write is there unless its remains could not be removed."""
        for run in records.keys() | self.certain.keys():
            allowed = [self.certain.get(run)]
            if not exact:
                allowed += [changes[run] for changes in self.failed if run in changes]
            assert records.get(run) in allowed
        self.certain, self.failed = dict(records), []


@settings(max_examples=150)
@given(happenings=st.lists(ANYTHING, max_size=30))
def test_whatever_fails_and_whenever_a_server_starts_again_the_file_is_right(
    happenings: list[tuple[str, Changes, int, bool]],
) -> None:
    model = Model()
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(state_file, "_SPARE_BYTES", 200)
        path = Path(folder) / "state"
        state = StateFile(path)
        state.read()
        exact = True
        for happening, changes, budget_bytes, truncating_fails in happenings:
            if happening == "reopen":
                state.close()
                state = StateFile(path)
                model.check(state.read(), exact)
                exact = True
            elif happening == "write":
                state.write(changes)
                model.wrote(changes)
                exact = True
            else:
                try:
                    with failing_writes(budget_bytes, truncating_fails):
                        state.write(changes)
                    model.wrote(changes)
                    exact = True
                except OSError:
                    model.failed.append(changes)
                    exact = exact and not truncating_fails
        state.close()
        model.check(read(path), exact)
