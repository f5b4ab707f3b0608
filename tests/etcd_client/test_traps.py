"""The eight traps of etcd that were found by trial; each is shown to be avoided on real servers.

Left to the users of this client: the start of workers after a fork (2), a unique token in every conditional write (6).
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
import urllib.request
from collections.abc import Iterator

import pytest

from rallypoint.etcd_client import EtcdAmbiguousError, EtcdClient, EtcdError, Resync, User, transport, watch_stream
from rallypoint.etcd_client.codec import encode
from rallypoint.etcd_client.messages import RangeRequest, ResponseHeader, WatchResponse
from rallypoint.etcd_client.transport import PING_EVERY_MS, PING_TIMEOUT_MS, CallFailedError, Channel
from tests.support.etcd_servers import VERSIONS, Cluster, shared
from tests.support.etcd_tools import (
    SHORT_TOKENS,
    SOON_S,
    Proxy,
    compact,
    cut_off,
    enable_users,
    etcd,
    fresh,
    proxy_to,
    take,
    user_of,
    values,
)
from tests.support.waiting import until

RANGE = "/etcdserverpb.KV/Range"


def test_trap_1_a_hung_server_is_noticed_by_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the deadline of a call is; here with shorter times, which a server that lives would not put up with."""
    times = {PING_EVERY_MS: 1500, PING_TIMEOUT_MS: 1000}
    assert PING_EVERY_MS > 5000
    assert set(times) <= {value for _, value in transport._OPTIONS}
    monkeypatch.setattr(transport, "_OPTIONS", [(name, times.get(value, value)) for name, value in transport._OPTIONS])
    with etcd() as cluster:
        channel = Channel(cluster.endpoint)
        channel.call(RANGE, encode(RangeRequest(b"k")), SOON_S, ())
        cluster.members[0].pause()
        start = time.monotonic()
        with pytest.raises(CallFailedError, match="UNAVAILABLE"):
            channel.call(RANGE, encode(RangeRequest(b"k")), 60, ())
        assert time.monotonic() < start + 10
        channel.close()


def test_trap_1_a_hung_server_is_noticed_by_a_watch_that_asks_for_signs_of_life(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch_stream, "_QUIET_S", 0.3)
    with etcd() as cluster, user_of(cluster) as client, client.watch("k") as watch:
        client.put("k", "before")
        take(watch, 1)
        stream = watch._watch_stream._stream
        assert stream is not None
        start = time.monotonic()
        until(lambda: stream.heard_at > start + 1, "signs of life come")
        assert watch.trouble is None
        assert watch._watch_stream._stream is stream
        monkeypatch.setattr(watch_stream, "_ANSWER_S", 0.5)
        cluster.members[0].pause()
        until(lambda: watch.trouble is not None, "the watch notices", within_s=5)
        cluster.members[0].go_on()
        client.put("k", "after")
        assert values(watch, 1) == [b"after"]


FORKING = """
    import os, subprocess, sys
    from rallypoint.etcd_client import EtcdClient, EtcdForkError
    endpoint, ending = sys.argv[1:]
    client = EtcdClient(endpoint)
    client.put("fork", "x")
    watch, lease = client.watch("fork"), client.grant(60)
    child = os.fork()
    if child == 0:
        told = 0
        for use in (
            lambda: client.get("fork"),
            lambda: client.put("fork", "y"),
            lambda: watch.get(timeout_s=1),
            lambda: client.grant(5),
            lambda: EtcdClient(endpoint).get("fork"),
            lambda: EtcdClient("127.0.0.1:1").get("fork"),
        ):
            try:
                use()
            except EtcdForkError as refusal:
                told += "its child by fork" in str(refusal) and "'spawn'" in str(refusal)
        client.close()
        if ending == "abruptly":
            os._exit(told)
        sys.exit(told)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 6, status
    # The parent is none the worse for it, and children by exec are fine.
    assert subprocess.run(["true"]).returncode == 0
    client.put("fork", "z")
    assert watch.get(timeout_s=10).value == b"z"
    lease.revoke()
    assert "GRPC_ENABLE_FORK_SUPPORT" not in os.environ
    print("done")
"""


@pytest.mark.parametrize("ending", ["abruptly", "orderly"])
def test_trap_2_after_a_fork_there_is_a_clear_error(ending: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FORKING), shared().endpoint, ending],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "done\n", done.stderr


@pytest.mark.parametrize("version", VERSIONS)
def test_trap_3_a_stale_token_is_replaced_also_for_watches(version: str) -> None:
    with etcd(version, 1, *SHORT_TOKENS) as cluster:
        enable_users(cluster)
        with EtcdClient(cluster.endpoints, user=User("alice", "wonderland")) as client:
            client.put("alice/a", "1")
            cluster_of = client._open
            assert cluster_of.logins == 1
            _let_token_expire(client)
            with client.watch("alice/", prefix=True, revision=1) as watch:
                # Nothing but the watch has used the token since it went stale.
                assert values(watch, 1) == [b"1"]
                assert cluster_of.logins == 2
                _let_token_expire(client)
                client.put("alice/a", "2")
                assert cluster_of.logins == 3
                # The watch that is open stays so.
                assert values(watch, 1) == [b"2"]


def _let_token_expire(client: EtcdClient) -> None:
    """Leave the token alone until etcd does not know it any more."""
    shared_by = client._open
    channel = shared_by.channels.to(shared_by.order[0])

    def is_stale() -> bool:
        threading.Event().wait(2.5)  # every use of a token prolongs its life
        try:
            channel.call(RANGE, encode(RangeRequest(b"alice/a")), SOON_S, shared_by._token)
        except CallFailedError as failure:
            return failure.code == "UNAUTHENTICATED"
        return False

    until(is_stale, "the token expires")


