"""A program that waits says what for (rule 11): on stderr, live on a terminal, to its log; and not with `quiet`."""

from __future__ import annotations

import io
import json
import logging
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rallypoint.client.wait_reports import (
    REPORT_AFTER_S,
    LineReporter,
    LiveReporter,
    LogReporter,
    Reporter,
    WaitReport,
    reporter_for_program,
)
from tests.support.node_processes import FAST, ROOT, ControlledProcess, Processes, Server
from tests.support.waiting import until

HERE = {**FAST, "is_host": False, "node_name": "a"}


class Program(ControlledProcess):
    """A program whose main thread waits."""

    def __init__(self, processes: Processes, do: str, server: Server, nodes: str | int, **options: Any) -> None:
        given = {"endpoint": server.endpoint, "run": "run", "nodes": str(nodes), **HERE, **options}
        super().__init__("tests.faults.waiting_program", json.dumps({"do": do, "with": given}))
        processes.actors.append(self)

    def reports(self) -> list[str]:
        """What it has said about its waits, with the numbers of seconds masked."""
        return [_masked(line) for line in self.errors if line.startswith("rallypoint: ")]

    def says(self, *lines: str) -> None:
        """Wait until it has said so many lines: these."""
        until(lambda: len(self.reports()) >= len(lines), f"it says {lines}; {self.account()}")
        assert self.reports() == list(lines)


def _masked(line: str) -> str:
    return re.sub(r"\d+(\.\d+)? s\b", "# s", line.rstrip("\n"))


def test_it_says_what_is_missing_and_what_has_changed(processes: Processes) -> None:
    server = processes.server()
    program = Program(processes, "join", server, 3)
    first = (
        "rallypoint: run 'run': waiting for # s, at most # s more: 1 of at least 3 nodes are here (a); 2 more must come"
    )
    program.says(first)
    said = re.search(r"waiting for (\d+) s", "".join(program.errors))
    assert said is not None
    assert int(said[1]) >= REPORT_AFTER_S, "a short wait is nobody's business"
    processes.node("b").join(server.endpoint, 3)
    program.says(first, first.replace("1 of", "2 of").replace("(a); 2", "(a, b); 1"))


def test_a_wait_of_less_than_two_seconds_says_nothing(processes: Processes) -> None:
    """The last call makes it wait for a second and a half; on a machine that makes it longer it is tried again."""
    server = processes.server()

    def is_short() -> bool:
        program = Program(processes, "join_for_a_while", server, "1:2", last_call_timeout=1.5)
        took_s = program.expect("placed")["took_s"]
        program.kill()
        if took_s >= REPORT_AFTER_S:
            return False
        assert took_s >= 1.5, "it waited"
        assert program.reports() == []
        return True

    until(is_short, "a join takes less than two seconds")


def test_a_number_that_counts_down_is_no_news(processes: Processes) -> None:
    server = processes.server()
    program = Program(processes, "wait_for_change", server, "1:2", last_call_timeout=5.0)
    program.expect("placed")
    program.says(
        "rallypoint: run 'run': waiting for # s, at most # s more: 1 of at most 2 nodes are here (a); "
        "the last call ends in # s"
    )


def test_the_error_gives_the_same_reason(processes: Processes) -> None:
    program = Program(processes, "join", processes.server(), 2, join_timeout=3.5)
    program.process.wait(30)
    until(lambda: "RendezvousTimeoutError" in "".join(program.errors), "it says why it ends")
    (report,) = program.reports()
    assert program.errors[-1].rstrip().endswith(report.partition("more: ")[2])


def test_quiet_says_nothing(processes: Processes) -> None:
    program = Program(processes, "join", processes.server(), 2, join_timeout=3.5, quiet=True)
    program.process.wait(30)
    until(lambda: "RendezvousTimeoutError" in "".join(program.errors), "it says why it ends")
    assert program.reports() == []


def test_quiet_holds_for_the_wait_for_the_next_world(processes: Processes) -> None:
    server = processes.server()
    other = processes.node("b")
    other.join(server.endpoint, 2)
    program = Program(processes, "join_again", server, 2, join_timeout=3.5, quiet=True)
    other.placed()
    other.kill()
    program.process.wait(30)
    until(lambda: "RendezvousTimeoutError" in "".join(program.errors), "it says why it ends")
    assert program.heard("placed"), "it was in a world, and waited for the next one"
    assert program.reports() == []


def test_quiet_holds_for_a_process_that_stays_for_the_others(processes: Processes) -> None:
    server = processes.server()
    other = processes.node("b")
    other.join(server.endpoint, 2, rank=1)
    program = Program(processes, "finish", server, 2, rank=0, close_timeout=3.5, quiet=True)
    other.placed()
    program.expect("waits")
    assert program.process.wait(30) == 0, "it stays until its time is up"
    program.kill()  # all that it said is read then
    assert program.reports() == []


