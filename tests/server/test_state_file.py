"""The state file: what is confirmed is read again, and a file that is not whole is said and never overwritten."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import sys
import zlib
from contextlib import closing
from pathlib import Path

import pytest

from rallypoint.errors import RendezvousStateError
from rallypoint.server import state_file, state_format
from rallypoint.server.state_file import StateFile
from tests.server.state_files import (
    HEADER,
    LONG,
    compact,
    failing_with,
    on_a_disk_of_its_own,
    opened,
    output_of,
    read,
    recorded_calls,
    refusal,
    refusal_of,
    written,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state"


# What is written is read ----------------------------------------------------------------------------------------------


def test_the_newest_record_of_each_run_is_read_and_a_run_that_ended_is_forgotten(path: Path) -> None:
    written(path, {"one": b'{"a":1}', "two": b"2", "ü\n": b"null"}, {"one": b'{"a":3}'}, {"two": None})
    assert read(path) == {"one": b'{"a":3}', "ü\n": b"null"}
    written(path, {"two": b"4"})
    assert read(path) == {"one": b'{"a":3}', "ü\n": b"null", "two": b"4"}


def test_the_first_line_names_the_format_and_each_other_line_has_a_checksum(path: Path) -> None:
    lines = written(path, {"one": b'{"a":1}'}, {"one": None}).splitlines(keepends=True)
    texts = [b'{"run":"one","record":{"a":1}}', b'{"run":"one"}']
    assert lines == [HEADER, *(b"%08x %b\n" % (zlib.crc32(text), text) for text in texts)]


def test_an_empty_file_is_a_new_file(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.touch()
    assert read(path) == {}
    assert not caplog.messages
    assert written(path, {"one": b"1"}).startswith(HEADER)


def test_a_file_is_synced_before_a_write_returns_and_so_is_the_folder_that_names_it(path: Path) -> None:
    with opened(path) as state, pytest.MonkeyPatch.context() as patch:
        calls = recorded_calls(patch, "write", "fdatasync", "fsync", "rename", "ftruncate")
        state.write({"one": b"1"})
        assert calls == [("write", state._file), ("fdatasync", state._file), ("fsync", state._folder)]
        calls.clear()
        state.write({"one": b"2"})
        assert calls == [("write", state._file), ("fdatasync", state._file)]
        calls.clear()
        patch.setattr(state_file, "_SPARE_BYTES", 0)
        state.write({"one": None})
        assert [name for name, _ in calls] == ["write", "fdatasync", "write", "fsync", "rename", "fsync"]
        assert calls[-3] == ("fsync", state._file)
        assert calls[-1] == ("fsync", state._folder)


def test_only_its_owner_can_read_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_file, "_SPARE_BYTES", 0)
    before = os.umask(0)
    try:
        with opened(path) as state:
            assert path.stat().st_mode & 0o777 == 0o600
            compact(state)
            assert path.stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)


def test_no_descriptor_stays_open(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_file, "_SPARE_BYTES", 0)
    with opened(path) as state:
        refusal(path)
        compact(state)
        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", failing_with(errno.EIO))
            for number in range(9):
                state.write({"one": b"%d" % number})
    state.close()
    open_files = [os.path.realpath(descriptor) for descriptor in Path("/proc/self/fd").iterdir()]
    assert not [file for file in open_files if file.startswith(str(path.parent))]


# What cannot be opened is said ----------------------------------------------------------------------------------------


def test_a_file_belongs_to_one_server_at_a_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_file, "_SPARE_BYTES", 0)
    with opened(path) as state:
        assert "is in use by another server" in refusal(path)
        compact(state)
        assert "is in use by another server" in refusal(path)
    assert read(path) == {"one": b"8"}


def test_a_file_that_is_compacted_between_opening_and_locking_is_in_use(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(path, {"one": b"1"})

    def replace_then_lock(file: int, how: int) -> None:
        path.with_name("new").write_bytes(HEADER)
        path.with_name("new").replace(path)

    monkeypatch.setattr(fcntl, "flock", replace_then_lock)
    with pytest.raises(RendezvousStateError, match="is in use by another server"):
        StateFile(path)
    monkeypatch.setattr(fcntl, "flock", lambda file, how: path.unlink())
    with pytest.raises(RendezvousStateError, match="is in use by another server"):
        StateFile(path)


def test_a_file_system_without_locks_is_said(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", failing_with(errno.ENOLCK))
    with pytest.raises(
        RendezvousStateError, match=r"cannot be locked: No locks available; give a path on a local disk"
    ):
        StateFile(path)


def test_a_symbolic_link_is_not_followed(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    path.symlink_to(target)
    assert "it is a symbolic link" in refusal(path)
    assert not target.exists()
    written(target, {"one": b"1"})
    assert "it is a symbolic link" in refusal(path)


def test_what_is_no_regular_file_is_said(path: Path, tmp_path: Path) -> None:
    assert "it is a directory" in refusal(tmp_path)
    assert "it is a FIFO or a device" in refusal(Path("/dev/null"))
    os.mkfifo(path)
    assert "it is a FIFO or a device" in refusal(path)
    path.unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        assert "it is a socket or a device" in refusal(path)


def test_a_folder_that_is_missing_or_none_is_said(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "state"
    reason = f"its folder {path.parent} does not exist; create it, or give another path"
    assert refusal(path) == f"the state file {path} cannot be opened: {reason}"
    path.parent.touch()
    assert f"its folder {path.parent}: Not a directory; give another path" in refusal(path)


def test_a_path_that_the_system_refuses_is_said(tmp_path: Path) -> None:
    assert refusal(tmp_path / ("x" * 300)).endswith("cannot be opened: File name too long; give another path")


def test_a_disk_that_cannot_be_read_is_said(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_format, "read", failing_with(errno.EIO))
    assert refusal(path) == f"the state file {path} cannot be read: Input/output error"


REFUSED = """
import os, sys
from pathlib import Path
from rallypoint.errors import RendezvousStateError
from rallypoint.server.state_file import StateFile
os.chdir(sys.argv[1])  # the folders above it are closed to others
os.setuid(65534)
for name in ("state", "new"):
    try:
        StateFile(Path(name))
    except RendezvousStateError as exc:
        print(exc)
