"""Behind `etcd grpc-proxy`, which answers creations of watches in any order and ignores progress requests."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from rallypoint.etcd_client import EtcdClient, Resync, watch_stream
from tests.support.etcd_servers import VERSIONS, Cluster
from tests.support.etcd_tools import SOON_S, behind_proxy, compact, etcd, user_of, values
from tests.support.waiting import until


@pytest.fixture(scope="module", params=VERSIONS)
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with etcd(request.param) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: Cluster) -> Iterator[EtcdClient]:
    with behind_proxy(cluster) as proxy, EtcdClient(proxy.endpoint, timeout_s=SOON_S) as client:
        yield client


def test_each_watch_gets_its_own_events(client: EtcdClient, prefix: str) -> None:
    names = ("a", "b", "c", "d")
    watches = {"a": client.watch(f"{prefix}a")}
    revision = client.put(f"{prefix}a", "a0").revision + 1
    assert values(watches["a"], 1) == [b"a0"]
    # The proxy answers first to the one of a range that it has already.
    watches |= {name: client.watch(prefix + name, revision=revision) for name in names[1:]}
    again = client.watch(f"{prefix}a", revision=revision)
    watches.pop("b").close()
    watches["b"] = client.watch(f"{prefix}b")
    for name in names:
        client.put(prefix + name, f"{name}1")
    for name, watch in watches.items():
        assert values(watch, 1) == [f"{name}1".encode()]
        assert watch.get(timeout_s=0.1) is None
    assert values(again, 1) == [b"a1"]


def test_a_quiet_watch_is_not_taken_for_hung(client: EtcdClient, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_stream, "_QUIET_S", 0.3)
    with client.watch(prefix) as watch:
        client.put(prefix, "1")
        assert values(watch, 1) == [b"1"]
        stream = watch._watch_stream._stream
        assert stream is not None
        start = time.monotonic()
        until(lambda: stream.heard_at > start + 1, "signs of life")
        client.put(prefix, "2")
        assert values(watch, 1) == [b"2"]
        assert watch._watch_stream._stream is stream


def test_history_that_is_gone_is_said(client: EtcdClient, prefix: str) -> None:
    first = client.put(prefix, "1").revision
    compact(client, client.put(prefix, "2").revision)
    with client.watch(prefix, revision=first) as watch:
        resync = watch.get(timeout_s=SOON_S)
        assert isinstance(resync, Resync)
        assert [kv.value for kv in resync.kvs] == [b"2"]
        client.put(prefix, "3")
        assert values(watch, 1) == [b"3"]


def test_leases_are_kept(client: EtcdClient, cluster: Cluster) -> None:
    lease, doomed = client.grant(2), client.grant(2)
    start = time.monotonic()
    until(lambda: time.monotonic() > start + 5, "time passes")
    assert client.time_to_live(lease).ttl > 0
    assert not lease.lost.is_set()
    with user_of(cluster) as direct:
        direct.revoke(doomed.id)
    until(doomed.lost.is_set, "it hears that it is lost")
    lease.revoke()
