"""`rallypoint serve`: it binds what it is told, says so, remembers, and ends when asked."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from rallypoint.cli.exit_codes import ExitCode
from rallypoint.net import DEFAULT_PORT
from tests.support.cli_processes import LIMIT_S, Started, answer, answer_json, refused, start_cli, start_node
from tests.support.protocol_client import ProtocolClient


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_listens_where_it_is_told_and_ends_cleanly(started: Started, number: signal.Signals) -> None:
    server = started.add(start_cli("serve", "--bind", "127.0.0.1:0"))
    port = int(server.expect(r"^rallypoint serve: listening on 127\.0\.0\.1:(\d+)$")[1])
    assert port > 0
    with socket.create_connection(("127.0.0.1", port)):
        pass
    server.popen.send_signal(number)
    assert server.ends() == 0
    server.expect(f"ended by {number.name}", "stderr")
    assert not [line for line in server.said if "Traceback" in line]


def test_without_an_address_it_serves_this_machine_on_the_default_port() -> None:
    """Whether the port is free or not, it is taken while this test holds it or another process does."""
    with suppress(OSError), socket.create_server(("127.0.0.1", DEFAULT_PORT)):
        assert refused("serve", code=ExitCode.REFUSED).startswith(f"127.0.0.1:{DEFAULT_PORT} is taken by another")
        return
    assert refused("serve", code=ExitCode.REFUSED).startswith(f"127.0.0.1:{DEFAULT_PORT} is taken by another")


def test_it_binds_ipv6_and_names(started: Started) -> None:
    for bind, listening in (("[::1]:0", r"\[::1\]:\d+"), ("localhost:0", r"(127\.0\.0\.1|\[::1\]):\d+")):
        started.add(start_cli("serve", "--bind", bind)).expect(f"listening on {listening}$")


def test_it_does_not_listen_on_another_loopback_address(endpoint: str) -> None:
    port = int(endpoint.rpartition(":")[2])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port))


@pytest.mark.parametrize("bind", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"])
def test_beyond_loopback_it_wants_to_be_told_that_this_is_insecure(bind: str) -> None:
    sentence = refused("serve", "--bind", bind, code=ExitCode.USAGE)
    assert "is not a loopback address, so other machines may reach it" in sentence
    assert "add --insecure where the network is trusted" in sentence


def test_told_so_it_binds_beyond_loopback_and_warns_once(started: Started) -> None:
    # An address of the block that is set aside for tests, so that this test opens nothing to anybody.
    assert refused("serve", "--bind", "192.0.2.1:0", "--insecure") == (
        "192.0.2.1:0 cannot be bound: Cannot assign requested address"
    )
    server = started.add(start_cli("serve", "--bind", "127.0.0.1:0", "--insecure"))
    server.expect("listening on")
    server.expect("warning: there is no token and no CA", "stderr")


def test_a_port_that_is_taken(endpoint: str) -> None:
    assert refused("serve", "--bind", endpoint, code=ExitCode.REFUSED) == (
        f"{endpoint} is taken by another process: end that one, or bind another port "
        f"(--bind 127.0.0.1:0 takes a free one)"
    )


def test_a_name_that_nobody_has() -> None:
    sentence = refused("serve", "--bind", "no-such-host.invalid:0")
    assert sentence.startswith("no-such-host.invalid:0 cannot be bound: ")


def test_a_state_file_that_is_damaged_is_left_as_it_is(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.write_text("certainly not a record\n")
    sentence = refused("serve", "--bind", "127.0.0.1:0", "--state", str(state))
    assert sentence.startswith(f"line 1 of the state file {state}: ")
    assert state.read_text() == "certainly not a record\n"


def test_a_state_file_that_is_in_use(started: Started, tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    started.add(start_cli("serve", "--bind", "127.0.0.1:0", "--state", state)).expect("listening on")
    assert f"the state file {state} is in use by another server" in refused(
        "serve", "--bind", "127.0.0.1:0", "--state", state
    )


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "nowhere" / "file")
    sentence = refused("serve", "--bind", "127.0.0.1:0", "--state", nowhere)
    assert sentence == (
        f"the state file {nowhere} cannot be opened: its folder {tmp_path / 'nowhere'} does not exist; create it, or "
        f"give another path"
    )
    sentence = refused("serve", "--bind", "127.0.0.1:0", "--log-json", nowhere)
    assert "No such file or directory" in sentence
    assert nowhere in sentence


def test_a_restarted_server_remembers_what_closed(started: Started, tmp_path: Path) -> None:
    arguments = ("serve", "--state", str(tmp_path / "state"), "--bind")
    first = started.add(start_cli(*arguments, "127.0.0.1:0"))
    endpoint = first.expect(r"listening on (\S+)")[1]
    started.add(start_node(endpoint, "llama", "node1", "1")).expect('"placed"')
    assert "closed as failed" in answer("close", "llama", "--endpoint", endpoint)
    first.popen.kill()
    first.ends()
    started.add(start_cli(*arguments, endpoint)).expect("listening on")
    assert answer_json("status", "llama", "--endpoint", endpoint)["phase"] == "closed"


def test_what_happens_is_logged_for_people_and_for_machines(started: Started, tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    server = started.add(start_cli("serve", "--bind", "127.0.0.1:0", "--log-json", str(events)))
    endpoint = server.expect(r"listening on (\S+)")[1]
    # A name that would colour the terminal on which the log is read.
    node = started.add(start_node(endpoint, "llama", "red\x1b[31m", "1"))
    node.expect('"placed"')
    server.expect(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} run 'llama': ", "stderr")
    node.popen.kill()
    server.expect("run 'llama': .*its connection ended", "stderr")
    server.popen.terminate()
    assert server.ends() == 0
    assert not [line for line in server.said if "\x1b" in line]
    recorded = [json.loads(line) for line in events.read_text().splitlines()]
    assert [event["kind"] for event in recorded] == ["sealed", "lost", "broken"]
    assert all(event["run_id"] == "llama" and event["why"] for event in recorded)
    assert all(re.match(r"\d{4}-\d\d-\d\dT", event["at"]) for event in recorded)


def test_a_stranger_harms_nobody(endpoint: str) -> None:
    host, _, port = endpoint.rpartition(":")
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"RLYP\xff\xff\xff\xff", b"\x00" * 100):
        with socket.create_connection((host, int(port))) as stranger:
            stranger.sendall(garbage)
            while stranger.recv(4096):
                pass
    assert answer_json("runs", "--endpoint", endpoint) == {"total": 0, "runs": []}


def test_a_log_that_nobody_reads_does_not_hold_the_server_up() -> None:
    command = [sys.executable, "-m", "rallypoint", "serve", "--bind", "127.0.0.1:0"]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=buffered) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline().rpartition(":")[2])
        for _ in range(1500):  # a pipe holds 64 KiB, about 700 of these lines
            with socket.create_connection(("127.0.0.1", port)) as stranger:
                stranger.sendall(b"GET / HTTP/1.0\r\n\r\n")
                stranger.recv(1)
        with ProtocolClient("127.0.0.1", port) as wire:
            wire.hello()
        server.send_signal(signal.SIGTERM)
        assert server.wait(LIMIT_S) == 0
