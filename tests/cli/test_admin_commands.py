"""`status`, `runs`, `close`, `evict`: what is asked of a server, and what becomes of bad questions."""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

import pytest

from rallypoint.cli.exit_codes import ExitCode
from rallypoint.client.admin_client import ANSWER_TIMEOUT_S
from tests.support.cli_processes import (
    LIMIT_S,
    Process,
    Started,
    answer,
    answer_json,
    cli,
    free_port,
    http_server,
    refused,
    start_cli,
    start_node,
)

QUESTIONS = [("runs",), ("status",), ("status", "llama"), ("close", "llama"), ("evict", "llama", "node1")]


# Answers --------------------------------------------------------------------------------------------------------------


def test_a_server_without_runs(endpoint: str) -> None:
    assert answer("runs", "--endpoint", endpoint) == f"There are no runs at {endpoint}.\n"
    assert answer("status", "--endpoint", endpoint) == f"There are no runs at {endpoint}.\n"
    assert answer_json("runs", "--endpoint", endpoint) == {"total": 0, "runs": []}
    assert answer_json("status", "--endpoint", endpoint) == []


def test_status_has_the_sentence_and_the_nodes(node: Process, endpoint: str, started: Started) -> None:
    text = answer("status", "llama", "--endpoint", endpoint)
    first, header, row, counts = text.splitlines()
    assert first == "run 'llama' (sealed, nodes 1): round 1 runs with 1 node"
    assert header.split() == ["node", "rank", "standing", "address", "id"]
    assert re.fullmatch(r"node1 +0 +holds its world +127\.0\.0\.1 +node1\.[0-9a-f]+_[0-9]+", row)
    assert re.match(r"the server's messages so far: [\d,]+ bytes sent, [\d,]+ received, [\d,]+ sent$", counts)
    started.add(start_node(endpoint, "mistral", "node9", "2")).expect('"joining"')
    told = _until(lambda: answer("status", "--endpoint", endpoint), lambda text: "run 'mistral'" in text)
    assert "run 'llama' (sealed, nodes 1): " in told
    assert re.search(r"^run 'mistral' \((recovering|gathering), nodes 2\): ", told, re.MULTILINE)


def test_status_for_machines(node: Process, endpoint: str) -> None:
    told = answer_json("status", "llama", "--endpoint", endpoint)
    assert {key: value for key, value in told.items() if key not in ("at", "sealed_at", "nodes", "messages")} == {
        "run_id": "llama",
        "phase": "sealed",
        "round": 1,
        "live": 1,
        "ending": None,
        "waits_until": None,
        "min_nodes": 1,
        "max_nodes": 1,
        "kept_out": [],
        "situation": "round 1 runs with 1 node",
    }
    assert timedelta(0) < _moment(told["at"]) - _moment(told["sealed_at"]) < timedelta(seconds=LIMIT_S)
    assert [(line["name"], line["rank"], line["standing"]) for line in told["nodes"]] == [
        ("node1", 0, "holds its world")
    ]
    assert told["messages"]["received"] > 0
    assert [each["run_id"] for each in answer_json("status", "--endpoint", endpoint)] == ["llama"]


def test_times_for_machines(endpoint: str, started: Started) -> None:
    started.add(start_node(endpoint, "llama", "node1", "1:2")).expect('"joining"')
    waits = _until(lambda: answer("runs", "--json", "--endpoint", endpoint), lambda text: "last call" in text)
    (run,) = json.loads(waits)["runs"]
    assert timedelta(0) < _moment(run["waits_until"]) - _moment(run["at"]) <= timedelta(seconds=20)
    assert (run["sealed_at"], run["ending"]) == (None, None)
    answer("close", "llama", "--endpoint", endpoint)
    told = answer_json("status", "llama", "--endpoint", endpoint)
    assert (told["ending"], told["waits_until"], told["min_nodes"], told["max_nodes"]) == ("failed", None, 1, 2)


def test_runs_in_a_table_and_for_machines(node: Process, endpoint: str) -> None:
    header, row = answer("runs", "--endpoint", endpoint).splitlines()
    assert header.split() == ["run", "phase", "round", "nodes", "situation"]
    assert re.fullmatch(r"llama +sealed +1 +1 +round 1 runs with 1 node", row)
    told = answer_json("runs", "--endpoint", endpoint)
    assert (told["total"], told["runs"][0]["run_id"], told["runs"][0]["live"]) == (1, "llama", 1)


