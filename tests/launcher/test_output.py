"""What workers write, through real pipes."""

from __future__ import annotations

import io
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from rallypoint.launcher import output
from rallypoint.launcher.output import OutputRouter, Stream


class Screen(io.BytesIO):
    """A terminal that can be stopped, and whose text can be read after it was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = threading.Event()
        self.goes_on.set()

    def write(self, data: object) -> int:
        self.goes_on.wait(30)
        return super().write(data)  # type: ignore[arg-type]


def router(**more: Any) -> tuple[OutputRouter, Screen, Screen]:
    out, err = Screen(), Screen()
    return OutputRouter(out, err, **more), out, err


def test_lines_are_shown_with_their_prefix_and_never_torn() -> None:
    routed, out, _ = router()
    first, first_pipe = routed.open(Stream(0, is_error=False, prefix="[0] "))
    second, second_pipe = routed.open(Stream(1, is_error=False, prefix="[1] "))
    for piece in (b"he", b"llo\nwo", b"rld\nend"):
        os.write(first, piece)
        os.write(second, b"between\n")
    os.close(first)
    os.close(second)
    assert routed.drain([first_pipe, second_pipe], 10)
    routed.close()
    lines = out.getvalue().decode().splitlines()
    assert [line for line in lines if line.startswith("[0] ")] == ["[0] hello", "[0] world", "[0] end"]
    assert lines.count("[1] between") == 3
    assert first_pipe.tail() == ["hello", "world", "end"]


def test_each_stream_goes_where_it_belongs(tmp_path: Path) -> None:
    routed, out, err = router(coloured=(False, True))
    shown, shown_pipe = routed.open(Stream(0, is_error=True, prefix="[0] "))
    kept, kept_pipe = routed.open(Stream(1, is_error=False, shown=False, path=tmp_path / "log"))
    os.write(shown, b"oops\n")
    os.write(kept, b"a lot\nof text")
    os.close(shown)
    os.close(kept)
    assert routed.drain([shown_pipe, kept_pipe], 10)
    routed.close()
    assert (out.getvalue(), err.getvalue()) == (b"", b"\033[36m[0] \033[0moops\n")
    assert (tmp_path / "log").read_bytes() == b"a lot\nof text"


def test_the_tail_has_the_last_lines_only() -> None:
    routed, _, _ = router()
    write, pipe = routed.open(Stream(0, is_error=True))
    os.write(write, b"".join(b"%d\n" % n for n in range(200)))
    os.close(write)
    assert routed.drain([pipe], 10)
    routed.close()
    assert pipe.tail() == [str(n) for n in range(150, 200)]


def test_a_terminal_that_stands_still_stalls_no_worker_and_what_is_left_out_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(output, "BACKLOG", 1000)
    routed, out, _ = router()
    out.goes_on.clear()
    write, pipe = routed.open(Stream(0, is_error=False, path=tmp_path / "log"))
    for _ in range(2000):
        os.write(write, b"x" * 99 + b"\n")
    os.close(write)
    assert routed.drain([pipe], 10)
    out.goes_on.set()
    routed.close()
    shown = out.getvalue().decode()
    assert "lines were not shown: the terminal was too slow" in shown
    assert (tmp_path / "log").stat().st_size == 200_000


def test_what_was_written_before_the_end_is_shown_though_a_child_keeps_the_pipe_open() -> None:
    routed, out, _ = router()
    write, pipe = routed.open(Stream(0, is_error=False))
    os.write(write, b"last message")
    assert not routed.drain([pipe], 0.05)
    routed.close()
    assert out.getvalue() == b"last message\n"
    os.close(write)


def test_a_line_without_an_end_is_shown_in_pieces() -> None:
    routed, out, _ = router()
    write, pipe = routed.open(Stream(0, is_error=False))
    for _ in range(5):
        os.write(write, b"." * 30_000)
    os.close(write)
    assert routed.drain([pipe], 10)
    routed.close()
    assert out.getvalue().replace(b"\n", b"") == b"." * 150_000
    assert out.getvalue().count(b"\n") > 1


def test_a_full_disk_costs_the_log_and_nothing_else() -> None:
    routed, out, err = router()
    write, pipe = routed.open(Stream(0, is_error=False, path=Path("/dev/full")))
    os.write(write, b"one\n")
    os.write(write, b"two\n")
    os.close(write)
    assert routed.drain([pipe], 10)
    routed.close()
    assert out.getvalue() == b"one\ntwo\n"
    assert b"/dev/full is not written any more: No space left on device" in err.getvalue()
