"""What clients that are no nodes do to a server: nothing that its nodes would notice (rules 15, 16)."""

from __future__ import annotations

import contextlib
import random
import resource
import socket
from collections.abc import Callable, Iterator

import pytest

import rallypoint
from rallypoint import protocol
from rallypoint.messages.types import Settings
from tests.support.node_processes import NIMBLE, Node, Processes, Server, by_rank, free_port
from tests.support.protocol_client import ProtocolClient


@pytest.fixture
def world(processes: Processes) -> tuple[Server, list[Node]]:
    server = processes.server()
    nodes = processes.nodes("a", "b")
    for node in nodes:
        node.join(server.endpoint, "2:3", **NIMBLE)
    return server, by_rank(nodes)


def _is_unharmed(server: Server, nodes: list[Node]) -> None:
    for node in nodes:
        node.ask("reach", "reached")
        assert node.waiting() == 0
        assert node.heard("changed") == []
    assert server.heard("lost") == server.heard("stderr") == []


def _say(wire: ProtocolClient, data: bytes) -> protocol.Goodbye:
    wire.socket.sendall(data)
    return wire.goodbye()


GARBAGE: dict[str, tuple[bytes, str]] = {
    "http": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "it looks like HTTP"),
    "tls": (b"\x16\x03\x01\x02\x00\x01\x00", "it looks like TLS"),
    "a client of torch's store": (b"\x00\xce\xf7\x85\x3c\x0d\x00\x00\x00\x00", "a client of torch's TCPStore"),
    "ssh": (b"SSH-2.0-OpenSSH_9.2\r\n", "it looks like SSH"),
    "nothing in particular": (bytes(range(200, 256)), "it starts with"),
    "an oversized frame": (protocol.MAGIC + (2**31).to_bytes(4, "big"), "a message of 2147483648 bytes was announced"),
    "no json": (protocol.MAGIC + (3).to_bytes(4, "big") + b"{]}", "a message cannot be read"),
    "deep json": (protocol.MAGIC + (60_000).to_bytes(4, "big") + b"[" * 60_000, "a message cannot be read"),
    "no hello": (protocol.MAGIC + protocol.frame(protocol.AskRuns(1)), "a connection opens with a hello"),
    "another version": (protocol.MAGIC + protocol.frame(protocol.Hello(99)), "the node speaks version 99"),
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_ends_its_own_connection_with_a_reason_and_no_other(
    world: tuple[Server, list[Node]], kind: str
) -> None:
    server, nodes = world
    data, why = GARBAGE[kind]
    with ProtocolClient("127.0.0.1", server.port) as wire:
        goodbye = _say(wire, data)
    assert why in goodbye.why
    assert goodbye.final
    _is_unharmed(server, nodes)


def test_random_bytes_after_a_hello_harm_nobody(world: tuple[Server, list[Node]]) -> None:
    server, nodes = world
    chance = random.Random(3)
    for _ in range(50):
        with ProtocolClient("127.0.0.1", server.port) as wire:
            wire.hello()
            body = chance.randbytes(chance.randrange(1, 2000))
            assert "a message cannot be read" in _say(wire, len(body).to_bytes(4, "big") + body).why
    _is_unharmed(server, nodes)


def test_half_a_frame_and_then_nothing_harms_nobody(world: tuple[Server, list[Node]]) -> None:
    server, nodes = world
    frame = protocol.MAGIC + protocol.frame(protocol.Hello(protocol.VERSION, "run", "half"))
    halves: list[Callable[[bytes], bytes]] = [
        lambda data: data[:2],
        lambda data: data[:6],
        lambda data: data[:-1],
    ]
    with contextlib.ExitStack() as stack:
        for half in halves:
            wire = stack.enter_context(ProtocolClient("127.0.0.1", server.port))
            wire.socket.sendall(half(frame))
        _is_unharmed(server, nodes)


def test_an_administrator_cannot_speak_for_a_node(world: tuple[Server, list[Node]]) -> None:
    server, nodes = world
    with ProtocolClient("127.0.0.1", server.port) as wire:
        wire.hello()
        wire.join("intruder", 2, 3)
        assert wire.goodbye().why == "an administrator cannot speak for intruder"
    with ProtocolClient("127.0.0.1", server.port) as wire:
        wire.hello("run", "intruder")
        wire.join("a", 2, 3)
        assert wire.goodbye().why == "intruder cannot speak for a"
    _is_unharmed(server, nodes)