"""


@pytest.mark.root
def test_a_user_without_permission_is_told_so(path: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    written(path, {"one": b"1"})
    path.chmod(0o444)
    said = output_of([sys.executable, "-c", REFUSED, str(tmp_path)])
    assert len(said) == 2
    assert all("this user may not read and write it, or may not create it" in sentence for sentence in said)


@pytest.mark.root
def test_a_read_only_disk_is_said(tmp_path: Path) -> None:
    said = on_a_disk_of_its_own(tmp_path, "ro,mode=777", REFUSED)
    assert len(said) == 2
    assert all("its file system is read-only; give a path on another one" in sentence for sentence in said)


# What is not a whole state file ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("nuls", [b"", b"\0" * 5000])
def test_a_last_line_cut_off_at_any_byte_is_dropped_and_nothing_else(
    path: Path, nuls: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    whole = written(path, {"one": b"1", "two": b"2"})
    last = written(path, {"one": b"3"})[len(whole) :]
    for cut in range(0 if nuls else 1, len(last)):
        path.write_bytes(whole + last[:cut] + nuls)
        caplog.clear()
        assert read(path) == {"one": b"1", "two": b"2"}
        assert path.read_bytes() == whole
        (said,) = caplog.messages
        assert said == (
            f"the last {cut + len(nuls)} bytes of the state file {path} are cut off: line 4 is incomplete: a crash "
            f"interrupted the last write.  Nothing is lost that was confirmed"
        )


@pytest.mark.parametrize("nuls", [b"", b"\0" * 5000])
def test_a_first_line_cut_off_at_any_byte_makes_a_new_file(
    path: Path, nuls: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    for cut in range(0 if nuls else 1, len(HEADER)):
        path.write_bytes(HEADER[:cut] + nuls)
        caplog.clear()
        assert read(path) == {}
        assert path.read_bytes() == b""
        (said,) = caplog.messages
        assert said.startswith(f"the last {cut + len(nuls)} bytes of the state file {path} are cut off: ")
    assert written(path, {"one": b"1"}).startswith(HEADER)


def test_last_lines_with_a_wrong_checksum_are_cut_off_and_the_warning_says_what_may_be_lost(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = written(path, {"one": b"1"})
    last = written(path, {"one": b"2"})[len(whole) :]
    path.write_bytes(whole + 2 * last.replace(b"2}", b"3}") + b"half")
    assert read(path) == {"one": b"1"}
    assert path.read_bytes() == whole
    (said,) = caplog.messages
    assert f"the last {2 * len(last) + 4} bytes of the state file {path} are cut off" in said
    assert "the checksum is wrong from line 3 on" in said
    assert "the newest changes of some runs may be lost: the nodes tell the server what they know (rule 14)" in said


def test_a_last_line_that_lost_its_newline_is_cut_off(path: Path) -> None:
    whole = written(path, {"one": b"1"})
    path.write_bytes(written(path, {"one": b"2"})[:-1] + b"\x0b")
    assert read(path) == {"one": b"1"}
    assert path.read_bytes() == whole


def test_a_damaged_end_that_cannot_be_cut_at_once_is_cut_before_the_first_write(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = written(path, {"one": b"1"})
    path.write_bytes(whole + b"half")
    with closing(StateFile(path)) as state:
        with monkeypatch.context() as patch:
            patch.setattr(os, "ftruncate", failing_with(errno.EIO))
            assert state.read() == {"one": b"1"}
        state.write({"two": b"2"})
    assert read(path) == {"one": b"1", "two": b"2"}


def test_a_byte_changed_in_any_line_but_the_last_is_said_and_nothing_is_overwritten(path: Path) -> None:
    content = written(path, {"one": b"1", "two": b"2"}, {"one": b"3"}, {"two": None})
    end = content.rindex(b"\n", 0, content.rindex(b"\n", 0, -1))  # a newline lost takes the next line with it
    for position in range(len(HEADER), end):
        damaged = bytearray(content)
        damaged[position] ^= 1
        number = content.count(b"\n", 0, position) + 1
        said = refusal_of(path, bytes(damaged))
        assert said.startswith(f"line {number} of the state file {path} is damaged: expected a line with the right ")


def test_damage_is_said_with_what_to_do(path: Path) -> None:
    content = written(path, {"one": b"1"}, {"one": b"2"})
    assert refusal_of(path, content.replace(b":1}", b":7}")) == (
        f"line 2 of the state file {path} is damaged: expected a line with the right checksum, such as line 3, found one "
        f"with a wrong checksum; restore a copy of the file, or move it away and start with a new one: the nodes then "
        f"tell the server what they know (rule 14)"
    )


@pytest.mark.parametrize("text", [b"[]", b'{"run":1}', b'{"run":"\xff"}', b"{", b""])
def test_a_line_that_no_crash_leaves_is_said(path: Path, text: bytes) -> None:
    said = refusal_of(path, HEADER + b"%08x %b\n" % (zlib.crc32(text), text))
    assert said.startswith(f"line 2 of the state file {path} is damaged: ")
    assert "found something else under a right checksum" in said


@pytest.mark.parametrize(
    "precious",
    [
        b"precious",
        b"# settings\nx = 1\n",
        b"\n",
        b"rallypoint\n",
        b"rallypoint state file, format 0\n",
        b"rallypoint state file, format two\n",
        HEADER[:-1] + b"\0\0\n",
        HEADER[:5] + b"\0" * 200 + b"precious",
        b"\0" * 200_000,
        b"\xff" * 300,
    ],
)
def test_a_file_that_is_not_ours_is_refused_and_stays_as_it_is(path: Path, precious: bytes) -> None:
    said = refusal_of(path, precious)
    assert said.startswith(f"line 1 of the state file {path}: expected 'rallypoint state file, format 2', found '")
    assert said.endswith("give the path of a new file")


def test_a_file_of_version_0_1_is_named_as_such(path: Path) -> None:
    for content in (b'{"v":1,"body":{"run_id":"one"}}\n', b'{"v":1,"body":{"run_id":"one",' + b" " * 1000):
        assert "was written by version 0.1 of Rallypoint" in refusal_of(path, content)


def test_a_newer_format_is_named_as_such(path: Path) -> None:
    said = refusal_of(path, b"rallypoint state file, format 12\nwhatever\n")
    assert "has format 12, and this version of Rallypoint reads format 2; start the version that wrote it" in said


# Compacting -----------------------------------------------------------------------------------------------------------


def test_a_file_is_compacted_while_it_is_written(path: Path) -> None:
    with opened(path) as state, pytest.MonkeyPatch.context() as patch:
        calls = recorded_calls(patch, "rename")
        line_bytes = 760
        for number in range(1000):
            state.write({f"run-{number % 3}": LONG[:-4] + b'%03d"' % number})
            assert path.stat().st_size <= 65536 + (4 * 3 + 1) * line_bytes
        assert len(calls) < 1000 * line_bytes / 65536
    assert {run: record[-4:] for run, record in read(path).items()} == {
        "run-0": b'999"',
        "run-1": b'997"',
        "run-2": b'998"',
    }


def test_a_file_whose_lines_all_count_is_not_rewritten(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(path) as state:
        calls = recorded_calls(monkeypatch, "rename")
        for number in range(400):
            state.write({f"run-{number}": LONG})
        for number in range(2000):
            state.write({f"short-{number}": b"0"})
    assert path.stat().st_size > 300_000
    assert not calls


def test_a_run_that_ended_takes_no_space_after_compaction(path: Path) -> None:
    with opened(path) as state:
        state.write({"here": b"1"})
        for number in range(100):
            state.write({f"ended-{number}": LONG})
            state.write({f"ended-{number}": None})
    assert b"ended-0" not in path.read_bytes()
    assert path.stat().st_size < 20_000
    assert read(path) == {"here": b"1"}


def test_what_a_crashed_server_left_stops_nothing_and_no_link_is_followed(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_file, "_SPARE_BYTES", 0)
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    left = tmp_path / ".state.rallypoint-new"
    with opened(path) as state:
        for leave in (lambda: left.write_bytes(b"left"), lambda: left.symlink_to(precious)):
            leave()
            compact(state)
            assert sorted(tmp_path.iterdir()) == [precious, path]
    assert precious.read_bytes() == b"precious"
    assert read(path) == {"one": b"8"}


def test_a_compaction_that_fails_is_tried_again_later_and_writes_go_on(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(state_file, "_SPARE_BYTES", 1000)
    obstacle = path.with_name(".state.rallypoint-new")
    obstacle.mkdir()
    with opened(path) as state:
        for number in range(100):
            state.write({"one": LONG, "two": b"%d" % number})
        assert path.stat().st_size > 70_000
        assert 1 < len(caplog.messages) < 20
        assert f"the state file {path} cannot be compacted: File exists; it goes on growing" in caplog.text
        obstacle.rmdir()
        for number in range(100):
            state.write({"one": LONG, "two": b"%d" % number})
        assert path.stat().st_size < 10_000
    assert read(path) == {"one": LONG, "two": b"99"}


def test_a_folder_that_could_not_be_synced_after_compaction_is_synced_by_the_next_write(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(path) as state:
        state.write({"one": LONG})
        monkeypatch.setattr(state_file, "_SPARE_BYTES", 0)
        with monkeypatch.context() as patch:
            folder, real_fsync = state._folder, os.fsync
            patch.setattr(os, "fsync", lambda file: failing_with(errno.EIO)() if file == folder else real_fsync(file))
            state.write({"one": b"1"})
            assert len(path.read_bytes().splitlines()) == 2
            with pytest.raises(OSError, match="Input/output"):
                state.write({"one": b"2"})
        calls = recorded_calls(monkeypatch, "fsync")
        state.write({})
        assert ("fsync", state._folder) in calls
    assert read(path) == {"one": b"2"}


def test_a_file_that_took_the_place_of_ours_is_not_overwritten(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(state_file, "_SPARE_BYTES", 0)
    moved = tmp_path / "moved"
    with opened(path) as state:
        path.rename(moved)
        path.write_bytes(b"precious")
        for number in range(9):
            state.write({"one": b"%d" % number})
    assert "cannot be compacted: somebody moved, removed or replaced it" in caplog.text
    assert sorted(tmp_path.iterdir()) == [moved, path]
    assert path.read_bytes() == b"precious"
    assert read(moved) == {"one": b"8"}
