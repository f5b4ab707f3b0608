"""A job for each test, on each backend that runs under torchrun."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import harness as faults
from tests.torchrun.stage import Backend, Job


class StandaloneServer:
    """A server as a process of its own."""

    name = "rallypoint"

    def __init__(self) -> None:
        self._stage = faults.Stage()
        self._server: faults.Server | None = None
        self.endpoint = ""

    def start(self) -> None:
        port = self._server.port if self._server is not None else 0
        # A server that knows nothing of the run listens for a while before it seals anything (rule 14).
        self._server = self._stage.server(port=port, hold_s=4.0 if port else 0.0)
        self.endpoint = self._server.endpoint

    def kill(self) -> None:
        assert self._server is not None
        self._server.kill()

    def end(self) -> None:
        self._stage.end()


@pytest.fixture(params=["rallypoint"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """An authority that was started, by the name of the backend."""
    assert request.param == "rallypoint"
    server = StandaloneServer()
    try:
        server.start()
        yield server
    finally:
        server.end()


@pytest.fixture
def cores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where tests run beside one another, jobs follow each other: each of them needs all the cores."""
    with (tmp_path_factory.getbasetemp().parent / "torchrun.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture
def job(cores: None, backend: Backend, tmp_path: Path) -> Iterator[Job]:
    made = Job(backend, tmp_path)
    try:
        yield made
    finally:
        made.end()
