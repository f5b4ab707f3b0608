"""What the nodes of a job under torchrun meet at: a server, a c10d store, members of etcd; each is started and killed by tests."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from tests.support import access_files
from tests.support.access_files import AccessFiles
from tests.support.etcd_servers import Cluster, running
from tests.support.node_processes import ControlledProcess, Processes, Server
from tests.torchrun.agents import FAST
from tests.torchrun.job import RUN_ID, Backend

TOKEN, CERTIFICATES = "rallypoint with a token", "rallypoint with certificates"
CLOSED = (TOKEN, CERTIFICATES)


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
        self.access: dict[str, str] = {}
        self._served_with: dict[str, str] = {}
        self._processes = Processes()
        self._server: Server | None = None
        self.endpoint = self.address = ""

    def start(self) -> None:
        port = self._server.port if self._server is not None else 0
        # A server that knows nothing of the run listens for a while before it seals anything (rule 14).
        self._server = self._processes.server(port=port, hold_s=4.0 if port else 0.0, access=self._served_with)
        self.endpoint = self.address = self._server.endpoint

    def kill(self) -> None:
        assert self._server is not None
        self._server.kill()

    def end(self) -> None:
        self._processes.end()


class ClosedServer(StandaloneServer):
    """One that lets in only those who show that they may come."""

    way: str
    files: AccessFiles

    def __init__(self) -> None:
        super().__init__()
        self._folder = TemporaryDirectory()
        self.files = access_files.WAYS[self.way](Path(self._folder.name), RUN_ID)
        self.access, self._served_with = self.files.node, self.files.server
        self.options = {**FAST, **self.access}

    def end(self) -> None:
        super().end()
        self._folder.cleanup()


class ServerWithToken(ClosedServer):
    """They prove a token: the server has the master token, and each node that of the run."""

    way = access_files.TOKEN


class ServerWithCertificates(ClosedServer):
    """Both sides show a certificate (mutual TLS)."""

    way = access_files.CERTIFICATES


class EtcdCluster:
    """Three members of etcd."""

    name = "etcd-v3"
    has_server = False
    version = "3.5"

    def __init__(self) -> None:
        self.access: dict[str, str] = {}
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
        self.access: dict[str, str] = {}
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
    TOKEN: ServerWithToken,
    CERTIFICATES: ServerWithCertificates,
    "c10d": C10dStore,
    "etcd-v3": EtcdCluster,
    "etcd-v3-3.4": OldEtcdCluster,
}
