"""Nodes and servers of different releases say so, in a sentence that names both versions of the protocol."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from rallypoint import protocol
from tests.support.node_processes import Processes
from tests.support.protocol_client import ProtocolClient

VERSION_1 = {"type": "hello", "protocol": 1, "run_id": "run", "node_id": "a.1", "connection": 1}
SAME_RELEASE = "run the same release of Rallypoint on both"


def _bytes(message: dict[str, Any]) -> bytes:
    """A message as version 1 of the protocol sends it, first on a connection."""
    body = json.dumps(message).encode()
    return b"RLYP" + len(body).to_bytes(4, "big") + body


def test_a_node_of_version_1_is_told_which_version_the_server_speaks(processes: Processes) -> None:
    server = processes.server()
    with ProtocolClient("127.0.0.1", server.port) as wire:
        wire.socket.sendall(_bytes(VERSION_1))
        goodbye = wire.goodbye()
    assert goodbye == protocol.Goodbye(
        f"the node speaks version 1 of the protocol and the server version 2: {SAME_RELEASE}", final=True
    )


@contextmanager
def _server_of_version_1(answer: dict[str, Any]) -> Iterator[str]:
    """It answers everybody that calls, whatever is said to it; a node calls when it is made, and when it joins."""

    def serve() -> None:
        with suppress(OSError):
            while True:
                caller, _ = listener.accept()
                with caller:
                    caller.recv(65536)
                    caller.sendall(_bytes(answer))
                    while caller.recv(65536):
                        pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


REFUSES = f"the node speaks version 2 of the protocol and the server version 1: {SAME_RELEASE}"


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ({"type": "goodbye", "why": REFUSES, "final": True}, REFUSES),
        (
            {"type": "welcome", "protocol": 1, "server": "old"},
            f"the server speaks version 1 of the protocol and the node version 2: {SAME_RELEASE}",
        ),
    ],
    ids=["that refuses it", "that welcomes it"],
)
def test_a_node_is_told_that_the_server_speaks_version_1(
    processes: Processes, answer: dict[str, Any], sentence: str
) -> None:
    node = processes.node("a")
    with _server_of_version_1(answer) as endpoint:
        node.join(endpoint, 1)
        assert node.failed("RendezvousConnectionError") == f"run 'run' cannot be joined at {endpoint}: {sentence}"
