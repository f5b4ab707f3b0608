"""Certificates on one side or both, together with users, and when a member dies; and files that change meanwhile."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rallypoint.etcd_client import EtcdAuthError, EtcdClient, EtcdHopelessError, Tls, User
from tests.etcd.servers import Certificates, shared
from tests.etcd_client.stage import SOON_S, enable_users, etcd
from tests.etcd_client.test_watches import take
from tests.waiting import until


def _one_way(files: Certificates) -> Tls:
    return Tls(files.ca)


def _mutual(files: Certificates) -> Tls:
    return Tls(files.ca, files.cert, files.key)


@pytest.mark.parametrize("version", ["3.5", pytest.param("3.4", marks=pytest.mark.soak)])
@pytest.mark.parametrize("one_way", [True, False])
def test_certificates_and_users_together(version: str, one_way: bool) -> None:
    with etcd(version, tls=True, one_way=one_way) as cluster:
        assert cluster.tls is not None
        tls = (_one_way if one_way else _mutual)(cluster.tls)
        with EtcdClient(cluster.endpoint, tls=tls, timeout_s=SOON_S) as client, client.watch("a") as watch:
            client.put("a", "1")
            assert [change.value for change in take(watch, 1)] == [b"1"]
            client.grant(5).revoke()
        enable_users(cluster)
        alice = EtcdClient(cluster.endpoint, tls=tls, user=User("alice", "wonderland"), timeout_s=SOON_S)
        with alice, alice.watch("alice/", prefix=True) as watch:
            lease = alice.grant(2)
            alice.put("alice/a", "2", lease=lease)
            assert [change.value for change in take(watch, 1)] == [b"2"]
            granted = lease.renewal.until
            until(lambda: lease.renewal.until > granted, "it is renewed")
            with pytest.raises(EtcdAuthError, match="no permission"):
                alice.put("bob/a", "1")
            lease.revoke()


@pytest.mark.parametrize("one_way", [True, False])
def test_a_member_that_dies_is_left_for_another_with_certificates_too(one_way: bool) -> None:
    with etcd("3.5", 3, tls=True, one_way=one_way) as cluster:
        assert cluster.tls is not None
        tls = (_one_way if one_way else _mutual)(cluster.tls)
        client = EtcdClient(cluster.endpoints, tls=tls, spread=False, timeout_s=SOON_S)
        with client, client.watch("a") as watch:
            lease = client.grant(5)
            client.put("a", "1", lease=lease)
            assert [change.value for change in take(watch, 1)] == [b"1"]
            cluster.members[0].kill()
            client.get("a")
            client.put("a", "2", lease=lease)
            assert [change.value for change in take(watch, 1)] == [b"2"]
            granted = lease.renewal.until
            until(lambda: lease.renewal.until > granted, "it is renewed elsewhere")
            assert not lease.lost.is_set()
            lease.revoke()


def test_certificates_that_are_replaced_under_a_running_client_are_used(tmp_path: Path) -> None:
    with etcd(tls=True) as cluster:
        (member,), theirs = cluster.members, cluster.tls
        assert theirs is not None
        mine = Tls(*(str(tmp_path / name) for name in ("ca", "cert", "key")))
        _copy(theirs, mine)
        client = EtcdClient(cluster.endpoint, tls=mine, timeout_s=SOON_S)
        with client, client.watch("a") as watch:
            lease = client.grant(10)
            client.put("a", "1", lease=lease)
            assert [change.value for change in take(watch, 1)] == [b"1"]
            member.kill()
            new = Certificates(_folder(tmp_path / "new"))
            _copy(new, mine)
            _copy(new, Tls(theirs.ca, theirs.cert, theirs.key))
            member.start()
            client.put("a", "2", lease=lease)
            assert [change.value for change in take(watch, 1)] == [b"2"]
            granted = lease.renewal.until
            until(lambda: lease.renewal.until > granted, "it is renewed")
            lease.revoke()


def test_certificates_that_are_refused_are_read_again_before_all_hope_is_lost(tmp_path: Path) -> None:
    theirs = shared(tls=True).tls
    assert theirs is not None
    mine = Tls(*(str(tmp_path / name) for name in ("ca", "cert", "key")))
    stranger = Certificates(_folder(tmp_path / "stranger"))

    def late() -> EtcdClient:
        """A client that has read the wrong ones, and the right ones take their place before it asks."""
        _copy(stranger, mine)
        client = EtcdClient(shared(tls=True).endpoint, tls=mine, timeout_s=SOON_S)
        _copy(theirs, mine)
        return client

    with late() as client:
        client.put("late", "1")
    with late() as client, client.watch("late", revision=1) as watch:
        assert [change.value for change in take(watch, 1)] == [b"1"]
    with late() as client:
        _copy(stranger, mine)
        with pytest.raises(EtcdHopelessError, match="ca_file"):
            client.put("late", "1")


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def _copy(source: Certificates, target: Tls) -> None:
    for old, new in ((source.ca, target.ca_file), (source.cert, target.cert_file), (source.key, target.key_file)):
        assert new is not None
        shutil.copy(old, new)
