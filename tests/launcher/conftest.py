"""Launchers for the tests, as processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.support.waiting import PATIENCE_S

Launch = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def launch() -> Iterator[Launch]:
    """Starts a launcher; whatever is left of it is ended after the test."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "PET_", "RALLYPOINT_"))
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "rallypoint", "run", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**clean, "PYTHONFAULTHANDLER": "1", **environment},
            preexec_fn=heed_signals,  # noqa: PLW1509  # the test has no other thread
        )
        started.append(process)
        return process

    # A test that reads a line of a launcher waits until there is one: where there never is, this ends the wait.
    hung = threading.Timer(4 * PATIENCE_S, kill, (started,))
    hung.start()
    yield start
    hung.cancel()
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def kill(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.kill()


def heed_signals() -> None:
    """A shell may have had these ignored, as `nohup` and `&` do; a launcher heeds that."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
