"""Behind `etcd grpc-proxy`, which gives watches numbers of its own and takes no notice of progress requests."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from rallypoint.etcd_client.conductor import Watcher

from rallypoint.etcd_client import EtcdClient, EtcdRefusedError, Outcome, Resync, User, Watch, compare, get_op, put_op
from rallypoint.etcd_client import conductor as conducting
from rallypoint.etcd_client.messages import RangeResponse
from tests.etcd.servers import Cluster, Member
from tests.etcd_client.stage import SOON_S, behind_proxy, enable_users, etcd, user_of
from tests.etcd_client.test_watches import take
from tests.waiting import until

BOTH = ["3.5", pytest.param("3.4", marks=pytest.mark.soak)]


@pytest.fixture(scope="module", params=BOTH)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def cluster(version: str) -> Iterator[Cluster]:
    with etcd(version) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def proxy(cluster: Cluster, version: str) -> Iterator[Member]:
    with behind_proxy(cluster, version) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: Member) -> Iterator[EtcdClient]:
    with EtcdClient(proxy.endpoint, timeout_s=SOON_S) as client:
        yield client


def _values(watch: Watch, count: int) -> list[bytes]:
    return [change.value for change in take(watch, count)]


def test_each_watch_gets_its_own_events(client: EtcdClient, prefix: str) -> None:
    names = ("a", "b", "c", "d")
    watches = {"a": client.watch(f"{prefix}a")}
    revision = client.put(f"{prefix}a", "a0").revision + 1
    assert _values(watches["a"], 1) == [b"a0"]
    # Asked for all at once: the proxy answers first to the one of a range that it has already.
    watches |= {name: client.watch(prefix + name, revision=revision) for name in names[1:]}
    again = client.watch(f"{prefix}a", revision=revision, previous=True)
    for name in names:
        client.put(prefix + name, f"{name}1")
    for name, watch in watches.items():
        assert _values(watch, 1) == [f"{name}1".encode()]
    assert _values(again, 1) == [b"a1"]
    # Closed and opened again: those that stay hear what is theirs, the others no more.
    watches.pop("b").close()
    watches["e"], watches["b"] = client.watch(f"{prefix}e"), client.watch(f"{prefix}b")
    for name in (*names, "e"):
        client.put(prefix + name, f"{name}2")
    for name, watch in watches.items():
        assert _values(watch, 1) == [f"{name}2".encode()]
        assert watch.get(timeout_s=0.1) is None
    for watch in (*watches.values(), again):
        watch.close()


def test_a_watch_that_is_refused_takes_nobody_elses_place(client: EtcdClient, prefix: str) -> None:
    good = client.watch(f"{prefix}good")
    bad = client.watch(f"{prefix}z", end=f"{prefix}a", revision=1)
    better = client.watch(f"{prefix}better")
    client.put(f"{prefix}better", "1")
    client.put(f"{prefix}good", "2")
    with pytest.raises(EtcdRefusedError, match="refuses to watch"):
        bad.get(timeout_s=SOON_S)
    assert _values(better, 1) == [b"1"]
    assert _values(good, 1) == [b"2"]
    for watch in (good, better):
        watch.close()


def test_a_quiet_watch_is_not_taken_for_hung(client: EtcdClient, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conducting, "_QUIET_S", 0.3)
    with client.watch(prefix) as watch:
        client.put(prefix, "1")
        assert _values(watch, 1) == [b"1"]
        watcher = client._open.part(Watcher)
        stream = watcher._stream
        assert stream is not None
        for _ in range(3):
            heard_at = stream.heard_at
            until(lambda then=heard_at: stream.heard_at > then, "a sign of life")  # type: ignore[misc]
        client.put(prefix, "2")
        assert _values(watch, 1) == [b"2"]
        assert watcher._stream is stream
        assert watch.trouble is None


def test_a_proxy_that_hangs_is_noticed_and_left(cluster: Cluster, version: str, prefix: str) -> None:
    with (
        behind_proxy(cluster, version) as proxy,
        EtcdClient([proxy.endpoint, cluster.endpoint], spread=False, timeout_s=SOON_S) as client,
        client.watch(prefix) as watch,
        client.watch(f"{prefix}other") as other,
    ):
        client.put(prefix, "1")
        assert _values(watch, 1) == [b"1"]
        proxy.pause()
        with user_of(cluster) as direct:
            direct.put(prefix, "2")
            direct.put(f"{prefix}other", "3")
        assert _values(watch, 1) == [b"2"]
        assert _values(other, 1) == [b"3"]
        client.put(prefix, "4")
        assert _values(watch, 1) == [b"4"]


def test_history_that_is_gone_is_said(client: EtcdClient, prefix: str) -> None:
    first = client.put(prefix, "1").revision
    last = client.put(prefix, "2").revision
    client.compact(last)
    with client.watch(prefix, revision=first) as watch, client.watch(f"{prefix}other") as other:
        resync = watch.get(timeout_s=SOON_S)
        assert isinstance(resync, Resync)
        assert [kv.value for kv in resync.kvs] == [b"2"]
        client.put(prefix, "3")
        client.put(f"{prefix}other", "4")
        assert _values(watch, 1) == [b"3"]
        assert _values(other, 1) == [b"4"]


def test_a_transaction_does_one_thing_or_the_other(client: EtcdClient, prefix: str) -> None:
    def swap(then: str) -> Outcome:
        put, read = put_op(prefix, then), get_op(prefix)
        return client.transaction([compare(prefix, create_revision=0)], [put], [read])

    assert swap("first").succeeded
    second = swap("second")
    assert not second.succeeded
    (found,) = second.answers
    assert isinstance(found, RangeResponse)
    assert [kv.value for kv in found.kvs] == [b"first"]


@pytest.mark.parametrize("ttl_s", [2, 5])
def test_leases_are_kept(client: EtcdClient, cluster: Cluster, prefix: str, ttl_s: int) -> None:
    leases = [client.grant(ttl_s) for _ in range(3)]
    for lease in leases:
        client.put(f"{prefix}{lease.id}", "x", lease=lease)
    start, troubles = time.monotonic(), set[str | None]()

    def is_over() -> bool:
        troubles.update(lease.trouble for lease in leases)
        return time.monotonic() > start + 3 * ttl_s

    until(is_over, "time passes")
    assert troubles == {None}
    assert not [lease for lease in leases if lease.lost.is_set() or lease.remaining_s() == 0]
    leases[0].revoke()
    with user_of(cluster) as direct:
        assert len(direct.range(prefix, prefix=True).kvs) == 2
        direct.revoke(leases[1].id)
        until(leases[1].lost.is_set, "it hears that it is lost")
    leases[2].revoke()


def test_users_behind_a_proxy(version: str) -> None:
    with etcd(version) as cluster, behind_proxy(cluster, version) as proxy:
        enable_users(cluster)
        with EtcdClient(proxy.endpoint, user=User("alice", "wonderland"), timeout_s=SOON_S) as alice:
            alice.put("alice/a", "1")
            with alice.watch("alice/", prefix=True) as watch, alice.grant(2) as lease:
                alice.put("alice/b", "2", lease=lease)
                assert _values(watch, 1) == [b"2"]
