"""What can be wrong around etcd when a node joins: a sentence that says what to do, or no harm at all."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.etcd.servers import HOST, Certificates, Cluster, shared
from tests.etcd_client.stage import enable_users, etcd
from tests.etcd_v3.harness import EtcdStage, Observer, by_rank
from tests.waiting import until


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
def test_a_wrong_password_is_said_at_once_and_a_right_one_lets_in(stage: EtcdStage, run: str, version: str) -> None:
    with etcd(version, 3) as cluster:
        enable_users(cluster)
        a, b = stage.nodes("a", "b")
        a.join(cluster.endpoints, 1, run, user=("alice", "wrong"))
        said = a.failed("RendezvousConnectionError")
        assert "etcd refuses the user's name or password" in said
        assert any(member.endpoint in said for member in cluster.members)
        a.join(cluster.endpoints, 1, run)
        assert "etcd wants a user, and none was given" in a.failed("RendezvousConnectionError")
        a.join(cluster.endpoints, 1, run, user=("alice", "wonderland"))
        assert "no permission for that key range" in a.failed("RendezvousConnectionError")
        for node in (a, b):
            node.join(cluster.endpoints, 2, run, user=("alice", "wonderland"), prefix="alice/runs")
        by_rank([a, b])


@pytest.mark.parametrize("version", ["3.4", pytest.param("3.5", marks=pytest.mark.soak)])
def test_a_certificate_of_somebody_else_is_named(stage: EtcdStage, run: str, tmp_path: Path, version: str) -> None:
    cluster = shared(version, 3, tls=True)
    files, stranger = cluster.tls, Certificates(tmp_path)
    assert files is not None
    (node,) = stage.nodes("a")
    node.join(cluster.endpoints, 1, run, cacert=stranger.ca, cert=files.cert, key=files.key)
    said = node.failed("RendezvousConnectionError")
    for member in cluster.members:
        assert f"{member.endpoint}: its certificate was not issued by an authority in ca_file" in said
    node.join(cluster.endpoints, 1, run, cacert=files.ca, cert=files.cert, key=files.key)
    node.placed(size=1)


def test_a_port_that_is_not_etcd_is_named(stage: EtcdStage, run: str, web: str) -> None:
    (node,) = stage.nodes("a")
    node.join(web, 1, run)
    assert f"{web}: something listens there that is not etcd" in node.failed("RendezvousConnectionError")


def test_unreachable_members_first_in_the_list_do_no_harm(
    stage: EtcdStage, cluster: Cluster, run: str, web: str, silent: str
) -> None:
    a, b = stage.nodes("a", "b")
    a.join(f"{silent},{cluster.endpoint}", 2, run)
    b.join(f"127.0.0.1:1,{web},no-such-host.invalid:2379,{cluster.endpoints}", 2, run)
    by_rank([a, b])


def test_an_etcd_that_starts_late_is_waited_for(stage: EtcdStage, run: str) -> None:
    with etcd("3.4", 1) as cluster:
        cluster.kill()
        a, b = stage.nodes("a", "b")
        for node in (a, b):
            node.join(cluster.endpoints, 2, run)
            node.expect("joins")
        cluster.start()
        by_rank([a, b])


def test_strange_keys_below_a_run_are_no_harm(stage: EtcdStage, cluster: Cluster, run: str, observer: Observer) -> None:
    """What nobody of us wrote is no node, no wish and no world."""
    client, keys = observer.client, observer.keys
    client.put(keys.node("ghost.1"), b"\xff not json")
    client.put(keys.said + "elsewhere", "x")
    client.put(keys.wish("w"), "{}")
    client.put(keys.told("ghost.2"), "x")
    a, b = stage.nodes("a", "b")
    for node in (a, b):
        node.join(cluster.endpoints, 2, run)
    by_rank([a, b], size=2)
    until(lambda: client.get(keys.wish("w")) is None, "the wish is gone")
    for node in (a, b):
        node.undisturbed()


def test_a_board_that_cannot_be_read_is_said_with_what_to_do(
    stage: EtcdStage, cluster: Cluster, run: str, observer: Observer
) -> None:
    observer.client.put(observer.keys.board, "nonsense")
    (node,) = stage.nodes("a")
    node.join(cluster.endpoints, 1, run, join_timeout=3.0)
    said = node.failed("RendezvousConnectionError")
    assert "delete its keys, or use another run id, to start anew" in said
