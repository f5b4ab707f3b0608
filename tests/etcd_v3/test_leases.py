"""What hangs on a lease lives as long as the lease does: a run's is renewed by whoever leads, a node's goes when it leaves."""

from __future__ import annotations

import re
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.etcd.servers import Cluster, Member
from tests.etcd_client.stage import Proxy
from tests.etcd_v3.harness import EtcdNode, EtcdStage, Observer, by_rank
from tests.waiting import until

RUN_LEASE_S = 4


def lease_of(observer: Observer, node: EtcdNode) -> int:
    """The lease that a node's word hangs on."""
    (found,) = observer.client.range(observer.keys.node(f"{node.name}."), prefix=True).kvs
    return found.lease


def is_gone(observer: Observer, lease: int) -> bool:
    return observer.client.time_to_live(lease).ttl <= 0


# The run's ------------------------------------------------------------------------------------------------------------


def pass_by(observer: Observer, seconds: int) -> None:
    """Wait until so much time has passed by etcd's own clock: a lease of that length, which nobody renews, is gone."""
    lease = observer.client.grant(seconds, keep=False)
    until(lambda: is_gone(observer, lease.id), f"{seconds} s pass in etcd")


@pytest.mark.parametrize("led", ["a spare", "a member"])
def test_the_lease_of_a_run_is_renewed_by_whoever_comes_after_its_leader(
    stage: EtcdStage, cluster: Cluster, run: str, observer: Observer, led: str
) -> None:
    """With a spare gone there is nothing to write but who comes next; with a member gone there is a new world."""
    first, second = stage.nodes("first", "second")
    role, last_call_s = ("spare", 0.0) if led == "a spare" else ("member", 30.0)  # a member is not to begin alone
    options = {"run_lease": RUN_LEASE_S, "last_call_timeout": last_call_s}
    first.join(cluster.endpoints, "1:2", run, role=role, **options)
    assert observer.leading([first]) is first
    until(lambda: observer.board() is not None, "the run is founded")
    second.join(cluster.endpoints, "1:2", run, **options)
    second.placed()
    before = observer.board()
    assert before is not None
    assert observer.client.time_to_live(before.lease).granted_ttl == RUN_LEASE_S
    lease = lease_of(observer, first)
    first.kill()
    observer.client.revoke(lease)  # as if its time had passed, for which nobody need wait
    if led == "a member":
        second.changed()
        second.again()
        second.placed(size=1)
    assert observer.leading([second]) is second
    heard = len(second.heard("changed"))
    pass_by(observer, 2 * RUN_LEASE_S + 1)
    after = observer.board()
    assert after is not None, "the board is there"
    assert after.lease == before.lease
    assert observer.client.time_to_live(before.lease).ttl > 0
    assert second.standing()["state"] == "HOLDS"
    assert len(second.heard("changed")) == heard, second.account()
    assert observer.leader().partition(".")[0] == "second"


# A node's -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leaves", ["withdraw", "give_up", "finish"])
def test_who_leaves_has_no_lease_any_more(
    stage: EtcdStage, cluster: Cluster, run: str, observer: Observer, leaves: str
) -> None:
    """However long it would have lasted."""
    nodes = stage.nodes("a", "b")
    for node in nodes:
        node.join(cluster.endpoints, 2, run, lease_ttl=60)
    stays, goes = by_rank(nodes)
    lease = lease_of(observer, goes)
    assert observer.client.time_to_live(lease).ttl > 30
    goes.ask(leaves, "left")
    assert is_gone(observer, lease)
    if leaves == "finish":
        stays.undisturbed()


class Detaining(Proxy):
    """A way to etcd on which a request that has a certain text in it is held back, and all that comes after it is lost."""

    def __init__(self, port: int) -> None:
        self.mark = b""
        self.has_some, self.may_go, self.is_answered = threading.Event(), threading.Event(), threading.Event()
        super().__init__(port)

    def _carry(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if is_answer and self.has_some.is_set():
                    if self.may_go.is_set():
                        self.is_answered.set()
                    continue  # whoever asked has gone
                if not is_answer and self.mark and self.mark in data:
                    self.has_some.set()
                    self.may_go.wait()
                    sink.sendall(data)
                    self.is_answered.wait()
                    return
                sink.sendall(data)


@pytest.fixture
def proxy(stage: EtcdStage, cluster: Cluster) -> Iterator[Detaining]:
    proxy = Detaining(cluster.members[0].port)
    yield proxy
    stage.end()  # nobody comes to it any more
    proxy.may_go.set()
    proxy.is_answered.set()
    proxy.close()


def refused(member: Member) -> int:
    """How many transactions a member of etcd has refused because a lease was not there."""
    with urllib.request.urlopen(f"http://{member.endpoint}/metrics", timeout=10) as page:
        counts = re.findall(r"^grpc_server_handled_total{(.*)} (\d+)", page.read().decode(), re.MULTILINE)
    return sum(int(n) for labels, n in counts if 'grpc_method="Txn"' in labels and 'grpc_code="NotFound"' in labels)


def writings(observer: Observer, since: int) -> list[bytes]:
    """Which keys of the run were written from a revision on."""
    return [change.key for change in observer.changes(since) if not change.is_delete]


def test_a_word_that_arrives_after_its_node_has_left_makes_no_ghost(
    stage: EtcdStage, cluster: Cluster, run: str, observer: Observer, proxy: Detaining
) -> None:
    """It was said once more by another way meanwhile; what arrives late is refused, for the lease is gone."""
    since = observer.client.range("any").revision + 1
    a = stage.node("a")
    proxy.mark = b"/in/nodes/a."
    others = ",".join(member.endpoint for member in cluster.members[1:])
    a.join(f"{proxy.endpoint},{others}", 1, run, lease_ttl=60)
    a.placed()
    assert proxy.has_some.is_set()
    before = refused(cluster.members[0])
    a.ask("withdraw", "left")
    left = observer.client.range("any").revision + 1
    proxy.may_go.set()
    until(lambda: refused(cluster.members[0]) > before or observer.words(), "it has arrived")
    assert writings(observer, left) == []
    assert any(proxy.mark in key for key in writings(observer, since)), "it was written once"
    assert observer.words() == 0
