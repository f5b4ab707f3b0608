"""Users and certificates: who is let in, and what is said to who is not."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.etcd_client import (
    EtcdAuthError,
    EtcdClient,
    EtcdError,
    EtcdHopelessError,
    EtcdRefusedError,
    EtcdUnavailableError,
    Tls,
    User,
)
from tests.support.etcd_servers import VERSIONS, Certificates, Cluster, shared
from tests.support.etcd_tools import SOON_S, enable_users, etcd, etcdctl, values
from tests.support.waiting import until


@pytest.fixture(scope="module", params=VERSIONS)
def guarded(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with etcd(request.param) as cluster:
        enable_users(cluster)
        yield cluster


def of(cluster: Cluster, user: User | None) -> EtcdClient:
    return EtcdClient(cluster.endpoints, user=user, timeout_s=SOON_S)


def test_a_user_may_what_its_roles_allow(guarded: Cluster) -> None:
    with of(guarded, User("alice", "wonderland")) as alice, of(guarded, User("root", "secret")) as root:
        alice.put("alice/a", "1")
        with pytest.raises(EtcdAuthError, match=r"no permission for that key range \(Put at"):
            alice.put("bob/a", "1")
        with alice.watch("alice/", prefix=True) as watch:
            root.put("alice/b", "2")
            assert values(watch, 1) == [b"2"]
        with (
            alice.watch("bob/", prefix=True, revision=1) as watch,
            pytest.raises(EtcdAuthError, match="refuses to watch"),
        ):
            watch.get(timeout_s=SOON_S)
        # Others that share the stream are not harmed.
        with alice.watch("alice/", prefix=True) as watch:
            root.put("alice/b", "3")
            assert values(watch, 1) == [b"3"]


def test_a_wrong_password_is_final_and_said_at_once(guarded: Cluster) -> None:
    start = time.monotonic()
    with of(guarded, User("alice", "wrong")) as client:
        with pytest.raises(EtcdAuthError, match=r"refuses the user's name or password") as refusal:
            client.get("alice/a")
        assert "wrong" not in str(refusal.value)
        with client.watch("alice/a", revision=1) as watch, pytest.raises(EtcdAuthError):
            watch.get(timeout_s=SOON_S)
    with of(guarded, User("nobody", "x")) as client, pytest.raises(EtcdAuthError):
        client.get("alice/a")
    assert time.monotonic() < start + 10


def test_who_gives_no_user_is_told_to(guarded: Cluster) -> None:
    with (
        of(guarded, None) as client,
        pytest.raises(EtcdAuthError, match=r"wants a user.*give the name and the password"),
    ):
        client.get("alice/a")


def test_roles_may_change_under_a_running_client(guarded: Cluster) -> None:
    with of(guarded, User("alice", "wonderland")) as alice:
        alice.put("alice/a", "1")
        root = "root:secret"
        etcdctl(guarded, "role", "grant-permission", "alices", "readwrite", "more/", "--prefix=true", user=root)
        alice.put("more/a", "1")
        lease = alice.grant(2)
        alice.put("alice/leased", "1", lease=lease)
        lease.revoke()
        assert alice.get("alice/leased") is None


def test_a_user_is_no_harm_where_none_is_needed() -> None:
    with of(shared(), User("alice", "x")) as client:
        client.put("users/off", "1")
        assert client.get("users/off") is not None


# Certificates ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=VERSIONS)
def encrypted(request: pytest.FixtureRequest) -> Cluster:
    return shared(request.param, tls=True)


def of_tls(cluster: Cluster, tls: Tls | None, scheme: str = "") -> EtcdClient:
    return EtcdClient(scheme + cluster.endpoints, tls=tls, timeout_s=2)


def test_mutual_tls(encrypted: Cluster) -> None:
    files = encrypted.tls
    assert files is not None
    with of_tls(encrypted, Tls(files.ca, files.cert, files.key), "https://") as client, client.watch("a") as watch:
        client.put("a", "1")
        assert values(watch, 1) == [b"1"]
        client.grant(5).revoke()


def test_what_does_not_fit_is_named(encrypted: Cluster, tmp_path: Path) -> None:
    files = encrypted.tls
    assert files is not None
    stranger = Certificates(tmp_path)
    cases: list[tuple[Tls | None, str]] = [
        (Tls(stranger.ca, files.cert, files.key), "its certificate was not issued by an authority in the CA file"),
        (Tls(files.ca), "client certificate"),
        (Tls(files.ca, stranger.cert, stranger.key), "client certificate"),
        (Tls(files.ca, files.cert, files.key, server_name="elsewhere"), "its certificate is for another name"),
        (None, "perhaps it wants TLS"),
    ]
    for tls, sentence in cases:
        with of_tls(encrypted, tls) as client, pytest.raises(EtcdUnavailableError) as refusal:
            client.put("a", "1")
        assert isinstance(refusal.value, EtcdHopelessError) is (tls is not None)
        assert sentence in str(refusal.value)
        assert encrypted.endpoint in str(refusal.value)


def test_tls_where_there_is_none(encrypted: Cluster) -> None:
    assert encrypted.tls is not None
    client = EtcdClient(shared().endpoint, tls=Tls(encrypted.tls.ca), timeout_s=1)
    with client, pytest.raises(EtcdUnavailableError, match="perhaps it does not speak TLS"):
        client.put("a", "1")
    with pytest.raises(EtcdRefusedError, match="https://"):
        EtcdClient("http://a", tls=Tls())


def test_a_watch_that_can_never_begin_says_why(encrypted: Cluster) -> None:
    with (
        of_tls(encrypted, Tls()) as client,
        client.watch("a", revision=1) as watch,
        pytest.raises(EtcdError) as refusal,
    ):
        watch.get(timeout_s=SOON_S)
    assert "etcd cannot be watched" in str(refusal.value)
    assert "CA file" in str(refusal.value)


@pytest.mark.parametrize("one_way", [True, False])
def test_certificates_and_users_together(one_way: bool) -> None:
    with etcd("3.5", tls=True, one_way=one_way) as cluster:
        files = cluster.tls
        assert files is not None
        enable_users(cluster)
        tls = Tls(files.ca) if one_way else Tls(files.ca, files.cert, files.key)
        alice = EtcdClient(cluster.endpoint, tls=tls, user=User("alice", "wonderland"), timeout_s=SOON_S)
        with alice, alice.watch("alice/", prefix=True) as watch, alice.grant(2) as lease:
            alice.put("alice/a", "2", lease=lease)
            assert values(watch, 1) == [b"2"]
            granted = lease.until
            until(lambda: lease.until > granted, "it is renewed")
            with pytest.raises(EtcdAuthError, match="no permission"):
                alice.put("bob/a", "1")


def test_certificates_that_are_replaced_under_a_running_client_are_used(tmp_path: Path) -> None:
    with etcd(tls=True) as cluster:
        (member,), theirs = cluster.members, cluster.tls
        assert theirs is not None
        mine = Tls(*(str(tmp_path / name) for name in ("ca", "cert", "key")))
        _copy(theirs, mine)
        client = EtcdClient(cluster.endpoint, tls=mine, timeout_s=SOON_S)
        with client, client.watch("a") as watch, client.grant(10) as lease:
            client.put("a", "1", lease=lease)
            assert values(watch, 1) == [b"1"]
            member.kill()
            (tmp_path / "new").mkdir()
            new = Certificates(tmp_path / "new")
            _copy(new, mine)
            _copy(new, Tls(theirs.ca, theirs.cert, theirs.key))
            member.start()
            client.put("a", "2", lease=lease)
            assert values(watch, 1) == [b"2"]
            granted = lease.until
            until(lambda: lease.until > granted, "it is renewed")


def _copy(source: Certificates, target: Tls) -> None:
    for old, new in ((source.ca, target.ca_file), (source.cert, target.cert_file), (source.key, target.key_file)):
        assert new is not None
        shutil.copy(old, new)
