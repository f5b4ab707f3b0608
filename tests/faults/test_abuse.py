"""Whatever callers do to `rallypoint serve`: it is refused and counted, costs little, and holds no world up (rules 15, 16)."""

from __future__ import annotations

import resource
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from rallypoint import protocol
from rallypoint.client.admin_client import AdminClient
from rallypoint.errors import RendezvousConnectionError
from rallypoint.messages.notices import Placed
from rallypoint.messages.requests import Joined
from rallypoint.messages.types import Bounds, Node
from rallypoint.tls import NO_TLS, TlsFiles
from rallypoint.tokens import AccessRole, Side, Token, read_token
from tests.faults.abuse_program import ABUSES, BEFORE_A_HANDSHAKE, BEFORE_A_PROOF
from tests.support.access_files import CERTIFICATES, TOKEN, WAYS, AccessFiles, flags
from tests.support.protocol_client import ProtocolClient

NODES = 8
MOST_MB = 100
UNHURRIED_S = 0.5
NOT_REFUSED = {"half a frame", "slow loris", "silent", "joins and leaves", "lies"}
"""What a server cannot tell from a slow or a mistaken caller; connections that say nothing are hung up on after 10 s."""
FEW_FILES = {"beyond the limit": 256}
"""How many files the server may open, where that is what is abused."""

_runs = count(1)


@dataclass
class Served:
    """A server in a process of its own."""

    process: subprocess.Popen[str]
    log: Path
    port: int
    files: AccessFiles | None = None
    """By which it and its nodes believe each other."""

    @property
    def token(self) -> Token | None:
        return read_token(self.files.server.get("token_file"), {}) if self.files is not None else None

    @property
    def tls(self) -> TlsFiles:
        names = ("cacert", "cert", "key")
        return TlsFiles(*(self.files.node.get(name, "") for name in names)) if self.files is not None else NO_TLS

    def form(self, nodes: int = NODES) -> float:
        """Seconds until a world of a run of its own has formed, from the first connection on."""
        run, began = f"world-{next(_runs)}", time.monotonic()
        with ExitStack() as stack:
            wires = [stack.enter_context(self._joined(run, f"n{number}", nodes)) for number in range(nodes)]
            assert sorted(wire.expect(Placed).rank for wire in wires) == list(range(nodes))
            return time.monotonic() - began

    def _joined(self, run: str, node_id: str, nodes: int = NODES) -> ProtocolClient:
        """A node that the server has taken in; one that finds no room is told so, and comes again."""
        hello = protocol.Hello(protocol.VERSION, run, node_id, 1, nonce="n")
        node = Node(id=node_id, name=node_id, address="127.0.0.1", store="127.0.0.1:1")
        joins, context = Joined(node, Bounds(nodes, nodes)), self.tls.make(is_server=False) if self.tls else None
        while True:
            wire = ProtocolClient("127.0.0.1", self.port)
            with suppress(ConnectionError, EOFError):
                # As asyncio has it: a handshake would wait 40 ms for the other side to acknowledge its first half.
                wire.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if context is not None:
                    wire.socket = context.wrap_socket(wire.socket, server_hostname="127.0.0.1")
                wire.socket.sendall(protocol.MAGIC + protocol.frame(hello))
                greeting = wire.next()
                if isinstance(greeting, protocol.Challenge):
                    assert self.token is not None
                    key = self.token.for_run(run, AccessRole.NODE)
                    wire.say(protocol.Proof(key.prove(Side.CLIENT, *protocol.named(hello, greeting.nonce))))
                    greeting = wire.next()
                if not isinstance(greeting, protocol.Goodbye):
                    wire.say(joins)
                    return wire
                assert not greeting.final, greeting
            wire.socket.close()

    def turned_away(self) -> int:
        """How many callers it has counted, as `rallypoint status` shows them."""
        with self._joined("counted", "n"):
            while True:
                with (
                    suppress(RendezvousConnectionError),
                    AdminClient("127.0.0.1", self.port, 20.0, token=self.token, tls=self.tls) as admin,
                ):
                    return admin.status("counted").messages.get("callers turned away", 0)

    def most_mb(self) -> float:
        """The most memory that it has had."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


@contextmanager
def served(folder: Path, open_files: int | None, files: AccessFiles | None = None) -> Iterator[Served]:
    log, limit = folder / "log", resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    allowed, serve = (
        min(open_files or limit, limit),
        [sys.executable, "-m", "rallypoint", "serve", "--bind", "127.0.0.1:0", *flags(files.server if files else {})],
    )
    with log.open("wb") as errors:
        process = subprocess.Popen(
            ["prlimit", f"--nofile={allowed}:{allowed}", *serve],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    with process:
        try:
            assert process.stdout is not None
            yield Served(process, log, int(process.stdout.readline().rpartition(":")[2]), files)
            assert process.poll() is None, "it lives on"
        finally:
            process.terminate()


@contextmanager
def abused(server: Served, kind: str) -> Iterator[int]:
    """Somebody does his worst in a process of his own, and goes on; how often he had done it when this began."""
    command = [sys.executable, "-m", "tests.faults.abuse_program", kind, str(server.port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as abuser:
        try:
            assert abuser.stdout is not None
            yield int(abuser.stdout.readline())
        finally:
            abuser.kill()


@pytest.mark.parametrize("kind", ABUSES)
def test_abuse_is_refused_and_counted_and_holds_no_world_up(kind: str, tmp_path: Path) -> None:
    with served(tmp_path, FEW_FILES.get(kind)) as server:
        judge(server, kind, is_counted=kind not in NOT_REFUSED)


@pytest.mark.parametrize(
    ("way", "kind"),
    [*((TOKEN, kind) for kind in BEFORE_A_PROOF), *((CERTIFICATES, kind) for kind in BEFORE_A_HANDSHAKE)],
)
def test_neither_does_abuse_by_those_who_may_not_come_in(way: str, kind: str, tmp_path: Path) -> None:
    with served(tmp_path, None, WAYS[way](tmp_path, "any")) as server:
        judge(server, kind, is_counted=way == TOKEN and kind not in NOT_REFUSED)  # a failed handshake is asyncio's


def test_a_server_with_certificates_holds_many_nodes_in_little_memory(tmp_path: Path) -> None:
    with served(tmp_path, None, WAYS[CERTIFICATES](tmp_path, "any")) as server:
        server.form(400)
        assert server.most_mb() < MOST_MB


def judge(server: Served, kind: str, *, is_counted: bool) -> None:
    """Form a few worlds, before somebody does his worst and meanwhile."""
    quiet_s = statistics.median(server.form() for _ in range(5))
    assert server.turned_away() == 0
    with abused(server, kind) as times:
        formed_s = statistics.median(server.form() for _ in range(5))
        counted, most_mb = server.turned_away(), server.most_mb()
    print(f"{kind}: {times} times; {quiet_s:.3f} s -> {formed_s:.3f} s, {most_mb:.0f} MB, {counted} turned away")
    assert formed_s < max(2 * quiet_s, UNHURRIED_S)
    assert most_mb < MOST_MB
    assert counted > 0 or not is_counted
    log = server.log.read_text(encoding="utf-8")
    assert "Traceback" not in log
    assert "\x1b" not in log
    assert all(line[:2] == "20" for line in log.splitlines()), "nobody else writes a line of the log"
