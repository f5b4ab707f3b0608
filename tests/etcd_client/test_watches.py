"""Watches deliver what was written, in order, and go on where they were when members die, stop and forget."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from rallypoint.etcd_client import EtcdClient, EtcdClosedError, EtcdRefusedError, Resync
from rallypoint.etcd_client.messages import WatchResponse
from rallypoint.etcd_client.watch_state import WatchedRange, WatchState
from rallypoint.etcd_client.watch_stream import WatchStream
from tests.support.etcd_servers import Cluster
from tests.support.etcd_tools import SOON_S, compact, cut_off, etcd, fresh, take, user_of, values
from tests.support.waiting import until


def test_changes_come_in_order_with_all_that_is_known_of_them(client: EtcdClient, prefix: str) -> None:
    with client.watch(prefix, prefix=True) as watch:
        client.put(prefix + "a", "1")
        client.put(prefix + "a", "2")
        client.put("elsewhere", "x")
        deleted = client.delete(prefix + "a").revision
        changes = take(watch, 3)
        assert [(change.value, change.is_delete) for change in changes] == [(b"1", False), (b"2", False), (b"", True)]
        assert changes[2].revision == deleted
        assert watch.get(timeout_s=0.1) is None


def test_a_watch_of_the_past_delivers_it(client: EtcdClient, prefix: str) -> None:
    first = client.put(prefix, "0").revision
    for number in range(1, 20):
        client.put(prefix, str(number))
    with client.watch(prefix, revision=first) as watch:
        assert values(watch, 20) == [str(number).encode() for number in range(20)]


def test_a_snapshot_and_then_what_changes(client: EtcdClient, prefix: str) -> None:
    client.put(prefix + "a", "1")
    with client.watch(prefix, prefix=True, snapshot=True) as watch:
        start = watch.get()
        assert isinstance(start, Resync)
        assert ([kv.value for kv in start.kvs], start.since) == ([b"1"], None)
        revision = client.put(prefix + "b", "2").revision
        (change,) = take(watch, 1)
        assert change.revision == revision > start.revision


def test_who_waits_is_told_when_the_watch_is_closed(client: EtcdClient, prefix: str) -> None:
    watch = client.watch(prefix)
    threading.Timer(0.1, watch.close).start()
    with pytest.raises(EtcdClosedError, match="the watch was closed"):
        watch.get()
    assert client._watches == set()
    with pytest.raises(EtcdClosedError, match="the watch was closed"):
        watch.get()


def test_closing_the_client_ends_its_watches_and_threads() -> None:
    before = set(threading.enumerate())  # clients of other tests may still have theirs
    with etcd() as cluster:
        client = user_of(cluster)
        watch = client.watch("a")
        client.close()
        with pytest.raises(EtcdClosedError):
            watch.get(timeout_s=SOON_S)
        until(
            lambda: not [new for new in set(threading.enumerate()) - before if new.name.startswith("etcd-watch")],
            "no threads",
        )


def test_a_watch_that_is_made_while_its_client_is_closed_ends_as_well(
    client: EtcdClient, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    twin, add = client.twin(), WatchStream.add

    def add_late(stream: WatchStream, watched: WatchedRange) -> None:
        twin.close()
        add(stream, watched)

    monkeypatch.setattr(WatchStream, "add", add_late)
    with twin.watch(prefix, revision=1) as watch, pytest.raises(EtcdClosedError, match="the watch was closed"):
        watch.get(timeout_s=SOON_S)


def test_a_compaction_in_the_middle_of_a_watch_is_said_and_survived() -> None:
    with etcd("3.4") as cluster, user_of(cluster) as client, client.watch("k/", prefix=True) as watch:
        client.put("k/a", "1")
        take(watch, 1)
        missed = watch._watched.next_revision
        # Between two streams: the watch is cut off, and what it needs next is written and compacted.
        with cut_off(client):
            for number in range(5):
                client.put("k/a", str(number))
            compact(client, client.put("k/b", "last").revision)
        resync = watch.get(timeout_s=SOON_S)
        assert isinstance(resync, Resync)
        assert [(kv.key, kv.value) for kv in resync.kvs] == [(b"k/a", b"4"), (b"k/b", b"last")]
        assert resync.since == missed
        client.put("k/a", "after")
        (change,) = take(watch, 1)
        assert change.value == b"after"


def test_a_watch_that_etcd_refuses_says_why_and_harms_no_other(client: EtcdClient, prefix: str) -> None:
    with client.watch(f"{prefix}z", end=f"{prefix}a", revision=1) as bad, client.watch(f"{prefix}good") as good:
        client.put(f"{prefix}good", "1")
        with pytest.raises(EtcdRefusedError, match="refuses to watch"):
            bad.get(timeout_s=SOON_S)
        assert values(good, 1) == [b"1"]


def test_an_error_of_the_program_costs_no_event(
    client: EtcdClient, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard, errors = WatchState.heard, list[WatchResponse]()

    def fails_once(state: WatchState, response: WatchResponse) -> None:
        if response.events and not errors:
            errors.append(response)
            raise ValueError("an error")
        heard(state, response)

    monkeypatch.setattr(WatchState, "heard", fails_once)
    with client.watch(prefix) as watch:
        for value in ("1", "2", "3"):
            client.put(prefix, value)
        assert values(watch, 3) == [b"1", b"2", b"3"]
        assert errors
        assert watch.trouble is None


@pytest.fixture(scope="module")
def three() -> Iterator[Cluster]:
    with etcd("3.5", 3) as cluster:
        yield cluster


@pytest.mark.parametrize("fault", ["kill", "pause"])
def test_a_watch_goes_on_at_another_member(three: Cluster, fault: str) -> None:
    """With SIGKILL the connection ends; with SIGSTOP nothing at all is heard, and a lease or call notices first."""
    prefix = fresh()
    with user_of(three) as client, client.watch(prefix, prefix=True) as watch:
        client.put(prefix + "0", "0")
        take(watch, 1)
        stream = watch._watch_stream._stream
        assert stream is not None
        member = next(member for member in three.members if member.endpoint == stream.endpoint)
        lease = client.grant(3)
        getattr(member, fault)()
        try:
            others = ",".join(other.endpoint for other in three.members if other is not member)
            with EtcdClient(others, timeout_s=SOON_S) as writer:
                for number in range(1, 20):
                    written = writer.guarded_put(f"{prefix}{number}", str(number), mod_revision=0)
                    assert written.succeeded
            assert [change.value for change in take(watch, 19, 10)] == [str(n).encode() for n in range(1, 20)]
            assert watch._watch_stream._stream is not stream
            assert not lease.lost.is_set()
        finally:
            if fault == "kill":
                member.start()
            else:
                member.go_on()
            member.wait()
            lease.revoke()
