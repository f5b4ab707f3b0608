"""What the nodes of a job under torchrun meet at: a server, a c10d store, members of etcd; each is started and killed by tests."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Protocol

from tests.support.etcd_servers import Cluster, running
from tests.support.node_processes import ControlledProcess, Processes, Server
from tests.torchrun.agents import FAST
from tests.torchrun.job import Backend


class StartedBackend(Backend, Protocol):
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
        self._processes = Processes()
        self._server: Server | None = None
        self.endpoint = self.address = ""

    def start(self) -> None:
        port = self._server.port if self._server is not None else 0
        # A server that knows nothing of the run listens for a while before it seals anything (rule 14).
        self._server = self._processes.server(port=port, hold_s=4.0 if port else 0.0)
        self.endpoint = self.address = self._server.endpoint

    def kill(self) -> None:
        assert self._server is not None
        self._server.kill()

    def end(self) -> None:
        self._processes.end()


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
        self._store: ControlledProcess | None = None
        self._port = 0
        self.endpoint = self.address = ""

    def start(self) -> None:
        self._store = ControlledProcess("tests.support.store_server_program", "ours", str(self._port))
        self._port = int(self._store.expect("serving")["port"])
        self.endpoint = self.address = f"c10d://127.0.0.1:{self._port}"

    def kill(self) -> None:
        assert self._store is not None
        self._store.kill()

    def end(self) -> None:
        self.kill()


BACKENDS: dict[str, type[StartedBackend]] = {
    "rallypoint": StandaloneServer,
    "c10d": C10dStore,
    "etcd-v3": EtcdCluster,
    "etcd-v3-3.4": OldEtcdCluster,
}
