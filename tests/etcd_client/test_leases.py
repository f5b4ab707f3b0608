"""Leases are kept alive by a thread of their own, expire without it, and only etcd's word ends them."""

from __future__ import annotations

import queue
import secrets
import socketserver
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import pytest
from rallypoint.etcd_client.hub import Kind, Reply
from rallypoint.etcd_client.keeper import Keeper
from rallypoint.etcd_client.wire import Message, encode

from rallypoint.etcd_client import EtcdClient, EtcdLeaseLostError, EtcdRefusedError, StatusResponse, put_op
from rallypoint.etcd_client.messages import LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveResponse
from rallypoint.etcd_client.transport import CallFailedError
from tests.etcd.servers import VERSIONS, Cluster, shared
from tests.etcd_client.stage import SOON_S, etcd, proxy_to, user_of
from tests.waiting import until

Answered = Callable[[Reply], None]


def test_a_lease_is_kept_alive_and_its_keys_with_it(client: EtcdClient, prefix: str) -> None:
    with client.grant(2) as lease:
        assert lease.ttl_s >= 2
        client.put(prefix, "x", lease=lease)
        start = time.monotonic()
        # It would be gone by then: etcd looks every half second.
        until(lambda: time.monotonic() > start + lease.ttl_s + 0.8, "time passes")
        assert client.get(prefix) is not None
        assert client.time_to_live(lease, keys=True).keys == (prefix.encode(),)
        assert lease.remaining_s() > 0
        assert lease.trouble is None
        lease.check()
    assert client.get(prefix) is None


def test_a_lease_that_is_not_kept_or_released_expires(client: EtcdClient, prefix: str) -> None:
    bare, released = client.grant(1, keep=False), client.grant(1)
    client.put(prefix + "bare", "x", lease=bare)
    client.put(prefix + "released", "x", lease=released)
    released.release()
    until(lambda: not client.range(prefix, prefix=True).kvs, "the keys expire")
    assert client.time_to_live(bare).ttl == -1
    with pytest.raises(EtcdLeaseLostError, match="no such lease"):
        client.put(prefix, "x", lease=bare)


def test_who_loses_a_lease_hears_of_it(client: EtcdClient, server: Cluster) -> None:
    lease = client.grant(3)
    with user_of(server) as stranger:
        stranger.revoke(lease.id)
    assert lease.lost.wait(10)
    assert lease.remaining_s() == 0
    with pytest.raises(EtcdLeaseLostError, match="expired or was revoked"):
        lease.check()
    lease.revoke()