@pytest.mark.parametrize(
    ("root", "own", "wanted"),
    [
        (logging.INFO, None, LogReporter),
        (logging.WARNING, None, LineReporter),
        (None, logging.INFO, LogReporter),
        (None, logging.WARNING, LineReporter),
        (None, None, LineReporter),
    ],
)
def test_a_log_counts_where_it_takes_what_is_said(
    root: int | None, own: int | None, wanted: type[Reporter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that logs warnings alone would say nothing of its waits: it has them on stderr."""
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    for logger, level in ((logging.getLogger(), root), (logging.getLogger("rallypoint"), own)):
        handler: logging.Handler = logging.NullHandler() if level is None else logging.StreamHandler(io.StringIO())
        handler.setLevel(level or logging.NOTSET)
        monkeypatch.setattr(logger, "handlers", [handler])
        monkeypatch.setattr(logger, "level", logging.DEBUG)
    logging.getLogger("rallypoint").manager._clear_cache()  # type: ignore[attr-defined]  # levels are remembered there
    assert type(reporter_for_program()) is wanted


def test_a_program_that_logs_has_it_in_its_log(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv("LOG_FILE", str(log))
    program = Program(processes, "join_and_log", processes.server(), 2)
    wanted = "rallypoint run 'run': waiting: 1 of at least 2 nodes are here (a); 1 more must come\n"
    until(lambda: log.exists() and wanted in log.read_text(), "it is in the log")
    assert program.errors == []


def test_a_wait_for_the_next_world_is_one_too(processes: Processes) -> None:
    server = processes.server()
    program = Program(processes, "join_again", server, 2)
    other = processes.node("b")
    other.join(server.endpoint, 2)
    other.placed()
    other.kill()
    until(lambda: any("1 must be replaced" in line for line in program.reports()), "it says whom it waits for")


def test_a_process_that_stays_for_the_others_says_so(processes: Processes) -> None:
    server = processes.server()
    program = Program(processes, "finish", server, 2, rank=0)
    other = processes.node("b")
    other.join(server.endpoint, 2, rank=1)
    other.placed()
    wanted = (
        "rallypoint: run 'run': waiting for # s: this node serves the store of the round, and stays until the other node "
        "has finished, at most # s more"
    )
    until(lambda: wanted in program.reports(), f"it says so; {program.account()}")
    other.order("finish")
    assert program.process.wait(30) == 0


def test_a_spare_says_so_and_when_it_is_promoted(processes: Processes) -> None:
    server = processes.server()
    member = processes.node("b")
    member.join(server.endpoint, 1)
    member.placed()
    program = Program(processes, "wait_for_change", server, 1)
    spare = "rallypoint: run 'run': waiting for # s: round 1 runs with 1 of at most 1 nodes: standing by as a spare"
    program.says(spare)
    member.kill()
    program.expect("placed")
    program.says(spare, "rallypoint: run 'run': this spare was promoted: it has rank 0 of 1 in round 2")


@contextmanager
def _on_a_terminal(server: Server, do: str, nodes: int) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """The program with a terminal for its stderr; and what came there."""
    here, there = pty.openpty()
    given = {"endpoint": server.endpoint, "run": "run", "nodes": str(nodes), **HERE}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.waiting_program", json.dumps({"do": do, "with": given})],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]), "TERM": "xterm"},
        stdout=subprocess.PIPE,
        stderr=there,
        text=True,
    )
    os.close(there)
    shown: list[str] = []

    def read() -> None:
        try:
            while data := os.read(here, 4096):
                shown.append(data.decode())
        except OSError:
            pass  # the other end is closed

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield process, shown
    finally:
        process.kill()
        process.wait()
        reader.join()
        os.close(here)
        assert process.stdout is not None
        process.stdout.close()


def test_on_a_terminal_one_line_is_written_over_and_erased(processes: Processes) -> None:
    server = processes.server()
    with _on_a_terminal(server, "join_for_a_while", 2) as (process, shown):
        until(lambda: "".join(shown).count("\x1b[K") >= 2, "the line is written over")
        processes.node("b").join(server.endpoint, 2)
        assert process.stdout is not None
        assert "placed" in process.stdout.readline()
        until(lambda: "".join(shown).endswith("\r\x1b[K"), "it is erased in the end")
        lines = "".join(shown).split("\x1b[K")[:-2]
        assert all(re.fullmatch(r"\rrallypoint: run 'run': waiting for \d+ s, [^\n\r]{,60}", line) for line in lines), (
            lines
        )


def test_on_a_terminal_an_interrupted_wait_erases_its_line(processes: Processes) -> None:
    with _on_a_terminal(processes.server(), "join", 2) as (process, shown):
        until(lambda: "\x1b[K" in "".join(shown), "the line is there")
        process.send_signal(signal.SIGINT)
        process.wait(30)
        until(lambda: "KeyboardInterrupt" in "".join(shown), "it has ended")
        assert "\r\x1b[KTraceback" in "".join(shown)


@pytest.mark.parametrize("kind", [LineReporter, LiveReporter])
def test_a_name_cannot_move_the_cursor(kind: type[LineReporter]) -> None:
    stream = io.StringIO()
    kind(stream).wait(WaitReport("run", "here (\x1b[2Jb\r\n)", 2.0), is_news=True)
    assert "here (?[2Jb??)" in stream.getvalue()


def test_a_line_fits_its_terminal() -> None:
    stream = io.StringIO()
    LiveReporter(stream).wait(WaitReport("run", "節点" * 100, 2.0), is_news=True)
    line = stream.getvalue().removeprefix("\r").removesuffix("…\x1b[K")
    assert 70 < len(line) + line.count("節") + line.count("点") < 80
