"""What a launcher shows on a terminal, and where there is none."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rallypoint.launcher.output import OutputRouter
from rallypoint.launcher.status import wrapped
from tests.launcher.conftest import Launch
from tests.support.node_processes import free_port
from tests.support.waiting import PATIENCE_S, until

SETTINGS = "last_call_timeout=0.2,heartbeat_timeout=5,join_timeout=60"


class Terminal:
    """A launcher on a terminal of its own, with what it shows."""

    def __init__(self, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rallypoint", "run", *arguments],
            stdin=theirs, stdout=theirs, stderr=theirs, env={**environment, "TERM": "xterm"}, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        self.shown = ""

    def expect(self, pattern: str) -> None:
        """Wait until something is shown."""
        deadline = time.monotonic() + PATIENCE_S
        while not re.search(pattern, self.shown):
            assert time.monotonic() < deadline, f"{pattern} was not shown: {self.shown}"
            assert self._read(1.0), f"it ended, and {pattern} was not shown: {self.shown}"

    def end(self) -> int:
        """Its exit code, when all is shown."""
        while self._read(PATIENCE_S):
            pass
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)

    def _read(self, timeout_s: float) -> bool:
        if not select.select([self._ours], [], [], timeout_s)[0]:
            return True
        try:
            self.shown += os.read(self._ours, 65536).decode()
        except OSError:  # nobody has the other end any more
            return False
        return True


@contextmanager
def terminal(*arguments: str) -> Iterator[Terminal]:
    shown = Terminal(*arguments)
    try:
        yield shown
    finally:
        shown.close()


def test_it_shows_who_is_here_and_who_is_missing_until_all_have_come(launch: Launch) -> None:
    meeting = ("--nnodes", "2", "--rdzv", f"127.0.0.1:{free_port()}", "--rdzv-conf")
    program = ("--", "sh", "-c", "echo worker $RANK")
    with terminal(*meeting, f"{SETTINGS},node_name=first", *program) as first:
        first.expect(r"\(first\);\s+1 more must\s+come")
        launch(*meeting, f"{SETTINGS},node_name=second", *program)
        first.expect(r"\x1b\[J")
        assert first.end() == 0
        said = first.shown.rpartition("\x1b[J")[2].replace("\r\n", "\n")
    assert re.search(r"round 1: this node is \d of 2, with 1 of 2 workers: \w+, \w+\n", said), said
    assert re.search(r"\x1b\[\d\dm\[\d\] \x1b\[0mworker \d\n", said), "ranks are in colour"
    assert "waiting" not in said


def test_a_line_of_a_worker_does_not_meet_what_is_shown_below_it() -> None:
    """A worker of the last round may still write while the launcher waits for the next."""
    screen = io.BytesIO()
    output = OutputRouter(screen, screen, is_live=True)
    output.status("waiting\n  for b")
    until_written(screen, b"waiting")
    output.say("one")
    until_written(screen, b"one")
    output.status("")
    until_written(screen, b"one\nwaiting\n  for b\r\x1b[1A\x1b[J")
    output.close()
    assert screen.getvalue() == b"waiting\n  for b\r\x1b[1A\x1b[Jone\nwaiting\n  for b\r\x1b[1A\x1b[J"


def until_written(screen: io.BytesIO, text: bytes) -> None:
    until(lambda: text in screen.getvalue())


def test_without_a_terminal_there_are_plain_lines(launch: Launch) -> None:
    conf = "join_timeout=3,last_call_timeout=0.2,node_name=first"
    launcher = launch("--nnodes", "2", "--rdzv", f"127.0.0.1:{free_port()}", "--rdzv-conf", conf, "--", "true")
    _, err = launcher.communicate(timeout=PATIENCE_S)
    assert re.search(
        r"^rallypoint: run 'run': waiting for \d s, at most \d s more: 1 of 2 nodes is here", err, re.MULTILINE
    )
    assert "\x1b" not in err


def test_output_that_goes_to_a_file_has_no_colours_although_messages_go_to_a_terminal() -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "rallypoint", "run", "--nproc-per-node", "2", "--", "sh", "-c", "echo $RANK"]
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=theirs, env={**environment, "TERM": "xterm"}, timeout=60, check=True
    )
    os.close(theirs)
    os.close(ours)
    assert sorted(done.stdout.splitlines()) == [b"[0] 0", b"[1] 1"]


def test_a_text_is_cut_into_lines_that_fit() -> None:
    lines = wrapped("rallypoint: " + "word " * 400, 60).splitlines()
    assert len(lines) == 6
    assert max(map(len, lines)) < 60
    assert lines[-1].endswith(" …")