def test_a_server_inside_a_node_serves_no_other_run(processes: Processes) -> None:
    port = free_port()
    node = processes.node("a")
    node.join(f"127.0.0.1:{port}", 1, is_host=True)
    node.placed()
    other = processes.node("b")
    other.join(f"127.0.0.1:{port}", 1, run="other", is_host=None)
    assert "this server is part of the job 'run' and serves no other run" in other.failed("RendezvousConnectionError")
    assert node.waiting() == 0


@pytest.fixture
def many_files() -> Iterator[int]:
    """As many open files as this process may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 8192:
        pytest.fail(f"This test opens 5,000 connections, and may open {hard} files: raise the hard limit (ulimit -Hn).")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_five_thousand_connections_that_say_nothing_harm_nobody(
    processes: Processes, world: tuple[Server, list[Node]], many_files: int
) -> None:
    server, nodes = world
    assert many_files
    with contextlib.ExitStack() as stack:
        for _ in range(5000):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 30.0))
        _is_unharmed(server, nodes)
        # A caller that says who it is gets in, at once and not when the silent ones are given up.
        with ProtocolClient("127.0.0.1", server.port) as wire:
            wire.hello()
        late = processes.node("late")
        late.join(server.endpoint, "2:3")
        for node in nodes:
            node.changed()
            node.again()
        by_rank([*nodes, late], round=2)


@pytest.mark.parametrize("open_files", [100, 40])
def test_a_server_with_few_open_files_serves(processes: Processes, open_files: int) -> None:
    server = processes.server(open_files=open_files)
    a, b = processes.nodes("a", "b")
    for node in (a, b):
        node.join(server.endpoint, 2, **NIMBLE)
    by_rank([a, b])


def test_a_server_inside_a_program_leaves_its_limit_of_open_files_alone() -> None:
    with use_fewer_files() as limit, rallypoint.join(f"127.0.0.1:{free_port()}", run="files", nodes=1, is_host=True):
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == limit


@contextlib.contextmanager
def use_fewer_files() -> Iterator[tuple[int, int]]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = (before[0] - 1000, before[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    try:
        yield limit
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_idle_callers_make_room_where_a_server_is_full(processes: Processes) -> None:
    """Callers that say hello and nothing more would otherwise lock everybody out."""
    server = processes.server(open_files=40)
    with contextlib.ExitStack() as stack:
        for _ in range(30):
            stack.enter_context(ProtocolClient("127.0.0.1", server.port)).hello()
        a, b = processes.nodes("a", "b")
        for node in (a, b):
            node.join(server.endpoint, 2, **NIMBLE)
        by_rank([a, b])


def test_a_server_at_its_limit_of_open_files_refuses_in_words_and_lives_on(processes: Processes) -> None:
    server = processes.server(open_files=40)  # a quarter is kept for other purposes
    a, b, more = processes.nodes("a", "b", "more")
    for node in (a, b):
        node.join(server.endpoint, "2:3", **NIMBLE)
    by_rank([a, b])
    with contextlib.ExitStack() as stack:
        for number in range(28):
            waits = stack.enter_context(ProtocolClient("127.0.0.1", server.port))
            waits.hello("full", f"n{number}")
            waits.join(f"n{number}", 100, 100, Settings(heartbeat_timeout_s=600.0))
        with ProtocolClient("127.0.0.1", server.port) as wire:
            goodbye = wire.goodbye()
            assert goodbye.why == "30 connections are all that this server can hold (ulimit -n)"
            assert not goodbye.final
        more.join(server.endpoint, "2:3", join_timeout=1.0)
        text = more.failed("RendezvousTimeoutError")
        assert "30 connections are all that this server can hold" in text
        for node in (a, b):
            node.ask("reach", "reached")
            assert node.waiting() == 0
    more.join(server.endpoint, "2:3")
    for node in (a, b):
        node.changed()
        node.again()
    by_rank([a, b, more])


def _ask_for_ever(wire: ProtocolClient) -> None:
    questions = protocol.frame(protocol.AskStatus(1, "run")) * 1000
    while True:
        wire.socket.sendall(questions)


def test_a_peer_that_never_reads_is_dropped_and_harms_nobody(world: tuple[Server, list[Node]]) -> None:
    server, nodes = world
    with ProtocolClient("127.0.0.1", server.port) as wire:
        wire.hello()
        with pytest.raises(OSError, match=r"reset|Broken pipe"):
            _ask_for_ever(wire)
    for node in nodes:
        node.ask("reach", "reached")
        assert node.waiting() == 0
        assert node.heard("changed") == []
