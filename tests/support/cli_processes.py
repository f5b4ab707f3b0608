"""Processes that a test starts, and waits for by what they print.

Commands are forked from a process that has imported what they need, but for those on a terminal or in an environment of their
own: those, and `tests/cli/test_help.py`, start as a user's do.
"""

import json
import os
import pty
import queue
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import IO, Any

from rallypoint.cli.exit_codes import ExitCode
from tests.support.forked_processes import ForkedProcess

LIMIT_S = 30.0
"""How long anything is waited for; all of it takes a fraction of a second on a machine that is not busy."""
REFUSALS = (ExitCode.USAGE, ExitCode.UNREACHABLE, ExitCode.UNKNOWN_RUN, ExitCode.REFUSED, ExitCode.CLOSED)
CLI, NODE, CODE = FORKED = ("rallypoint.cli", "tests.support.cli_node", "-c")
"""What is given instead of an interpreter and a module."""
_CONTROLS = re.compile(r"\x1b\[[?0-9;]*[A-Za-z]|\r")
"""What moves a cursor and gives colours, as rich does on a terminal."""


class Process:
    """A running process, with its standard output and its errors line by line; on a terminal, if wanted."""

    def __init__(self, *command: str, terminal: bool = False, **environment: str) -> None:
        self.popen: ForkedProcess | subprocess.Popen[str]
        self._output: IO[str]
        if command[0] in FORKED:
            self.popen = ForkedProcess(*command)
            self._output = self.popen.stdout
        else:
            ours, theirs = pty.openpty() if terminal else os.pipe()
            screen = {"TERM": "xterm", "COLUMNS": "150", "LINES": "50"} if terminal else {}
            self.popen = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=theirs,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                env={**os.environ, **screen, **environment},
            )
            os.close(theirs)
            self._output = os.fdopen(ours, encoding="utf-8")
        self.said: list[str] = []
        self._lines = {name: queue.SimpleQueue[str | None]() for name in ("stdout", "stderr")}
        self._threads = [
            threading.Thread(target=self._read, args=(pipe, self._lines[name]), daemon=True)
            for name, pipe in (("stdout", self._output), ("stderr", self.popen.stderr))
        ]
        for thread in self._threads:
            thread.start()

    def expect(self, pattern: str, stream: str = "stdout") -> re.Match[str]:
        """The next line that matches; what comes before it is passed over."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                line = self._lines[stream].get(timeout=max(deadline - time.monotonic(), 0))
            except queue.Empty:
                line = None
            assert line is not None, f"{pattern!r} never came; there was:\n" + "".join(self.said)
            if match := re.search(pattern, _CONTROLS.sub("", line)):
                return match

    def order(self, words: str) -> None:
        """A line on its standard input."""
        assert self.popen.stdin is not None
        print(words, file=self.popen.stdin, flush=True)

    def ends(self) -> int:
        """Its exit code."""
        return self.popen.wait(LIMIT_S)

    def end(self) -> None:
        self.popen.kill()
        self.popen.wait()
        for thread in self._threads:
            thread.join()
        for pipe in (self.popen.stdin, self._output, self.popen.stderr):
            assert pipe is not None
            pipe.close()

    def _read(self, pipe: IO[str], lines: "queue.SimpleQueue[str | None]") -> None:
        with suppress(OSError):  # how Linux says that a terminal has nobody left at its other side
            for line in pipe:
                self.said.append(line)
                lines.put(line)
        lines.put(None)


class Started:
    """What a test has started."""

    def __init__(self) -> None:
        self._processes: list[Process] = []

    def add(self, process: Process) -> Process:
        self._processes.append(process)
        return process

    def end(self) -> None:
        for process in self._processes:
            process.end()


def start_cli(*arguments: str, terminal: bool = False, **environment: str) -> Process:
    if terminal or environment or arguments[0] == "demo":
        return Process(sys.executable, "-m", "rallypoint", *arguments, terminal=terminal, **environment)
    return Process(CLI, *arguments)


def start_node(*arguments: str) -> Process:
    return Process(NODE, *arguments)


def cli(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command that ends by itself."""
    if not environment:
        process = ForkedProcess(CLI, *arguments)
        output, errors = process.communicate(LIMIT_S)
        return subprocess.CompletedProcess(arguments, process.wait(), output, errors)
    return subprocess.run(
        [sys.executable, "-m", "rallypoint", *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )


def refused(*arguments: str, code: ExitCode | None = None) -> str:
    """The one sentence with which a command refuses, after its name; nothing else is printed, and the code is as given."""
    done = cli(*arguments)
    assert done.returncode in REFUSALS if code is None else done.returncode == code, done
    assert done.stdout == "", done
    assert done.stderr.startswith(f"rallypoint {arguments[0]}: "), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr.removeprefix(f"rallypoint {arguments[0]}: ").rstrip("\n")


def answer(*arguments: str) -> str:
    """What a command prints that succeeds."""
    done = cli(*arguments)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def answer_json(*arguments: str) -> Any:
    return json.loads(answer(*arguments, "--json"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def http_server() -> Iterator[str]:
    """A web server that has nothing; where it listens."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Silent) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class _Silent(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, *arguments: object) -> None:
        pass