@pytest.fixture(scope="module")
def three() -> Iterator[Cluster]:
    with etcd("3.4", 3) as cluster:
        yield cluster


def test_trap_4_a_member_without_a_leader_ends_the_watch(three: Cluster) -> None:
    """Alone it would answer signs of life for ever; asked for `hasleader`, it lets go."""
    alone, *others = three.members
    prefix = fresh()
    with EtcdClient(alone.endpoint, timeout_s=SOON_S) as client, client.watch(prefix) as watch:
        client.put(prefix, "before")
        take(watch, 1)
        for member in others:
            member.pause()
        try:
            until(lambda: "no leader" in (watch.trouble or ""), "the watch is let go")
            with pytest.raises(EtcdError, match="knows of no leader"):
                client.put(prefix, "lost", timeout_s=1)
        finally:
            for member in others:
                member.go_on()
        for member in others:
            member.wait()
        client.put(prefix, "after")
        assert values(watch, 1) == [b"after"]


def test_trap_5_a_watch_resumes_behind_its_last_event() -> None:
    with etcd() as cluster, user_of(cluster) as client, client.watch("k") as watch:
        revision = client.put("k", "0").revision
        take(watch, 1)
        client.put("elsewhere", "x")
        # The answer to a progress request tells the store's revision, and not that this watch has seen everything up to it.
        watch._watch_stream._state.heard(WatchResponse(ResponseHeader(revision + 1), watch_id=-1))
        assert watch._watched.next_revision == revision + 1
        with cut_off(client):
            for number in range(1, 6):
                client.put("k", str(number))
        assert values(watch, 5) == [b"1", b"2", b"3", b"4", b"5"]
        with cut_off(client):
            client.put("k", "6")
            compact(client, client.put("k", "7").revision)
        resync = watch.get(timeout_s=SOON_S)
        assert isinstance(resync, Resync)
        assert [kv.value for kv in resync.kvs] == [b"7"]
        client.put("k", "8")
        assert values(watch, 1) == [b"8"]


@pytest.mark.parametrize("version", VERSIONS)
def test_trap_6_a_write_whose_answer_is_lost_is_ambiguous_unless_it_is_guarded(version: str) -> None:
    server, prefix = shared(version), fresh()
    with proxy_to(server.members[0].port) as proxy, user_of(server) as direct, EtcdClient(proxy.endpoint) as client:
        client.put(prefix + "warm", "x")
        proxy.loses_answers = True
        with pytest.raises(
            EtcdAmbiguousError, match=r"Put was sent and its answer was lost: it may or may not have happened"
        ):
            client.put(prefix + "put", "once", timeout_s=1)
        found = direct.get(prefix + "put")
        assert found is not None
        assert found.version == 1, "it happened, and once"
        cutter = threading.Thread(target=_lose_one_answer, args=(proxy, direct, prefix + "guarded"))
        cutter.start()
        written = client.guarded_put(prefix + "guarded", "token 17", mod_revision=0)
        cutter.join()
        assert written.succeeded
        kept = direct.get(prefix + "guarded")
        assert kept is not None
        assert (kept.version, kept.mod_revision) == (1, written.revision)


def _lose_one_answer(proxy: Proxy, direct: EtcdClient, key: str) -> None:
    until(lambda: direct.get(key) is not None, "it is written")
    proxy.loses_answers = False
    proxy.cut()


def test_trap_7_a_lease_is_renewed_at_a_third_of_its_time_whatever_else_goes_on() -> None:
    with etcd() as cluster:
        first = user_of(cluster)
        clients = [first, *(first.twin() for _ in range(4))]
        over = threading.Event()

        def spin() -> None:
            while not over.is_set():
                sum(range(1000))

        threads = [threading.Thread(target=spin) for _ in range(2)]
        try:
            for thread in threads:
                thread.start()
            leases = [client.grant(5) for client in clients]
            before, start = _renewals(cluster), time.monotonic()
            until(lambda: time.monotonic() > start + 4, "time passes")
            count, took_s = _renewals(cluster) - before, time.monotonic() - start
        finally:
            over.set()
        assert not [lease for lease in leases if lease.lost.is_set() or lease.remaining_s() < 2]
        expected = len(leases) * took_s / (leases[0].ttl_s / 3)
        assert 0.5 * expected < count < 1.3 * expected
        for client in clients:
            client.close()


def _renewals(cluster: Cluster) -> int:
    with urllib.request.urlopen(f"http://{cluster.endpoint}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("etcd_debugging_lease_renewed_total ")))


def test_trap_8_a_stopped_member_holds_no_call_for_longer_than_its_deadline(three: Cluster) -> None:
    prefix = fresh()
    with user_of(three, timeout_s=8) as client:
        client.put(prefix, "x")
        stopped = next(member for member in three.members if member.endpoint == client._open.order[0])
        stopped.pause()
        try:
            start = time.monotonic()
            with pytest.raises(EtcdAmbiguousError):
                client.put(prefix, "y", timeout_s=1)
            assert time.monotonic() < start + 1.5
            # From now on the others are asked first; while they elect a leader, a call may take a moment.
            assert client.get(prefix) is not None
            assert time.monotonic() < start + 8
            cluster = client._open
            cluster.order = tuple(sorted(cluster.order, key=lambda endpoint: endpoint != stopped.endpoint))
            start = time.monotonic()
            assert client.get(prefix) is not None
            assert time.monotonic() < start + 4
        finally:
            stopped.go_on()
