"""Real commands in real processes; whatever a test started is ended with it."""

from collections.abc import Iterator

import pytest

from tests.support.cli_processes import Process, Started, start_cli, start_node


@pytest.fixture
def started() -> Iterator[Started]:
    """Where a test puts the processes that it starts."""
    processes = Started()
    yield processes
    processes.end()


@pytest.fixture
def server(started: Started) -> Process:
    """A server on a free port."""
    return started.add(start_cli("serve", "--bind", "127.0.0.1:0"))


@pytest.fixture
def endpoint(server: Process) -> str:
    """Where it listens."""
    return server.expect(r"listening on (\S+)")[1]


@pytest.fixture
def node(started: Started, endpoint: str) -> Process:
    """A node of run `llama` that is alone in its world."""
    alone = started.add(start_node(endpoint, "llama", "node1", "1"))
    alone.expect('"placed"')
    return alone
