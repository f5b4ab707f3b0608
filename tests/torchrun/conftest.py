"""A job for each test, on each backend that runs under torchrun."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.torchrun.backends import BACKENDS
from tests.torchrun.job import Backend, Job


@pytest.fixture(
    params=[name if name == "rallypoint" else pytest.param(name, marks=pytest.mark.soak) for name in BACKENDS]
)
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """A server that was started, by the name of the backend."""
    server = BACKENDS[request.param]()
    try:
        server.start()
        yield server
    finally:
        server.end()


@pytest.fixture
def job(backend: Backend, tmp_path: Path) -> Iterator[Job]:
    made = Job(backend, tmp_path)
    try:
        yield made
    finally:
        made.end()