def test_on_a_terminal_there_are_tables(node: Process, endpoint: str, started: Started) -> None:
    runs = started.add(start_cli("runs", "--endpoint", endpoint, terminal=True))
    runs.expect("run +phase +round +nodes +situation")
    runs.expect("llama +sealed +1 +1 +round 1 runs with 1 node")
    assert runs.ends() == 0
    status = started.add(start_cli("status", "--endpoint", endpoint, terminal=True))
    status.expect(r"run 'llama' \(sealed, nodes 1\): round 1 runs with 1 node")
    status.expect("node1 +0 +holds its world")
    assert status.ends() == 0


def test_a_name_cannot_control_the_terminal(started: Started, endpoint: str) -> None:
    started.add(start_node(endpoint, "llama", "red\x1b[31m", "1")).expect('"placed"')
    text = answer("status", "llama", "--endpoint", endpoint)
    assert "red\ufffd[31m" in text
    assert "\x1b" not in text


def test_close_tells_the_nodes_why(node: Process, endpoint: str) -> None:
    told = answer("close", "llama", "--endpoint", endpoint, "--why", "the budget is spent")
    assert told == "run 'llama': closed as failed: the budget is spent\n"
    node.expect("run 'llama' is closed as failed: the budget is spent", "stderr")
    assert node.ends() == 1


def test_what_is_closed_is_not_closed_again(node: Process, endpoint: str) -> None:
    answer("close", "llama", "--endpoint", endpoint, "--why", "the budget is spent")
    for question in (("close", "llama"), ("evict", "llama", "node1")):
        assert refused(*question, "--endpoint", endpoint, code=ExitCode.CLOSED) == (
            f"run 'llama' is closed already, as failed: the budget is spent at {endpoint}"
        )


def test_the_endpoint_may_come_from_the_environment(node: Process, endpoint: str) -> None:
    assert "llama" in cli("runs", RALLYPOINT_ENDPOINT=endpoint).stdout
    port = free_port()
    done = cli("runs", "--endpoint", f"127.0.0.1:{port}", RALLYPOINT_ENDPOINT=endpoint)
    assert (done.returncode, f"127.0.0.1:{port} cannot be reached" in done.stderr) == (ExitCode.UNREACHABLE, True)
    done = cli("runs", RALLYPOINT_ENDPOINT="a:b:c")
    assert done.returncode == ExitCode.USAGE
    assert "from the environment variable RALLYPOINT_ENDPOINT: The endpoint 'a:b:c' cannot be read" in done.stderr


@pytest.mark.parametrize(("no_color", "has_colours"), [("", True), ("1", False)])
def test_no_color_means_no_colours(
    node: Process, endpoint: str, server: Process, started: Started, no_color: str, has_colours: bool
) -> None:
    watch = started.add(start_cli("status", "--watch", "--endpoint", endpoint, terminal=True, NO_COLOR=no_color))
    watch.expect("round 1 runs with 1 node")
    server.popen.kill()
    watch.expect("cannot be reached")
    assert ("\x1b[31m" in "".join(watch.said)) == has_colours


# Watching -------------------------------------------------------------------------------------------------------------


def test_watch_shows_what_is_new_until_interrupted(
    node: Process, endpoint: str, server: Process, started: Started
) -> None:
    watch = started.add(start_cli("status", "llama", "--endpoint", endpoint, "--watch"))
    watch.expect("round 1 runs with 1 node")
    node.order("finish")
    watch.expect("closed as succeeded")
    server.popen.kill()
    watch.expect(f"{endpoint} cannot be reached: Connection refused")
    started.add(start_cli("serve", "--bind", endpoint)).expect("listening on")
    watch.expect("there is no run 'llama'")
    watch.popen.send_signal(signal.SIGINT)
    assert watch.ends() == 0


def test_watch_for_machines_is_a_line_a_second(node: Process, endpoint: str, started: Started) -> None:
    watch = started.add(start_cli("status", "llama", "--endpoint", endpoint, "--watch", "--json"))
    for _ in range(2):
        assert json.loads(watch.expect("^.*$")[0])["situation"] == "round 1 runs with 1 node"
    watch.popen.terminate()
    assert watch.ends() == 0


def test_watch_is_live_on_a_terminal(node: Process, endpoint: str, server: Process, started: Started) -> None:
    watch = started.add(start_cli("status", "llama", "--endpoint", endpoint, "--watch", terminal=True))
    watch.expect("round 1 runs with 1 node")
    node.order("finish")
    watch.expect("closed as succeeded")
    server.popen.kill()
    watch.expect("cannot be reached")
    watch.popen.send_signal(signal.SIGINT)
    assert watch.ends() == 0


