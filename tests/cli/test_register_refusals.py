"""Endpoints at which there is nothing, or something else: each gets one sentence that says what to do."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import pytest

from rallypoint.cli.exit_codes import ExitCode
from rallypoint.record import encode
from rallypoint.stores import StoreServer, TcpStore, listen
from rallypoint.stores.tcp.wire import Query
from tests.support.cli_processes import answer, cli, free_port, http_server, refused
from tests.support.elected_service import serving
from tests.support.etcd_servers import shared

QUESTIONS = [("runs",), ("status",), ("status", "llama"), ("close", "llama"), ("evict", "llama", "node1")]
every_question = pytest.mark.parametrize("question", QUESTIONS, ids=" ".join)


# Nothing is there -----------------------------------------------------------------------------------------------------


@every_question
def test_no_store_is_there(question: tuple[str, ...]) -> None:
    port = free_port()
    assert refused(*question, "--endpoint", f"c10d://127.0.0.1:{port}") == (
        f"no c10d store answers at 127.0.0.1:{port}: Connection refused; is the node that serves it running, and does its "
        f"port let you in?"
    )


@every_question
def test_no_file_is_there_and_none_is_made(question: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "store"
    assert refused(*question, "--endpoint", f"file://{path}") == (
        f"the store file {path} cannot be read: there is no such file; give the path that the nodes were given, on a "
        f"machine that shares the file with them"
    )
    assert not path.exists()


def test_no_etcd_is_there() -> None:
    port = free_port()
    said = refused("runs", "--endpoint", f"etcd-v2://127.0.0.1:{port}")
    assert said.startswith(f"etcd at etcd-v2://127.0.0.1:{port} is not reached: ")
    assert "Connection refused" in said


# Something else is there ----------------------------------------------------------------------------------------------


def test_an_http_server_is_no_c10d_store() -> None:
    with http_server() as place:
        said = refused("runs", "--endpoint", f"c10d://{place}")
    assert said == f"no c10d store answers at {place}; an HTTP server is there: use another port"


def test_a_web_server_is_no_etcd() -> None:
    with http_server() as place:
        said = refused("runs", "--endpoint", f"etcd-v2://{place}")
    assert said.startswith(f"etcd at etcd-v2://{place} cannot be used: ")


@every_question
def test_a_rallypoint_server_is_no_c10d_store(endpoint: str, question: tuple[str, ...]) -> None:
    assert refused(*question, "--endpoint", f"c10d://{endpoint}") == (
        f"a rallypoint server is at {endpoint}, and no c10d store: write the endpoint as {endpoint}, without c10d://"
    )


def test_a_c10d_store_is_no_rallypoint_server() -> None:
    from torch.distributed import TCPStore

    with TcpStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) as ours:
        torchs = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=30), wait_for_workers=False)
        for port in (ours.port, torchs.port):
            for question in (("runs",), ("close", "llama")):
                assert refused(*question, "--endpoint", f"127.0.0.1:{port}") == (
                    f"a c10d store is at 127.0.0.1:{port}, and no rallypoint server: write the endpoint as "
                    f"c10d://127.0.0.1:{port}"
                )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"#!/bin/sh\n", "it is a store file of neither Rallypoint's nor torch's, as it begins with b'#!/bin/sh\\n'"),
        (b"rallypoint store file, format 9\n", "it was written by another version of Rallypoint"),
    ],
    ids=["something else", "another version"],
)
def test_another_kind_of_file(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "store"
    path.write_bytes(content)
    assert f"the store file {path} cannot be read: {words}" in refused("runs", "--endpoint", f"file://{path}")
    assert path.read_bytes() == content


def test_a_folder_is_no_store_file(tmp_path: Path) -> None:
    assert "it is no regular file" in refused("runs", "--endpoint", f"file://{tmp_path}")


# A store that hangs up -----------------------------------------------------------------------------------------------


@contextmanager
def _store_that_hangs_up(query: Query, times: int = 1) -> Iterator[tuple[int, TcpStore]]:
    """A store behind a relay that ends the connection when this is asked for so many times: its port, and a way past it."""
    server = StoreServer()
    behind = listen("127.0.0.1", 0)
    port = behind.getsockname()[1]
    server.start_in_thread(behind)
    asked = 0

    def is_enough(data: bytes) -> bool:
        nonlocal asked
        asked += data[0] == query
        return data[0] == query and asked >= times

    def relay(near: socket.socket) -> None:
        with near, socket.create_connection(("127.0.0.1", port)) as far:
            answers = threading.Thread(target=_pass_on, args=(far, near))
            answers.start()
            with suppress(OSError):
                while (data := near.recv(65536)) and not is_enough(data):
                    far.sendall(data)
            far.shutdown(socket.SHUT_RDWR)
            answers.join()

    with socket.create_server(("127.0.0.1", 0)) as front:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    relay(front.accept()[0])

        thread = threading.Thread(target=accept)
        thread.start()
        with TcpStore("127.0.0.1", port, wait_for_workers=False) as store:
            yield front.getsockname()[1], store
        front.shutdown(socket.SHUT_RDWR)
        thread.join()
    server.stop()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_RDWR)


def test_a_store_that_cannot_list_is_asked_for_one_run() -> None:
    """As servers of older torch do."""
    with _store_that_hangs_up(Query.LIST_KEYS) as (port, _):
        at = ("--endpoint", f"c10d://127.0.0.1:{port}")
        said = refused("runs", *at)
        assert said.startswith(f"the store at c10d://127.0.0.1:{port} does not list its keys, and so its runs: ")
        assert said.endswith(f"name the run, as in `rallypoint status RUN --endpoint c10d://127.0.0.1:{port}`")
        assert refused("status", "llama", *at) == f"there is no run 'llama' at c10d://127.0.0.1:{port}"


def test_a_run_is_closed_though_its_store_is_gone_before_anybody_asks_for_its_status() -> None:
    with _store_that_hangs_up(Query.CHECK, times=3) as (port, store), serving("llama") as record:
        store.set("torch.rendezvous.llama", b64encode(encode(record)))
        at = ("--endpoint", f"c10d://127.0.0.1:{port}")
        assert answer("close", "llama", *at) == "run 'llama': closed\n"


# etcd's API v2 --------------------------------------------------------------------------------------------------------


def test_an_etcd_without_the_api_v2() -> None:
    said = refused("runs", "--endpoint", f"etcd-v2://{shared(v2=False).endpoint}")
    assert "does not speak the API v2: start it with --enable-v2" in said


def test_certificates_are_for_https() -> None:
    cluster = shared(tls=True)
    tls = cluster.tls
    assert tls is not None
    at = ("--endpoint", f"etcd-v2://{cluster.endpoint}")
    files = ("--cacert", tls.ca, "--cert", tls.cert, "--key", tls.key)
    assert refused("status", "other", *at, *files) == f"there is no run 'other' at etcd-v2://{cluster.endpoint}"
    assert "is http what it speaks?" in refused("runs", *at)
    said = refused("runs", *at, "--cacert", "/no/such/file")
    assert said == "The cacert '/no/such/file' cannot be read: No such file or directory."
    assert "'key' is given and 'cert' is not" in refused("runs", *at, "--key", tls.key)


def test_without_python_etcd() -> None:
    program = (
        "import sys\n"
        "sys.modules['etcd'] = None\n"
        "from rallypoint.cli import main\n"
        "sys.exit(main(['runs', '--endpoint', 'etcd-v2://127.0.0.1:1']))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == ExitCode.USAGE
    assert done.stderr.startswith(
        "rallypoint runs: etcd's API v2 needs the package python-etcd, which cannot be imported"
    )
    assert done.stderr.count("\n") == 1


# What cannot be read --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("endpoint", "options", "sentence"),
    [
        ("c10d://a:b:c", (), "it has several colons"),
        ("c10d://:1", (), "the host '' is neither a name nor an IPv4 address"),
        ("file://store", (), "names no file: write file:///folder/file, with three slashes"),
        ("file:///folder/", (), "names no file"),
        ("etcd-v2://a:many", (), "the port 'many' is no number"),
        (
            "etcd-v2://127.0.0.1:1",
            ("--username", "alice"),
            "--username is for etcd://, and etcd-v2:// takes only --cacert, --cert, --key: leave it out",
        ),
        (
            "c10d://127.0.0.1:1",
            ("--cacert", "ca.crt"),
            "--cacert is for etcd://, and c10d:// takes none of these options: leave it out",
        ),
        (
            "file:///store",
            ("--etcd-prefix", "/x"),
            "--etcd-prefix is for etcd://, and file:// takes none of these options: leave it out",
        ),
    ],
)
def test_what_does_not_fit_is_refused(endpoint: str, options: tuple[str, ...], sentence: str) -> None:
    assert sentence in refused("runs", "--endpoint", endpoint, *options)


def test_an_unknown_scheme_is_refused_with_the_known_ones() -> None:
    done = cli("status", "--endpoint", "etcd-v3://127.0.0.1:2379")
    assert done.returncode == 2
    assert "begins with etcd-v3://, which is unknown here. Did you mean 'etcd-v2'?" in done.stderr
    assert "Write host:port for a server, or one of etcd://, etcds://, etcd-v2://, c10d://, file://." in done.stderr


def test_a_store_that_was_stopped_is_not_waited_for_long() -> None:
    """It takes connections, as the kernel does that for it, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        said = refused("runs", "--endpoint", f"c10d://127.0.0.1:{port}")
    assert said.startswith(
        f"no c10d store answers at 127.0.0.1:{port}: something took the connection and gave no answer; "
    )