def test_a_grant_whose_answer_was_lost_is_the_same_lease(server: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = 0x1234567
    monkeypatch.setattr(secrets, "randbits", lambda _: chosen - 1)
    with proxy_to(server.members[0].port) as proxy, EtcdClient(proxy.endpoint) as client, user_of(server) as other:
        client.get("warm")
        proxy.loses_answers = True

        def lose_it() -> None:
            until(lambda: other.time_to_live(chosen).ttl > 0, "it is granted")
            proxy.loses_answers = False
            proxy.cut()

        loser = threading.Thread(target=lose_it)
        loser.start()
        lease = client.grant(60, keep=False)
        loser.join()
        assert (lease.id, lease.ttl_s) == (chosen, 60)
        lease.revoke()


def test_a_hundred_leases_need_one_thread() -> None:
    before = set(threading.enumerate())  # clients of other tests may still be ending theirs
    with user_of(shared()) as client:
        leases = [client.grant(2) for _ in range(100)]
        names = [thread.name for thread in threading.enumerate() if thread not in before]
        assert names.count("etcd-leases") == 1
        start = time.monotonic()
        until(lambda: time.monotonic() > start + 2.5, "time passes")
        assert not [lease for lease in leases if lease.lost.is_set() or lease.remaining_s() == 0]
        for lease in leases:
            lease.revoke()


def test_an_outage_leaves_a_lease_in_doubt_and_not_lost() -> None:
    with etcd() as cluster, user_of(cluster) as client:
        lease = client.grant(2)
        member = cluster.members[0]
        member.kill()
        until(lambda: lease.remaining_s() == 0, "doubt")
        assert not lease.lost.is_set()
        assert "nothing listens there" in str(lease.trouble)
        member.start()
        # A member that starts gives all leases their whole time again.
        until(lambda: lease.remaining_s() > 0, "renewed")
        assert str(lease.trouble) == "None"
        assert client.time_to_live(lease).ttl > 0


@pytest.mark.parametrize("version", ["3.5", pytest.param("3.4", marks=pytest.mark.soak)])
def test_a_leader_that_is_stopped_costs_no_lease(version: str) -> None:
    """As long as it is stopped.  If it went on after that, it might revoke leases which its successor has renewed: a
    mistake of etcd's (its issue 15247) in the versions that are tested here, and nothing that a client could prevent.
    """
    with etcd(version, 3) as cluster:
        with user_of(cluster) as client:
            statuses = {health.endpoint: health.status for health in client.health()}
        leader, *others = sorted(cluster.members, key=lambda member: not _leads(statuses[member.endpoint]))
        client = EtcdClient([member.endpoint for member in (leader, *others)], spread=False, timeout_s=SOON_S)
        leases = [client.grant(4) for _ in range(5)]
        leader.pause()
        start = time.monotonic()
        lowest: list[float] = []

        def is_over() -> bool:
            lowest.append(min(lease.remaining_s() for lease in leases))
            return time.monotonic() > start + 6

        until(is_over, "time passes")
        assert min(lowest) > 0, "never in doubt"
        assert not [lease for lease in leases if lease.lost.is_set()]
        assert all(client.time_to_live(lease).ttl > 0 for lease in leases)
        leader.kill()
        client.close()


def _leads(status: StatusResponse | None) -> bool:
    assert status is not None
    assert status.header is not None
    return status.header.member_id == status.leader


def test_a_lease_that_is_asked_for_ahead_is_kept_like_any_other(client: EtcdClient, prefix: str) -> None:
    lease = client.grant(2, ahead=True)
    client.ensure(lease)
    client.put(prefix, "x", lease=lease)
    start = time.monotonic()
    until(lambda: time.monotonic() > start + lease.ttl_s + 0.8, "time passes")
    assert client.get(prefix) is not None
    lease.revoke()


def test_a_lease_asked_for_ahead_whose_answer_was_lost_is_ensured_as_the_same(
    client: EtcdClient, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.get("warm")
    sent = client._open.ask
    lost = CallFailedError("UNAVAILABLE", "the answer was lost")

    def loses_the_answer(method: str, request: Message, timeout_s: float, answered: Answered) -> None:
        sent(method, request, timeout_s, lambda reply: answered(Reply(reply.endpoint, reply.logins, lost)))

    with monkeypatch.context() as broken:
        broken.setattr(client._open, "ask", loses_the_answer)
        lease = client.grant(5, ahead=True)
        assert lease.answered.wait(SOON_S)
    assert lease.is_granted is False
    for write in (client.put, partial(client.guarded_put, mod_revision=0)):
        with pytest.raises(
            EtcdRefusedError, match=r"was asked for ahead.*call ensure\(\) before anything is written on it"
        ):
            write(prefix, "x", lease=lease)
    client.ensure(lease)
    client.put(prefix, "x", lease=lease)
    lease.revoke()


def test_who_asks_ahead_and_hears_nothing_asks_another_member_next() -> None:
    cluster = shared()
    with socketserver.TCPServer(
        ("127.0.0.1", 0), socketserver.BaseRequestHandler
    ) as silent:  # nobody is answered there
        nobody = f"127.0.0.1:{silent.server_address[1]}"
        with EtcdClient([nobody, cluster.endpoint], spread=False, timeout_s=2.0) as client:
            lease = client.grant(5, ahead=True)
            assert lease.answered.wait(SOON_S)
            assert not lease.is_granted
            assert client._open.rotation.current == cluster.endpoint
            client.ensure(lease)
            assert client.time_to_live(lease).ttl > 0


@pytest.mark.parametrize(("version", "disagrees"), [("3.4", True), ("3.5", False)])
def test_a_member_that_is_killed_after_a_write_came_before_its_lease_disagrees_with_the_others(
    version: str, disagrees: bool
) -> None:
    """Why nothing is ever written on a lease before etcd has said that it is there.

    A member of etcd 3.4 that comes back does once more what is younger than the last write to its database; a lease that
    was granted is there by then, and not all that was refused is refused again.
    """
    lease_id = 4711

    def revisions() -> list[int]:
        return [user.range("any", serializable=True).revision for user in users]

    with etcd(version, 3) as cluster, ExitStack() as ends:
        users = [ends.enter_context(EtcdClient(member.endpoint)) for member in cluster.members]
        client = ends.enter_context(EtcdClient(cluster.endpoints))
        before = client.put("any", "before").revision
        with pytest.raises(EtcdLeaseLostError):
            client.transaction([], [put_op("early", "x", lease=lease_id)])
        request = LeaseGrantRequest(60, lease_id)
        client._open.call("/etcdserverpb.Lease/LeaseGrant", request, LeaseGrantResponse, SOON_S, Kind.AGAIN)
        killed = cluster.members[0]
        database = killed.log.with_suffix("") / "member" / "snap" / "db"
        until(lambda: lease_id.to_bytes(8, "big") in database.read_bytes(), "the lease is in its database")
        assert revisions() == [before] * 3
        killed.kill()
        killed.start()
        killed.wait()
        assert revisions() == [before + disagrees, before, before]
        assert bool(users[0].range("early", serializable=True).kvs) is disagrees


def test_who_releases_a_lease_before_it_is_granted_never_renews_it(
    client: EtcdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.get("warm")
    sent = client._open.ask
    arrived: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def holds_the_answer(method: str, request: Message, timeout_s: float, answered: Answered) -> None:
        sent(method, request, timeout_s, lambda reply: arrived.put(lambda: answered(reply)))

    with monkeypatch.context() as slow:
        slow.setattr(client._open, "ask", holds_the_answer)
        lease = client.grant(1, ahead=True)
        answer = arrived.get(timeout=SOON_S)
    lease.release()
    answer()
    assert lease.is_granted
    until(lambda: client.time_to_live(lease).ttl == -1, "it expires")


def _calls(cluster: Cluster, method: str) -> int:
    """How often a member was called, or a stream was opened there."""
    with urllib.request.urlopen(f"http://{cluster.endpoint}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    counts = [line for line in lines if line.startswith("grpc_server_started_total") and f'"{method}"' in line]
    return int(counts[0].split()[1])


@pytest.mark.parametrize("version", VERSIONS)
def test_all_renewals_of_a_process_go_over_one_stream(version: str) -> None:
    with etcd(version) as cluster, user_of(cluster) as client, user_of(cluster) as another:
        assert _calls(cluster, "LeaseKeepAlive") == 0
        leases = [user.grant(2) for user in (client, another) for _ in range(5)]
        renewals = [lease.renewal for lease in leases]
        granted = [renewal.until for renewal in renewals]
        until(lambda: all(now.until > then + 2 for now, then in zip(renewals, granted, strict=True)), "renewed thrice")
        assert _calls(cluster, "LeaseKeepAlive") == 1
        for lease in leases:
            lease.revoke()


def test_the_stream_of_renewals_moves_with_the_calls() -> None:
    with etcd("3.5", 3) as cluster, user_of(cluster) as client:
        lease = client.grant(2)
        keeper = client._open.part(Keeper)
        until(lambda: keeper._stream is not None, "the first renewal")
        first = cluster.members[0].endpoint
        assert str(keeper._stream and keeper._stream.endpoint) == first
        client._open.failed(first)  # as a call would say that found nobody there
        until(lambda: keeper._stream is not None and keeper._stream.endpoint != first, "it moves")
        then = lease.renewal.until
        until(lambda: lease.renewal.until > then, "renewed there")
        assert lease.trouble is None
        lease.revoke()
        until(lambda: keeper._stream is None, "nothing to renew, no stream")


def test_a_stream_of_renewals_that_ends_is_opened_again(server: Cluster) -> None:
    with proxy_to(server.members[0].port) as proxy, EtcdClient(proxy.endpoint) as client:
        lease = client.grant(2)
        keeper = client._open.part(Keeper)
        until(lambda: keeper._stream is not None, "the first renewal")
        stream = keeper._stream
        proxy.cut()
        until(lambda: keeper._stream is not None and keeper._stream is not stream, "another stream")
        then = lease.renewal.until
        until(lambda: lease.renewal.until > then, "renewed there")
        assert not lease.lost.is_set()
        lease.revoke()


def test_a_user_who_fails_to_hear_of_a_loss_costs_nobody_else_a_lease(client: EtcdClient, server: Cluster) -> None:
    doomed, spared = client.grant(2), client.grant(2)

    def trip() -> None:
        raise ValueError("a mistake in when_lost")

    doomed.when_lost = trip
    with user_of(server) as stranger:
        stranger.revoke(doomed.id)
    assert doomed.lost.wait(SOON_S)
    then = spared.renewal.until
    until(lambda: spared.renewal.until > then + 1, "renewed after that")
    spared.revoke()


def test_a_member_that_answers_one_after_another_is_given_its_time(
    client: EtcdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many renewals on one stream may take longer than one is given; silence is what counts."""
    first, second = client.grant(60, keep=False), client.grant(60, keep=False)
    keeper = Keeper(client._open)  # its thread has nothing to do: it is told of no lease, and of no answer
    keeper._kept = {first, second}
    with monkeypatch.context() as unheard:
        unheard.setattr(keeper, "_inbox", queue.SimpleQueue())
        for lease in (first, second):
            keeper._renew(lease, time.monotonic())
    stream = keeper._stream
    assert stream is not None
    stream.answer_by = time.monotonic()
    assert stream.is_overdue()
    keeper._heard(stream, encode(LeaseKeepAliveResponse(id=first.id, ttl=60)))
    assert not stream.is_overdue()
    assert stream.answer_by is not None, "there is more to come"
    keeper._heard(stream, encode(LeaseKeepAliveResponse(id=second.id, ttl=60)))
    assert str(stream.answer_by) == "None"
    keeper.close()
    first.revoke()
    second.revoke()