def test_a_reader_that_stops_is_no_trouble(node: Process, endpoint: str) -> None:
    command = f"'{sys.executable}' -m rallypoint status --watch --json --endpoint {endpoint} | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


# Refusals -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("question", QUESTIONS, ids=" ".join)
def test_nobody_is_there(question: tuple[str, ...]) -> None:
    port = free_port()
    assert refused(*question, "--endpoint", f"127.0.0.1:{port}", code=ExitCode.UNREACHABLE) == (
        f"127.0.0.1:{port} cannot be reached: Connection refused; is `rallypoint serve` running there, and does its port "
        f"let you in?"
    )


def test_a_name_that_nobody_has() -> None:
    assert refused("runs", "--endpoint", "no-such-host.invalid").startswith(
        "no-such-host.invalid:29400 cannot be reached: "
    )


@pytest.mark.parametrize("question", [("status", "other"), ("close", "other"), ("evict", "other", "node1")])
def test_a_run_that_is_not_there(endpoint: str, question: tuple[str, ...]) -> None:
    sentence = refused(*question, "--endpoint", endpoint, code=ExitCode.UNKNOWN_RUN)
    assert sentence == f"there is no run 'other' at {endpoint}"


def test_watch_of_a_run_that_is_not_there(endpoint: str) -> None:
    assert refused("status", "other", "--watch", "--endpoint", endpoint) == f"there is no run 'other' at {endpoint}"


@contextmanager
def _something_else(treat: Callable[[socket.socket], object]) -> Iterator[str]:
    """A listener that treats every caller in its own way."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                treat(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


def _until_gone(connection: socket.socket) -> None:
    while connection.recv(4096):
        pass


def _answer_as(greeting: bytes) -> Callable[[socket.socket], None]:
    def treat(connection: socket.socket) -> None:
        connection.sendall(greeting)
        _until_gone(connection)

    return treat


@pytest.mark.parametrize(
    ("greeting", "looks"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "it looks like HTTP"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "it looks like SSH"),
        (b"\x15\x03\x01\x00\x02\x02\x16", r"it starts with b'\x15\x03\x01\x00\x02\x02\x16'"),
    ],
    ids=["http", "ssh", "tls"],
)
def test_something_else_answers(greeting: bytes, looks: str) -> None:
    with _something_else(_answer_as(greeting)) as endpoint:
        assert refused("runs", "--endpoint", endpoint) == (
            f"what listens at {endpoint} is something else: the other side does not speak Rallypoint's protocol: {looks}"
        )


def test_an_http_server_is_named_at_once() -> None:
    """It waits for the end of a request, as most do, and so says nothing to a node."""
    began = time.monotonic()
    refused("runs", "--endpoint", f"127.0.0.1:{free_port()}", code=ExitCode.UNREACHABLE)
    starting_s = time.monotonic() - began
    with http_server() as place:
        began = time.monotonic()
        sentence = refused("runs", "--endpoint", place, code=ExitCode.UNREACHABLE)
        took_s = time.monotonic() - began
    assert sentence == f"no rallypoint server is at {place}: an HTTP server is there; use another port"
    assert took_s < starting_s + ANSWER_TIMEOUT_S, "it does not wait for an answer that cannot come"


def test_an_ipv6_address_stands_in_brackets() -> None:
    port = free_port()
    assert refused("runs", "--endpoint", f"[::1]:{port}").startswith(f"[::1]:{port} cannot be reached: ")


def test_something_else_hangs_up() -> None:
    """As torch's TCPStore does with callers that do not open with its own magic number."""
    with _something_else(lambda connection: connection.recv(1)) as endpoint:
        assert refused("runs", "--endpoint", endpoint) == (
            f"{endpoint} closed the connection without a word: it may be something else, such as torch's TCPStore, or a "
            f"server that is just ending"
        )


def test_something_else_says_nothing() -> None:
    with _something_else(_until_gone) as endpoint:
        assert refused("runs", "--endpoint", endpoint) == (
            f"{endpoint} took the connection and then said nothing for 3 s: it may be something else, such as a web server "
            f"or torch's TCPStore, or a server that hangs"
        )


def _moment(iso: str) -> datetime:
    moment = datetime.fromisoformat(iso)
    assert moment.tzinfo is not None, "a time without its offset says nothing"
    return moment


def _until(ask: Callable[[], str], is_so: Callable[[str], bool]) -> str:
    """Ask until the answer is as expected; each question is a process of its own, so nobody spins."""
    told, deadline = ask(), time.monotonic() + LIMIT_S
    while not is_so(told) and time.monotonic() < deadline:
        told = ask()
    assert is_so(told), told
    return told
