"""Tokens: one call fetches one for all that wait, within the time of each; and what newer versions want one for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from rallypoint.etcd_client import EtcdAuthError, EtcdClient, EtcdUnavailableError, User
from rallypoint.etcd_client.hub import AUTHENTICATE, STATUS, Metadata
from rallypoint.etcd_client.keeper import KEEP_ALIVE, Keeper
from rallypoint.etcd_client.transport import CallFailedError, Line
from tests.etcd.servers import Cluster
from tests.etcd_client.stage import SOON_S, enable_users, etcd
from tests.etcd_client.test_refusals import silent
from tests.waiting import until

__all__ = ["silent"]

ALICE = User("alice", "wonderland")
Call = Callable[[Line, str, bytes, float, Metadata], bytes]


@pytest.fixture(scope="module")
def guarded() -> Iterator[Cluster]:
    with etcd() as cluster:
        enable_users(cluster)
        yield cluster


@pytest.fixture
def alice(guarded: Cluster) -> Iterator[EtcdClient]:
    with EtcdClient(guarded.endpoints, user=ALICE, timeout_s=SOON_S) as client:
        yield client


def test_calls_that_wait_for_one_token_keep_their_own_time(silent: str) -> None:
    def fail(_: int) -> float:
        start = time.monotonic()
        with pytest.raises(EtcdUnavailableError, match="no answer to Authenticate within"):
            client.get("a", timeout_s=1)
        return time.monotonic() - start

    with EtcdClient(silent, user=ALICE) as client, ThreadPoolExecutor(8) as pool:
        assert max(pool.map(fail, range(8))) < 2.5


def test_calls_that_wait_for_one_token_share_it_and_a_refusal_too(
    guarded: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, call = list[str](), Line.call

    def counts(line: Line, method: str, request: bytes, timeout_s: float, metadata: Metadata) -> bytes:
        if method == AUTHENTICATE:
            asked.append(method)
            until(lambda: running == 8, "all of them wait")
        return call(line, method, request, timeout_s, metadata)

    monkeypatch.setattr(Line, "call", counts)
    running = 0

    def get(client: EtcdClient) -> object:
        nonlocal running
        running += 1
        try:
            return client.get("alice/a")
        except EtcdAuthError as refusal:
            return str(refusal)

    for password, is_refused in (("wonderland", False), ("wrong", True)):
        running = 0
        asked.clear()
        with (
            EtcdClient(guarded.endpoints, user=User("alice", password), timeout_s=SOON_S) as client,
            ThreadPoolExecutor(8) as pool,
        ):
            said = list(pool.map(get, [client] * 8))
        assert len(asked) == 1
        assert all(("password" in str(what)) is is_refused for what in said), said


def _wants_a_user(call: Call, *, only_root: bool) -> Call:
    """Status as etcd gives it since 3.5.28: to users only, and in some of them to root only."""

    def status(line: Line, method: str, request: bytes, timeout_s: float, metadata: Metadata) -> bytes:
        if method == STATUS:
            if not any(name == "token" for name, _ in metadata):
                raise CallFailedError("INVALID_ARGUMENT", "etcdserver: user name is empty")
            if only_root:
                raise CallFailedError("PERMISSION_DENIED", "etcdserver: permission denied")
        return call(line, method, request, timeout_s, metadata)

    return status


def test_health_where_etcd_tells_it_to_users_only(alice: EtcdClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Line, "call", _wants_a_user(Line.call, only_root=False))
    for _ in range(2):  # before there is a token, and with it
        (health,) = alice.health()
        assert health.trouble is None
        assert health.status is not None
    assert alice._open.logins == 1


def test_writes_where_etcd_tells_its_status_to_root_only(
    alice: EtcdClient, guarded: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Line, "call", _wants_a_user(Line.call, only_root=True))
    alice.warm_up()
    alice.put("alice/a", "1")
    alice._open.failed(guarded.endpoint)
    alice.put("alice/a", "2")  # is sent to somebody who is there, which a refusal proves
    assert alice._open.logins == 1
    (health,) = alice.health()
    assert "permission" in str(health.trouble)


def test_a_keeper_whose_token_is_stale_logs_in_and_renews(alice: EtcdClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """As etcd will have it that looks at the tokens of renewals; 3.4 and 3.5.1 do not."""
    alice.put("alice/a", "1")
    stream, opened, stale = Line.stream, list[Metadata](), alice._open._token

    def looks(line: Line, method: str, requests: Iterator[bytes], metadata: Metadata) -> object:
        if method == KEEP_ALIVE:
            opened.append(metadata)
            if set(stale) & set(metadata):
                raise CallFailedError("UNAUTHENTICATED", "etcdserver: invalid auth token")
        return stream(line, method, requests, metadata)

    monkeypatch.setattr(Line, "stream", looks)
    lease = alice.grant(3)
    granted = lease.renewal.until
    until(lambda: lease.renewal.until > granted, "it is renewed")
    assert alice._open.logins == 2
    assert set(stale) & set(opened[0])
    assert set(alice._open._token) & set(opened[-1])
    assert alice._open._token != stale
    until(lambda: lease.trouble is None, "all is well")
    assert not lease.lost.is_set()
    assert alice._open.part(Keeper)._stream is not None
    lease.revoke()
