"""What the tests of the client stand on: real etcd with any options, etcdctl, a proxy that loses answers, time-outs."""

from __future__ import annotations

import json
import socket
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, NamedTuple

from rallypoint.etcd_client import EtcdClient, EtcdCompactedError, KeyChange, Watch
from rallypoint.etcd_client.cluster import RetryKind
from rallypoint.etcd_client.codec import Message
from rallypoint.etcd_client.messages import Response
from rallypoint.etcd_client.watch_stream import WatchStream
from tests.support.etcd_servers import HOST, MEMORY, Certificates, Cluster, Member, binary

SOON_S = 30.0
SHORT_TOKENS = ("--auth-token", "simple", "--auth-token-ttl", "1")
"""Options of etcd's: a token that was not used for a second or two is known no more."""


@contextmanager
def etcd(
    version: str = "3.5", size: int = 1, *options: str, tls: bool = False, one_way: bool = False
) -> Iterator[Cluster]:
    """A cluster of one's own, with any options of etcd's; with `one_way` it wants no certificates of its clients."""
    with tempfile.TemporaryDirectory(prefix="etcd-test-", dir=MEMORY) as place:
        cluster = Cluster(Path(place), version, size, Certificates(Path(place)) if tls else None, v2=False)
        for member in cluster.members:
            if one_way:
                member.command.remove("--client-cert-auth")
                at = member.command.index("--trusted-ca-file")
                del member.command[at : at + 2]
            member.command += options
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.kill()


def etcdctl(cluster: Cluster, *arguments: str, user: str | None = None, only: Member | None = None) -> str:
    """etcd's own tool, as a second opinion and for what the client does not do."""
    program = str(Path(binary("3.5")).with_name("etcdctl"))
    scheme = "http" if cluster.tls is None else "https"
    endpoints = ",".join(f"{scheme}://{member.endpoint}" for member in ([only] if only else cluster.members))
    command = [program, f"--endpoints={endpoints}", *([f"--user={user}"] if user else [])]
    if cluster.tls is not None:
        command += [f"--cacert={cluster.tls.ca}", f"--cert={cluster.tls.cert}", f"--key={cluster.tls.key}"]
    command += arguments
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={"ETCDCTL_API": "3"}, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


class MemberStatus(NamedTuple):
    """What a member of etcd says of itself: its id, that of the member which leads, and the revision that it has come to."""

    member_id: int
    leader: int
    revision: int


def status_of(cluster: Cluster, member: Member) -> MemberStatus:
    """Ask one member, and no other."""
    told = json.loads(etcdctl(cluster, "endpoint", "status", "--write-out=json", only=member))
    status = told[0]["Status"]
    header = status["header"]
    return MemberStatus(int(header["member_id"]), int(status["leader"]), int(header["revision"]))


def enable_users(cluster: Cluster) -> None:
    """A root with the password `secret`, and `alice`, who may use keys under `alice/` only."""
    etcdctl(cluster, "user", "add", "root:secret")
    etcdctl(cluster, "user", "grant-role", "root", "root")
    etcdctl(cluster, "user", "add", "alice:wonderland")
    etcdctl(cluster, "role", "add", "alices")
    etcdctl(cluster, "role", "grant-permission", "alices", "readwrite", "alice/", "--prefix=true")
    etcdctl(cluster, "user", "grant-role", "alice", "alices")
    etcdctl(cluster, "auth", "enable")


@contextmanager
def behind_proxy(cluster: Cluster, version: str = "3.5") -> Iterator[Member]:
    """etcd's own proxy (`etcd grpc-proxy`) in front of a cluster, as a member that can be stopped and killed."""
    with tempfile.TemporaryDirectory(prefix="etcd-test-", dir=MEMORY) as place:
        with socket.create_server((HOST, 0)) as free:
            port: int = free.getsockname()[1]
        command = [binary(version), "grpc-proxy", "start", f"--endpoints={cluster.endpoints}"]
        command += [f"--listen-addr={HOST}:{port}", f"--data-dir={place}/data"]
        proxy = Member(command, port, Path(place) / "proxy.log", None)
        proxy.start()
        try:
            with EtcdClient(proxy.endpoint, timeout_s=SOON_S) as client:
                client.get("is it there?")
            yield proxy
        finally:
            proxy.kill()


def fresh() -> str:
    """A prefix that nobody else uses."""
    return f"{uuid.uuid4().hex}/"


def user_of(cluster: Cluster, timeout_s: float = SOON_S) -> EtcdClient:
    """A client of all members, which begins with the first."""
    return EtcdClient(cluster.endpoints, timeout_s=timeout_s, spread=False)


class CompactionRequest(Message, frozen=True):
    """Forget the history before a revision."""

    revision: Annotated[int, 1] = 0


def compact(client: EtcdClient, revision: int) -> None:
    """Forget the history before a revision; fine if it is forgotten already."""
    with suppress(EtcdCompactedError):
        request = CompactionRequest(revision)
        client._open.call("/etcdserverpb.KV/Compact", request, Response, SOON_S, RetryKind.AGAIN)


def take(watch: Watch, count: int, within_s: float = SOON_S) -> list[KeyChange]:
    """So many changes."""
    taken: list[KeyChange] = []
    deadline = time.monotonic() + within_s
    while len(taken) < count:
        item = watch.get(timeout_s=max(deadline - time.monotonic(), 0))
        assert isinstance(item, KeyChange), f"{item} after {len(taken)} of {count} changes; {watch.trouble}"
        taken.append(item)
    return taken


def values(watch: Watch, count: int) -> list[bytes]:
    """What was written by so many changes."""
    return [change.value for change in take(watch, count)]


@contextmanager
def cut_off(client: EtcdClient) -> Iterator[None]:
    """No watch stream while the block runs."""
    watch_stream = client._open.watch_stream(WatchStream)
    cut, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        watch_stream._hang_up()
        cut.set()
        go_on.wait(SOON_S)

    watch_stream._inbox.put(hold)
    assert cut.wait(SOON_S)
    yield
    go_on.set()


class Proxy:
    """A way to a member on which requests arrive and, if told so, answers get lost."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.loses_answers = False
        self._listener = socket.create_server((HOST, 0))
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"{HOST}:{self._listener.getsockname()[1]}"

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection((HOST, self.port))
                self._sockets += [near, far]
                threading.Thread(target=self._carry, args=(near, far, False), daemon=True).start()
                threading.Thread(target=self._carry, args=(far, near, True), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if not (is_answer and self.loses_answers):
                    sink.sendall(data)

    def cut(self) -> None:
        """End all connections, as a network does that fails."""
        sockets, self._sockets = self._sockets, []
        for connection in sockets:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def close(self) -> None:
        self._listener.close()
        self.cut()


@contextmanager
def proxy_to(port: int) -> Iterator[Proxy]:
    """A proxy that ends with the block."""
    proxy = Proxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
