"""What a node that cannot join says: golden texts, with numbers masked (rules 11 and 13)."""

from __future__ import annotations

import re
import resource
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from rallypoint.net import listen
from tests.support.node_processes import NIMBLE, Processes, by_rank, free_port

SHORT = {**NIMBLE, "join_timeout": 2.5}


def _masked(text: str) -> str:
    return re.sub(r"\d+(\.\d+)?", "#", text.replace("127.0.0.1", "ADDRESS"))


def test_nobody_listens(processes: Processes) -> None:
    node = processes.node("a")
    node.join(f"127.0.0.1:{free_port()}", 2, **SHORT)
    assert _masked(node.failed("RendezvousTimeoutError")) == (
        "run 'run' was not joined within # s: the server at ADDRESS:# cannot be reached (Connection refused); "
        "is it running there, and does its port let nodes in?"
    )


def test_nobody_listens_at_any_address_of_a_name(processes: Processes) -> None:
    node = processes.node("a")
    node.join(f"localhost:{free_port()}", 2, **SHORT)
    text = node.failed("RendezvousTimeoutError")
    assert re.search(r"the server at localhost:\d+ \([^)]*127\.0\.0\.1[^)]*\) cannot be reached", text)
    assert "Connection refused" in text


def test_a_name_that_does_not_resolve(processes: Processes) -> None:
    node = processes.node("a")
    node.join("no-such-host.invalid", 2, **SHORT)
    text = _masked(node.failed("RendezvousTimeoutError"))
    assert text.startswith(
        "run 'run' was not joined within # s: the server at no-such-host.invalid:# cannot be reached ("
    )
    assert "name" in text.partition("(")[2].lower()


def test_too_few_nodes(processes: Processes) -> None:
    server = processes.server()
    a, b = processes.nodes("a", "b")
    a.join(server.endpoint, "3:4")
    server.expect("happened")
    b.join(server.endpoint, "3:4", **SHORT)
    assert _masked(b.failed("RendezvousTimeoutError")) == (
        "run 'run' at ADDRESS:# was not joined within # s: # of at least # nodes are here (a, b); # more must come"
    )


def test_too_few_survivors(processes: Processes) -> None:
    server = processes.server()
    nodes = processes.nodes("a", "b")
    for node in nodes:
        node.join(server.endpoint, 2, **SHORT)
    a, b = by_rank(nodes)
    b.kill()
    a.changed()
    a.again()
    assert _masked(a.failed("RendezvousTimeoutError")) == (
        "run 'run' at ADDRESS:# was not joined within # s: # of at least # nodes are left (a); # must be replaced"
    )


def test_a_place_that_cannot_be_taken_is_given_back(processes: Processes) -> None:
    """Rank 0 has no file descriptor left for the store of its round: the world is sealed, and its join fails."""
    server = processes.server()
    nodes = processes.nodes("a", "b")
    for node in nodes:
        node.join(server.endpoint, 2)
    a, b = by_rank(nodes)
    a.again()
    b.changed()  # so the server has heard that `a` joins again
    _, most = resource.prlimit(a.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(a.pid, resource.RLIMIT_NOFILE, (3, most))
    b.again()
    b.placed(round=2)
    assert a.failed("OSError").startswith("[Errno 24]")
    assert b.changed()["why"].startswith("a withdrew: its join failed: [Errno 24]")
    # Nothing of that stays: with room for its store it comes back.
    resource.prlimit(a.pid, resource.RLIMIT_NOFILE, (most, most))
    for node in nodes:
        node.again()
    by_rank(nodes, round=3)
    a.ask("set", "stored", key="x", value="1")
    assert b.ask("get", "value", key="x")["value"] == "1"


@contextmanager
def _answering(answer: bytes, *, close: bool = False) -> Iterator[int]:
    """A server that answers whatever it is sent with these bytes, and says no more."""
    listener = listen("127.0.0.1", 0)
    listener.setblocking(True)
    callers: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                caller, _ = listener.accept()
            except OSError:
                return
            callers.append(caller)
            caller.recv(1)
            caller.sendall(answer)
            if close:
                # All that it said is read first, so that the end is a quiet one.
                caller.shutdown(socket.SHUT_WR)
                while caller.recv(65536):
                    pass
                caller.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
        for caller in callers:
            caller.close()


class _Page(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@contextmanager
def _web_server() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), _Page) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def test_the_port_of_a_web_server_that_answers(processes: Processes) -> None:
    node = processes.node("a")
    with _answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        node.join(f"127.0.0.1:{port}", 2, **SHORT)
        assert _masked(node.failed("RendezvousConnectionError")) == (
            "run 'run' cannot be joined at ADDRESS:#: the other side does not speak Rallypoint's protocol: it looks "
            "like HTTP"
        )


