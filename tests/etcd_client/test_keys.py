"""Keys and transactions mean what etcd means by them."""

from __future__ import annotations

import pytest

from rallypoint.etcd_client import (
    EtcdClient,
    EtcdClosedError,
    EtcdCompactedError,
    EtcdRefusedError,
    compare,
    delete_op,
    get_op,
    put_op,
)
from rallypoint.etcd_client.messages import DeleteRangeResponse, RangeResponse
from tests.support.etcd_servers import Cluster
from tests.support.etcd_tools import compact, etcd, etcdctl, user_of
from tests.support.waiting import until


def test_what_is_put_is_there_with_its_revisions(client: EtcdClient, server: Cluster, prefix: str) -> None:
    assert client.get(prefix + "a") is None
    first = client.put(prefix + "a", b"\0\xff one")
    second = client.put(prefix + "a", "two")
    found = client.get(prefix + "a")
    assert found is not None
    assert (found.value, found.version, found.lease) == (b"two", 2, 0)
    assert (found.create_revision, found.mod_revision) == (first.revision, second.revision)
    old = client.get(prefix + "a", revision=first.revision)
    assert old is not None
    assert old.value == b"\0\xff one"
    assert etcdctl(server, "get", prefix + "a", "--print-value-only").strip() == "two"


def test_ranges_have_limits_ends_and_counts(client: EtcdClient, prefix: str) -> None:
    for number in range(10):
        client.put(f"{prefix}{number}", str(number))
    found = client.range(prefix, prefix=True, limit=3)
    assert [kv.value for kv in found.kvs] == [b"0", b"1", b"2"]
    assert (found.more, found.count) == (True, 10)
    between = client.range(prefix + "2", end=prefix + "5", keys_only=True)
    assert [(kv.key.decode(), kv.value) for kv in between.kvs] == [(f"{prefix}{n}", b"") for n in (2, 3, 4)]
    assert client.range(prefix, prefix=True, count_only=True).count == 10
    assert client.delete(prefix + "3").deleted == 1
    assert client.delete(prefix + "3").deleted == 0
    assert client.delete(prefix, prefix=True).deleted == 9


def test_pages_are_of_one_revision_whatever_is_written_meanwhile(client: EtcdClient, prefix: str) -> None:
    for number in range(25):
        client.put(f"{prefix}{number:02}", "old")
    seen = []
    for page in client.pages(prefix, prefix=True, page=10):
        assert len(page.kvs) <= 10
        seen += [kv.value for kv in page.kvs]
        client.put(f"{prefix}24", "new")
        client.put(f"{prefix}30", "new")
        client.delete(f"{prefix}23")
    assert seen == [b"old"] * 25


@pytest.mark.parametrize(
    ("relation", "what", "holds"),
    [
        ("==", {"value": "x"}, True),
        ("!=", {"value": "x"}, False),
        (">", {"value": "w"}, True),
        ("<", {"value": "w"}, False),
        ("==", {"version": 1}, True),
        ("==", {"version": 0}, False),
        (">", {"version": 0}, True),
        ("==", {"lease": 0}, True),
        ("==", {"create_revision": 0}, False),
        ("==", {"mod_revision": 1}, False),
    ],
)
def test_conditions_hold_or_do_not(
    client: EtcdClient, prefix: str, relation: str, what: dict[str, object], holds: bool
) -> None:
    client.put(prefix, "x")
    outcome = client.transaction([compare(prefix, relation, **what)], [get_op(prefix)])
    assert outcome.succeeded is holds
    assert len(outcome.answers) == int(holds)


def test_a_transaction_does_all_or_nothing_at_one_revision(client: EtcdClient, prefix: str) -> None:
    a, b = prefix + "a", prefix + "b"
    created = client.put(a, "1").revision
    guards = [compare(a, create_revision=created), compare(a, mod_revision=created), compare(b, version=0)]
    done = client.transaction(guards, [put_op(a, "2"), put_op(b, "2"), get_op(prefix, prefix=True)], [delete_op(a)])
    assert done.succeeded
    *_, read = done.answers
    assert isinstance(read, RangeResponse)
    assert [(kv.value, kv.mod_revision) for kv in read.kvs] == [(b"2", done.revision)] * 2
    again = client.transaction(guards, [put_op(a, "3")], [delete_op(prefix, prefix=True)])
    assert not again.succeeded
    (deleted,) = again.answers
    assert isinstance(deleted, DeleteRangeResponse)
    assert deleted.deleted == 2


def test_a_guarded_write_says_what_is_there_instead(client: EtcdClient, prefix: str) -> None:
    mine = client.guarded_put(prefix, "mine", mod_revision=0, then=[put_op(prefix + "also", "x")])
    assert mine.succeeded
    theirs = client.guarded_put(prefix, "theirs", mod_revision=0, then=[put_op(prefix + "also", "y")])
    assert not theirs.succeeded
    assert theirs.current is not None
    assert (theirs.current.value, theirs.revision) == (b"mine", mine.revision)
    also = client.get(prefix + "also")
    assert also is not None
    assert also.value == b"x"


def test_what_etcd_refuses_is_said_in_words(client: EtcdClient, prefix: str) -> None:
    with pytest.raises(EtcdRefusedError, match=r"larger than etcd takes \(1\.5 MiB by default\) \(Put at 127"):
        client.put(prefix, b"x" * 2_000_000)
    with pytest.raises(EtcdRefusedError, match="more operations than etcd takes"):
        client.transaction(then=[put_op(f"{prefix}{number}", "") for number in range(200)])
    with pytest.raises(EtcdRefusedError, match="future revision"):
        client.get(prefix, revision=1 << 40)
    with pytest.raises(EtcdRefusedError, match="must not be empty"):
        client.get("")


def test_a_revision_that_was_compacted_is_named() -> None:
    with etcd() as cluster, user_of(cluster) as client:
        client.put("a", "1")
        revision = client.put("a", "2").revision
        compact(client, revision)
        with pytest.raises(EtcdCompactedError, match="compacted"):
            client.get("a", revision=1)


def test_a_twin_shares_the_connections_and_closes_for_itself(server: Cluster) -> None:
    one = user_of(server)
    other = one.twin(timeout_s=5)
    assert (other._open, other._timeout_s, other.endpoints) == (one._open, 5, one.endpoints)
    lease, watch = one.grant(60), other.watch("x")
    one.close()
    one.close()
    assert one._leases == set()
    other.put("x", "1")
    assert watch.get(timeout_s=10) is not None
    other.revoke(lease.id)
    other.close()
    with pytest.raises(EtcdClosedError, match="the client is closed"):
        other.get("x")
    with pytest.raises(EtcdClosedError):
        watch.get(timeout_s=10)


def test_a_client_that_is_warmed_up_connects_without_waiting(server: Cluster) -> None:
    with user_of(server) as client, EtcdClient("127.0.0.1:1") as lonely:
        for each in (client, lonely):
            each.warm_up()
        until(lambda: client._open._proven, "it is connected")
