"""Processes with torch, and servers of both kinds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.remote_stores import StoreProcess, store_process
from tests.support.store_kinds import start_server
from tests.support.store_threads import threads

__all__ = ["threads"]


@pytest.fixture
def host() -> StoreProcess:
    """Where servers of torch's live."""
    return store_process("host")


@pytest.fixture
def guest() -> StoreProcess:
    """Where clients of torch's live."""
    return store_process("guest")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """What is to be closed with the test."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def our_port(stack: ExitStack) -> int:
    """The port of a server of ours."""
    return start_server(stack).port


@pytest.fixture
def their_port(stack: ExitStack, host: StoreProcess) -> int:
    """The port of a server of torch's."""
    master = host.open_master()
    stack.callback(master.close)
    return master.port


@pytest.fixture(params=["ours", "torch's"])
def port(request: pytest.FixtureRequest) -> int:
    """The port of a server of either kind."""
    port: int = request.getfixturevalue("our_port" if request.param == "ours" else "their_port")
    return port