def test_the_port_of_a_web_server_that_waits_for_the_end_of_the_request(processes: Processes) -> None:
    node = processes.node("a")
    with _web_server() as port:
        node.join(f"127.0.0.1:{port}", 2, **SHORT)
        assert _masked(node.failed("RendezvousTimeoutError")) == (
            "run 'run' was not joined within # s: the server at ADDRESS:# cannot be reached (it took the connection "
            "and was silent for # s: an HTTP server is there); is it running there, and does its port let nodes in?"
        )


def test_the_port_of_a_store_like_torchs(processes: Processes) -> None:
    node = processes.node("a")
    with _answering((5).to_bytes(8, "little") + b"value") as port:
        node.join(f"127.0.0.1:{port}", 2, **SHORT)
        assert _masked(node.failed("RendezvousConnectionError")) == (
            "run 'run' cannot be joined at ADDRESS:#: the other side does not speak Rallypoint's protocol: it starts "
            r"with b'\x#\x#\x#\x#\x#\x#\x#\x#'"
        )


def test_a_server_that_says_nothing(processes: Processes) -> None:
    node = processes.node("a")
    with _answering(b"") as port:
        node.join(f"127.0.0.1:{port}", 2, **SHORT)
        assert _masked(node.failed("RendezvousTimeoutError")) == (
            "run 'run' was not joined within # s: the server at ADDRESS:# cannot be reached (it took the connection "
            "and was silent for # s); is it running there, and does its port let nodes in?"
        )


def test_a_server_that_hangs_up(processes: Processes) -> None:
    node = processes.node("a")
    with _answering(b"", close=True) as port:
        node.join(f"127.0.0.1:{port}", 2, **SHORT)
        assert "it closed the connection without a word: something else may listen there" in node.failed(
            "RendezvousTimeoutError"
        )


def test_an_endpoint_that_cannot_be_served(processes: Processes) -> None:
    server = processes.server()
    taken, elsewhere = processes.nodes("taken", "elsewhere")
    taken.join(server.endpoint, 2, is_host=True)
    assert _masked(taken.failed("RendezvousConnectionError")) == (
        "is_host is set, but ADDRESS:# cannot be bound: another process has it; use another port, or leave is_host out "
        "to connect to what is there"
    )
    elsewhere.join("192.0.2.1:29400", 2, is_host=True)
    assert elsewhere.failed("RendezvousConnectionError") == (
        "is_host is set, but 192.0.2.1 is not an address of this machine: give the endpoint as an address of one of its "
        "interfaces, or leave is_host out"
    )


def test_an_address_of_another_machine(processes: Processes) -> None:
    server = processes.server()
    node = processes.node("a")
    node.join(server.endpoint, 2, local_addr="192.0.2.1", **SHORT)
    text = node.failed("RendezvousConnectionError")
    assert "this node would serve a store on 192.0.2.1, but" in text
    assert "local_addr must be an address of this machine" in text


def test_a_process_that_may_open_no_more_files_is_told_so() -> None:
    code = """
        import os, resource
        from rallypoint.client.round_store import StoreOffer, cannot_listen
        from rallypoint.stores.errors import StoreError
        StoreOffer("127.0.0.1").withdraw()
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, 64))
        try:
            StoreOffer("127.0.0.1")
        except StoreError as problem:
            print(cannot_listen("127.0.0.1", problem))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert "this node would serve a store on 127.0.0.1, but cannot listen on 127.0.0.1, port 0" in done.stdout
    assert "let this process open more files (ulimit -n)" in done.stdout
    assert "local_addr" not in done.stdout


@pytest.mark.parametrize("nodes", ["4:2", "0", "many", "2:"])
def test_a_number_of_nodes_that_makes_no_sense(processes: Processes, nodes: str) -> None:
    node = processes.node("a")
    node.join("127.0.0.1", nodes)
    assert node.failed("ValueError")
