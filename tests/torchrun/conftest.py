"""A job for each test, on each backend that runs under torchrun."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.support import node_processes as faults
from tests.support.etcd_servers import Cluster, running
from tests.torchrun.agents import FAST
from tests.torchrun.job import Backend, Job


class RunState(Backend, Protocol):
    """One that a test makes."""

    def __init__(self) -> None: ...

    def end(self) -> None:
        """Nothing is left of it."""


class StandaloneServer:
    """A server as a process of its own."""

    name = "rallypoint"
    has_server = True

    def __init__(self) -> None:
        self.options = FAST
        self._stage = faults.Stage()
        self._server: faults.Server | None = None
        self.endpoint = self.address = ""

    def start(self) -> None:
        port = self._server.port if self._server is not None else 0
        # A server that knows nothing of the run listens for a while before it seals anything (rule 14).
        self._server = self._stage.server(port=port, hold_s=4.0 if port else 0.0)
        self.endpoint = self.address = self._server.endpoint

    def kill(self) -> None:
        assert self._server is not None
        self._server.kill()

    def end(self) -> None:
        self._stage.end()


class EtcdCluster:
    """Three members of etcd."""

    name = "etcd-v3"
    has_server = False
    version = "3.5"

    def __init__(self) -> None:
        self.options: dict[str, Any] = {
            **dict.fromkeys(FAST),
            "lease_ttl": 3,
            "last_call_timeout": 60,
            "join_timeout": 80,
        }
        self._stack = ExitStack()
        self.cluster: Cluster
        self.endpoint = self.address = ""

    def start(self) -> None:
        if self.endpoint:
            self.cluster.start()
            return
        self.cluster = self._stack.enter_context(running(self.version, 3, v2=False))
        self.endpoint = self.cluster.endpoints
        self.address = f"etcd://{self.endpoint}"

    def kill(self) -> None:
        self.cluster.kill()

    def end(self) -> None:
        self._stack.close()


class OldEtcdCluster(EtcdCluster):
    """Three members of etcd 3.4."""

    version = "3.4"


class C10dStore:
    """A c10d store as a process of its own; one of the agents serves the run."""

    name = "rallypoint"
    has_server = False

    def __init__(self) -> None:
        self.options = FAST
        self._store: faults.Actor | None = None
        self._port = 0
        self.endpoint = self.address = ""

    def start(self) -> None:
        self._store = faults.Actor("tests.support.store_server_program", "ours", str(self._port))
        self._port = int(self._store.expect("serving")["port"])
        self.endpoint = self.address = f"c10d://127.0.0.1:{self._port}"

    def kill(self) -> None:
        assert self._store is not None
        self._store.kill()

    def end(self) -> None:
        self.kill()


BACKENDS: dict[str, type[RunState]] = {
    "rallypoint": StandaloneServer,
    "c10d": C10dStore,
    "etcd-v3": EtcdCluster,
    "etcd-v3-3.4": OldEtcdCluster,
}


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
