"""What can be wrong around etcd when a node joins: a sentence that says what to do, or no harm at all."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from tests.support.etcd_node_processes import EtcdProcesses, Observer, by_rank, form, says, undisturbed
from tests.support.etcd_servers import HOST, Certificates, Cluster, shared
from tests.support.etcd_tools import enable_users, etcd
from tests.support.waiting import until


@pytest.fixture
def web() -> Iterator[str]:
    """A web server."""
    with http.server.ThreadingHTTPServer((HOST, 0), http.server.BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"{HOST}:{server.server_port}"
        server.shutdown()


@pytest.fixture
def silent() -> Iterator[str]:
    """Connections are taken, and nothing is ever said: as good as a packet filter that drops everything."""
    with socket.create_server((HOST, 0)) as listener:
        yield f"{HOST}:{listener.getsockname()[1]}"


@pytest.mark.parametrize("version", ["3.5", pytest.param("3.4", marks=pytest.mark.soak)])
def test_a_wrong_password_is_said_at_once_and_a_right_one_lets_in(
    processes: EtcdProcesses, run: str, version: str, tmp_path: Path
) -> None:
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text("wonderland\n", encoding="utf-8")
    wrong.write_text("rabbit\n", encoding="utf-8")
    with etcd(version, 3) as cluster:
        enable_users(cluster)
        a, b = processes.nodes("a", "b")
        a.join(cluster.endpoints, 1, run, username="alice", password_file=str(wrong))
        said = a.failed("RendezvousConnectionError")
        assert "etcd refuses the user's name or password" in said
        assert "rabbit" not in said
        assert any(member.endpoint in said for member in cluster.members)
        a.join(cluster.endpoints, 1, run)
        said = a.failed("RendezvousConnectionError")
        assert "etcd wants a user, and none was given" in said
        alice = {"username": "alice", "password_file": str(right)}
        a.join(cluster.endpoints, 1, run, **alice)
        assert "no permission for that key range" in a.failed("RendezvousConnectionError")
        for node in (a, b):
            node.join(cluster.endpoints, 2, run, etcd_prefix="alice/runs", **alice)
        by_rank([a, b])


@pytest.mark.parametrize("version", ["3.4", pytest.param("3.5", marks=pytest.mark.soak)])
def test_a_certificate_of_somebody_else_is_named(
    processes: EtcdProcesses, run: str, tmp_path: Path, version: str
) -> None:
    cluster = shared(version, 3, tls=True)
    files, stranger = cluster.tls, Certificates(tmp_path)
    assert files is not None
    (node,) = processes.nodes("a")
    endpoints = f"etcds://{cluster.endpoints}"
    node.join(endpoints, 1, run, cacert=stranger.ca, cert=files.cert, key=files.key)
    said = node.failed("RendezvousConnectionError")
    for member in cluster.members:
        assert f"{member.endpoint}: its certificate was not issued by an authority in the CA file" in said
    node.join(endpoints, 1, run, cacert=files.ca, cert=files.cert, key=files.key)
    node.placed(size=1)


def test_a_port_that_is_not_etcd_is_named(processes: EtcdProcesses, run: str, web: str) -> None:
    (node,) = processes.nodes("a")
    node.join(web, 1, run)
    assert f"{web}: something listens there that is not etcd" in node.failed("RendezvousConnectionError")


def test_an_etcd_that_is_not_there_is_waited_for_and_each_member_is_named(processes: EtcdProcesses, run: str) -> None:
    (node,) = processes.nodes("a")
    node.join("127.0.0.1:1,no-such-host.invalid:2379", 1, run, join_timeout=3.0)
    said = node.failed("RendezvousTimeoutError")
    assert "127.0.0.1:1: nothing listens there (connection refused)" in said
    assert "no-such-host.invalid:2379: the name is not known (DNS)" in said


@pytest.mark.parametrize("version", ["3.5", pytest.param("3.4", marks=pytest.mark.soak)])
def test_unreachable_members_first_in_the_list_do_no_harm(
    processes: EtcdProcesses, run: str, web: str, silent: str, version: str
) -> None:
    cluster = shared(version, 3)
    a, b = processes.nodes("a", "b")
    a.join(f"{silent},{cluster.endpoint}", 2, run)
    b.join(f"127.0.0.1:1,{web},no-such-host.invalid:2379,{cluster.endpoints}", 2, run)
    by_rank([a, b])


@pytest.mark.parametrize("version", ["3.4", pytest.param("3.5", marks=pytest.mark.soak)])
def test_an_etcd_that_starts_late_is_waited_for(processes: EtcdProcesses, run: str, version: str) -> None:
    with etcd(version, 3) as cluster:
        cluster.kill()
        a, b = processes.nodes("a", "b")
        for node in (a, b):
            node.join(cluster.endpoints, 2, run)
            node.expect("joins")
        until(partial(says, a, "the register does not tell who serves"), "it says what it waits for")
        cluster.start()
        by_rank([a, b])


def test_a_record_that_cannot_be_read_is_said_with_what_to_do_and_not_overwritten(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer
) -> None:
    observer.client.put(observer.keys.record, "nonsense")
    a, b = processes.nodes("a", "b")
    a.join(cluster.endpoints, 1, run, join_timeout=3.0)
    said = a.failed("RendezvousTimeoutError")
    assert "if nothing else uses that name, delete it" in said
    found = observer.client.get(observer.keys.record)
    assert found is not None
    assert found.value == b"nonsense"
    b.join(cluster.endpoints, 1, run)
    until(partial(says, b, "delete it"), "it says so while it waits")
    observer.client.delete(observer.keys.record)
    b.placed(size=1)


def test_strange_keys_below_a_run_are_no_harm(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer
) -> None:
    client, keys = observer.client, observer.keys
    for key in ("claims/x", "claims/0000000000000009", "records", "record/more", "out/board"):
        client.put(keys.run + key, b"\xff not json")
    nodes = form(processes, cluster.endpoints, run, "a", "b", nodes=2)
    undisturbed(nodes)
    assert client.get(keys.run + "records") is not None


@pytest.mark.parametrize("key", ["leader", "in/nodes/node.1"], ids=["one that leads", "between two that lead"])
def test_nodes_of_version_0_1_get_a_sentence_and_joining_works_once_their_keys_have_expired(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer, key: str
) -> None:
    lease = observer.client.grant(2)
    observer.client.put(observer.keys.run + key, "node.1", lease=lease.id)
    a, b = processes.nodes("a", "b")
    a.join(cluster.endpoints, 1, run, join_timeout=2.0)
    said = a.failed("RendezvousTimeoutError")
    assert "keys of Rallypoint 0.1 lie under" in said
    assert "end that job, or use another run id" in said
    for node in (a, b):
        node.join(cluster.endpoints, 2, run)
        until(partial(says, node, "Rallypoint 0.1"), "it says so while it waits")
    assert observer.record() is None, "nothing was claimed meanwhile"
    lease.release()  # as if the last of its nodes had ended: nobody renews it
    by_rank([a, b])
    assert observer.client.get(observer.keys.run + key) is None


def test_what_version_0_1_left_of_a_run_that_is_over_gets_a_sentence_and_is_no_harm(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer
) -> None:
    """Its board outlives its nodes by minutes: nobody waits for that."""
    observer.client.put(observer.keys.old_board, "{}", lease=observer.client.grant(60).id)
    (node,) = form(processes, cluster.endpoints, run, "a", nodes=1)
    said = "".join(node.errors)
    assert said.count(f"keys of Rallypoint 0.1 lie under {observer.keys.run}, and no node of it is there") == 1
    assert observer.client.get(observer.keys.old_board) is not None, "it is left to expire"


def test_something_else_that_answers_where_the_server_was_is_no_reason_to_give_up(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer
) -> None:
    """The port of a killed server is reused by a stranger at once (rule 17a)."""
    nodes = form(processes, cluster.endpoints, run, "a", "b", "c", nodes="2:3")
    server = observer.server(nodes)
    port = server.standing()["port"]
    server.kill()
    stranger = socket.socket()
    stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    with stranger:
        stranger.bind((HOST, port))
        stranger.listen()
        rest = [node for node in nodes if node is not server]
        for node in rest:
            node.changed()
            node.again()
        by_rank(rest, round=2)


@pytest.mark.parametrize("banner", [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_a_stranger_that_speaks_where_the_claim_says_the_server_is_keeps_nobody_out(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer, banner: bytes
) -> None:
    """Rule 17a: it is never final; once the lease of the claim has ended, a node that waited claims."""
    (host,) = nodes = processes.nodes("host")
    host.join(cluster.endpoints, 2, run)
    until(lambda: observer.claims() != (), "it serves")
    port = observer.server(nodes).standing()["port"]
    host.kill()
    with socket.create_server((HOST, port), reuse_port=False) as stranger:
        threading.Thread(target=_greet, args=(stranger, banner), daemon=True).start()
        a, b = processes.nodes("a", "b")
        for node in (a, b):
            node.join(cluster.endpoints, 2, run)
        by_rank([a, b])


def _greet(listener: socket.socket, banner: bytes) -> None:
    """Say the same to everybody, until the listener is closed."""
    with suppress(OSError):
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(banner)
                connection.recv(1)


def test_an_address_that_is_no_name_is_said_and_nobody_waits_for_this_node_to_serve(
    processes: EtcdProcesses, cluster: Cluster, run: str
) -> None:
    odd = processes.node("odd")
    odd.join(cluster.endpoints, 1, run, local_addr="node..example", join_timeout=2.0)
    assert "cannot listen on node..example" in odd.failed("RendezvousTimeoutError")
