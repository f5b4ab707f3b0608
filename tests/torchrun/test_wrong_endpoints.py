"""An endpoint that is something else: a sentence, an exit code, and nobody else disturbed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rallypoint import protocol
from tests.support.protocol_client import ProtocolClient
from tests.torchrun.job import Job, formed

pytestmark = pytest.mark.parametrize("backend", ["rallypoint"], indirect=True)

SERVERS = {
    "a web server": """
import http.server
server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
print(server.server_address[1], flush=True)
server.serve_forever()
""",
    "a store of torch's": """
import threading, torch.distributed
store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
threading.Event().wait()
""",
    "a server from the future": """
import socket, threading
from rallypoint import protocol
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
callers = []
while True:
    caller, _ = listener.accept()
    callers.append(caller)
    caller.sendall(protocol.MAGIC + protocol.frame(protocol.Goodbye("the node speaks version 1, this server version 99", final=True)))
""",
}


@contextmanager
def serving(program: str) -> Iterator[int]:
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("who", "sentence"),
    [
        ("a web server", "was silent for 1.0 s: an HTTP server is there"),
        pytest.param(
            *("a store of torch's", "it closed the connection without a word: something else may listen there"),
            marks=pytest.mark.soak,
        ),
        pytest.param(
            *("a server from the future", "the node speaks version 1, this server version 99"), marks=pytest.mark.soak
        ),
    ],
)
def test_an_agent_that_finds_something_else_says_so_and_fails(job: Job, who: str, sentence: str) -> None:
    with serving(SERVERS[who]) as port:
        agent = job.agent("a", "1", endpoint=f"127.0.0.1:{port}", options={"join_timeout": 4, "heartbeat_timeout": 1})
        assert agent.exit_code() == 1
    assert sentence in agent.errors()


@pytest.mark.soak
def test_a_node_of_another_version_is_refused_and_disturbs_nobody(job: Job) -> None:
    agents = job.start("a b", "1:3", options={"last_call_timeout": 5})
    pids = {place["pid"] for place in formed(*agents)}
    host, _, port = job.backend.endpoint.rpartition(":")
    for message in (protocol.Hello(99, job.run_id, "future", 1), protocol.Hello(1, "", "", 0)):
        with ProtocolClient(host, int(port)) as wire:
            wire.socket.sendall(protocol.MAGIC + protocol.frame(message))
            goodbye = wire.goodbye()
            assert f"the node speaks version {message.protocol}" in goodbye.why
            assert goodbye.final
    for agent in agents:
        agent.reach(30)
    assert {event["pid"] for agent in agents for event in agent.seen if event["event"] == "step"} == pids
    job.finish(*agents)
