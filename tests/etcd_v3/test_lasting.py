"""What outlives a trouble that has passed: the run's lease, a node that comes back, its watches, its last word."""

from __future__ import annotations

import queue
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import msgspec
import pytest

from rallypoint.client.identity import this_node
from rallypoint.core.model import Bounds, Ending, Reason, Settings
from rallypoint.core.node import State
from rallypoint.errors import RendezvousError, RendezvousTimeoutError
from rallypoint.etcd import estate, leader
from rallypoint.etcd.keys import Keys
from rallypoint.etcd.link import EtcdLink
from rallypoint.etcd.member import EtcdMember
from rallypoint.etcd_client import EtcdClient, User
from rallypoint.etcd_client.hub import Hub, Reply
from rallypoint.etcd_client.keeper import Keeper
from rallypoint.etcd_client.messages import LeaseGrantRequest, TxnRequest
from rallypoint.etcd_client.transport import CallFailedError
from rallypoint.etcd_client.wire import Message
from tests.etcd.servers import HOST, Cluster, running
from tests.etcd_v3.harness import PREFIX, Observer
from tests.waiting import until


def member(
    endpoints: str,
    run: str,
    nodes: Bounds,
    name: str = "a",
    *,
    outage_grace_s: float = 300.0,
    closed_ttl_s: float = 60.0,
) -> EtcdMember:
    settings = Settings(outage_grace_s=outage_grace_s, closed_ttl_s=closed_ttl_s, crash_pause_s=0.0)
    node = this_node(name, address=HOST)
    return EtcdMember(EtcdClient(endpoints), PREFIX, run, nodes, settings, node, lease_ttl_s=2, call_s=10.0)


def link_of(node: EtcdMember) -> EtcdLink:
    assert isinstance(node.link, EtcdLink)
    return node.link


def joined(ends: ExitStack, *nodes: EtcdMember) -> None:
    """All of them at once, in one world."""
    for node in nodes:
        ends.callback(node.leave, Reason.WITHDREW, patience_s=0.0)
    with ThreadPoolExecutor() as pool:
        places = list(pool.map(lambda node: node.join(30.0), nodes))
    assert len({place.seal_id for place in places}) == 1


def test_a_leader_that_starts_over_and_has_nothing_to_say_renews_the_lease_of_the_run(
    cluster: Cluster, run: str, observer: Observer, ends: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader, "RUN_LEASE_S", 3)
    node = member(cluster.endpoints, run, Bounds(1, 1))
    joined(ends, node)
    first: Any = link_of(node)._succession._leader
    first.retire(0, 10.0)
    until(lambda: link_of(node)._succession._leader not in (first, None), "the node leads once more")
    second: Any = link_of(node)._succession._leader
    until(lambda: second._run_lease is not None, "it keeps the lease of the run")
    lease = second._run_lease
    assert lease.id == link_of(node).run_lease
    before = lease.renewal.until
    until(lambda: lease.renewal.until > before or lease.lost.is_set(), "it is renewed, or is gone")
    assert not lease.lost.is_set()
    assert observer.board() is not None


def test_who_comes_back_after_its_join_timed_out_is_not_taken_for_the_one_who_left(
    cluster: Cluster, run: str, observer: Observer, ends: ExitStack
) -> None:
    a = member(cluster.endpoints, run, Bounds(2, 2))
    ends.callback(a.leave, Reason.WITHDREW, patience_s=0.0)
    with pytest.raises(RendezvousTimeoutError):
        a.join(1.0)
    b = member(cluster.endpoints, run, Bounds(2, 2), "b")
    joined(ends, a, b)


class _Refusal(socketserver.BaseRequestHandler):
    """What a load balancer says that knows of no such service."""

    def handle(self) -> None:
        self.request.recv(65536)
        self.request.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        while self.request.recv(65536):
            """Until the other side hangs up, so that it has read the answer."""


class _Balancer(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False


@contextmanager
def nobody_behind(cluster: Cluster) -> Iterator[None]:
    """Something else answers in etcd's place, for as long as the block lasts."""
    (etcd,) = cluster.members
    etcd.kill()
    with _Balancer((HOST, etcd.port), _Refusal) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
    etcd.start()
    etcd.wait()


def lose_hope(cluster: Cluster, *nodes: EtcdMember) -> None:
    """Let something else answer in etcd's place until the nodes' watches have ended, and they have tried once more."""
    watches: list[Any] = [link_of(node)._reading._tellings for node in nodes]
    with nobody_behind(cluster):
        until(lambda: all(watch.is_over for watch in watches), "their watches end")
        until(lambda: all(link_of(node).refusal is not None for node in nodes), "they see no hope")


def test_who_was_told_that_there_is_no_hope_hears_again_when_etcd_is_back(run: str, ends: ExitStack) -> None:
    with running() as cluster:
        a, b = nodes = [member(cluster.endpoints, run, Bounds(2, 2), name) for name in "ab"]
        joined(ends, *nodes)
        lose_hope(cluster, *nodes)
        b.leave(Reason.WITHDREW)
        assert a.wait(lambda view: view.state is State.BROKEN, time.monotonic() + 30), link_of(a).trouble
        ends.close()


def test_who_was_told_that_there_is_no_hope_finishes_well_when_etcd_is_back(run: str, ends: ExitStack) -> None:
    with running() as cluster, EtcdClient(cluster.endpoints) as client:
        nodes = [member(cluster.endpoints, run, Bounds(2, 2), name) for name in "ab"]
        joined(ends, *nodes)
        lose_hope(cluster, *nodes)
        with ThreadPoolExecutor() as pool:
            assert all(pool.map(lambda node: node.leave(Reason.FINISHED), nodes))
        board = estate.read_board(client, Keys(PREFIX, run), run)
        assert board is not None
        assert board.ended is not None
        assert board.ended.ending is Ending.SUCCEEDED


def test_no_hope_is_an_outage_that_ends_the_trust_in_a_world(run: str, ends: ExitStack) -> None:
    with running() as cluster:
        node = member(cluster.endpoints, run, Bounds(1, 1), outage_grace_s=1.0)
        joined(ends, node)
        with nobody_behind(cluster):
            assert node.wait(lambda view: view.state is State.BROKEN, time.monotonic() + 30)
            assert node.waiting() == 1
        ends.close()


def test_a_node_that_lingers_after_the_end_is_not_in_the_next_run(
    cluster: Cluster, run: str, observer: Observer, ends: ExitStack
) -> None:
    """It stays for longer than the tombstone does, and its word on a live lease must not be taken for a join."""
    a, b, new = (member(cluster.endpoints, run, Bounds(2, 2), name, closed_ttl_s=1.0) for name in ("a", "b", "new"))
    joined(ends, a, b)
    leads, lingers = (a, b) if link_of(a)._succession._leader is not None else (b, a)
    leads.close_run()
    until(lingers.is_closed, "it is told")
    leads.leave(Reason.WITHDREW)
    until(lambda: observer.board() is None, "the tombstone is gone")
    until(lambda: observer.words() == 0, "and what was said in the run")
    ends.callback(new.leave, Reason.WITHDREW, patience_s=0.0)
    with pytest.raises(RendezvousTimeoutError, match="1 of at least 2 nodes"):
        new.join(1.0)


def test_whatever_happens_in_a_links_thread_is_told_to_who_waits_and_the_link_goes_on(
    cluster: Cluster, run: str, ends: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_failing_again = threading.Event()

    def fails(link: EtcdLink) -> None:
        if link._refusal is not None:
            is_failing_again.set()
            until(lambda: link._refusal is None, "somebody asks again")
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as broken:
        # Before there is a link: one that has begun to lead could give the node its place in spite of the failure.
        broken.setattr(EtcdLink, "_look_after_leader", fails)
        node = member(cluster.endpoints, run, Bounds(1, 1))
        ends.callback(node.leave, Reason.WITHDREW, patience_s=0.0)
        link = link_of(node)
        with pytest.raises(RendezvousError, match=r"the link to etcd failed: .*can't start new thread"):
            node.join(30.0)
        link._wake()
        assert is_failing_again.wait(30)
    # What fails meanwhile was not asked by this join, and does not refuse it.
    assert node.join(30.0).size == 1
    assert link.refusal is None


def asks_otherwise(hub: Hub, monkeypatch: pytest.MonkeyPatch, *, grants: bool) -> None:
    """Leases that are asked for without waiting get no answer, whether that reached etcd or not."""
    sent, lost = hub.ask, CallFailedError("UNAVAILABLE", "the answer was lost")

    def ask(method: str, request: Message, timeout_s: float, answered: Callable[[Reply], None]) -> None:
        if not method.endswith("LeaseGrant"):
            sent(method, request, timeout_s, answered)
            return
        arrived = threading.Event()
        if grants:
            sent(method, request, timeout_s, lambda _: arrived.set())
            assert arrived.wait(30)
        answered(Reply(hub.endpoints[0], 0, lost))

    monkeypatch.setattr(hub, "ask", ask)


@pytest.mark.parametrize("grants", [False, True], ids=["grants are lost", "answers are lost"])
def test_words_come_to_rest_on_leases_whatever_becomes_of_the_grants(
    grants: bool,
    cluster: Cluster,
    run: str,
    observer: Observer,
    ends: ExitStack,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Leases are asked for ahead of what is written on them: a node's own for its word, the run's for the board."""
    caplog.set_level("INFO", "rallypoint.etcd")
    hub = ends.enter_context(EtcdClient(cluster.endpoints))._open
    asks_otherwise(hub, monkeypatch, grants=grants)
    a, b = (member(cluster.endpoints, run, Bounds(2, 2), name) for name in "ab")
    joined(ends, a, b)
    start = time.monotonic()
    until(lambda: time.monotonic() > start + 3.5, "leases of 2 s that nobody renews would be gone")
    assert observer.words() == 2
    assert observer.board() is not None
    assert [node.view.state for node in (a, b)] == [State.HOLDS, State.HOLDS]
    (leads,) = (found for node in (a, b) if (found := link_of(node)._succession._leader) is not None)
    assert leads._run_lease is not None
    assert leads._run_lease in hub.part(Keeper)._kept
    assert "starts over" not in caplog.text


@pytest.mark.parametrize("is_noticed", [True, False], ids=["noticed", "unnoticed"])
def test_a_lease_of_the_run_that_was_lost_before_it_was_needed_is_replaced(
    is_noticed: bool, cluster: Cluster, run: str, observer: Observer, ends: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A founder asks for it ahead, and needs it when there are enough nodes: somebody may have revoked it by then."""
    monkeypatch.setattr(leader, "RUN_LEASE_S", 3)
    linger, lost = leader.Leader._linger, queue.SimpleQueue[int]()

    def lingers(leads: Any, leading: Any) -> None:
        lease = leads._asked_ahead
        if lease is not None and lost.empty():
            assert lease.answered.wait(30)
            observer.client.revoke(lease.id)
            if is_noticed:
                assert lease.lost.wait(30)
            lost.put(lease.id)
        linger(leads, leading)

    monkeypatch.setattr(leader.Leader, "_linger", lingers)
    node = member(cluster.endpoints, run, Bounds(1, 1))
    joined(ends, node)
    leads: Any = link_of(node)._succession._leader
    assert leads._run_lease.id == link_of(node).run_lease != lost.get(timeout=0)
    assert observer.client.time_to_live(leads._run_lease.id).ttl > 0


def test_a_handler_that_never_joined_has_its_lease_ready_and_leaves_nothing_behind(
    cluster: Cluster, run: str, observer: Observer
) -> None:
    node = member(cluster.endpoints, run, Bounds(1, 1))
    lease = link_of(node)._lease
    assert lease is not None
    assert lease.answered.wait(30)
    assert observer.client.time_to_live(lease.id).ttl > 0
    node.leave(Reason.WITHDREW, patience_s=0.0)
    assert observer.client.time_to_live(lease.id).ttl == -1
    assert observer.words() == 0


def test_a_lease_that_was_lost_before_the_first_join_is_replaced(
    cluster: Cluster, run: str, observer: Observer, ends: ExitStack
) -> None:
    """As it is where the process stood still for a while, which takes long to start."""
    node = member(cluster.endpoints, run, Bounds(1, 1))
    ends.callback(node.leave, Reason.WITHDREW, patience_s=0.0)
    lease = link_of(node)._lease
    assert lease is not None
    assert lease.answered.wait(30)
    observer.client.revoke(lease.id)
    until(lease.lost.is_set, "it is noticed")
    assert node.join(30.0).size == 1
    assert link_of(node)._lease is not lease


def test_a_handler_is_made_where_no_lease_can_be_asked_for_and_its_join_asks_again(
    cluster: Cluster, run: str, ends: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: Any, **__: Any) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as crowded:
        crowded.setattr(EtcdClient, "grant", refuses)
        node = member(cluster.endpoints, run, Bounds(1, 1))
    ends.callback(node.leave, Reason.WITHDREW, patience_s=0.0)
    assert link_of(node)._lease is None
    assert node.join(30.0).size == 1


def test_a_lease_that_is_granted_after_its_link_was_closed_is_not_kept(
    cluster: Cluster, run: str, ends: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub, held = ends.enter_context(EtcdClient(cluster.endpoints))._open, queue.SimpleQueue[Callable[[], None]]()
    sent = hub.ask
    monkeypatch.setattr(hub, "ask", lambda *asked: held.put(partial(sent, *asked)))
    node = member(cluster.endpoints, run, Bounds(1, 1))
    ends.callback(node.leave, Reason.WITHDREW, patience_s=0.0)
    lease = link_of(node)._lease
    assert lease is not None
    link_of(node).close()
    while not held.empty():
        held.get()()
    assert lease.answered.wait(30)
    assert lease.is_granted
    assert lease not in hub.part(Keeper)._kept


def test_who_needs_a_login_is_not_made_to_wait_for_it_before_it_joins() -> None:
    with socketserver.TCPServer((HOST, 0), socketserver.BaseRequestHandler) as silent:  # nobody is ever answered there
        client = EtcdClient(f"{HOST}:{silent.server_address[1]}", user=User("alice", "secret"))
        node = EtcdMember(client, PREFIX, "run", Bounds(1, 1), Settings(), this_node("a", address=HOST))
        assert link_of(node)._lease is None
        node.leave(Reason.WITHDREW, patience_s=0.0)


def test_nothing_is_written_on_a_lease_before_etcd_has_said_that_it_is_there(
    cluster: Cluster, run: str, observer: Observer, ends: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a node's word, nor the board on the lease of the run: members of etcd 3.4 may disagree about it for ever."""
    hub, held = ends.enter_context(EtcdClient(cluster.endpoints))._open, queue.SimpleQueue[Callable[[], None]]()
    sent, call = hub.ask, hub.call
    written: list[tuple[str, bool]] = []

    def ask(method: str, request: Message, timeout_s: float, answered: Callable[[Reply], None]) -> None:
        if isinstance(request, LeaseGrantRequest):
            held.put(lambda: sent(method, request, timeout_s, answered))
        else:
            sent(method, request, timeout_s, answered)

    def noted(method: str, request: Message, *arguments: Any, **options: Any) -> Any:
        if isinstance(request, TxnRequest):
            puts = [op.request_put for op in (*request.success, *request.failure) if op.request_put is not None]
            written.extend((put.key.decode(), observer.client.time_to_live(put.lease).ttl > 0) for put in puts)
        return call(method, request, *arguments, **options)

    monkeypatch.setattr(hub, "ask", ask)
    monkeypatch.setattr(hub, "call", noted)
    node = member(cluster.endpoints, run, Bounds(1, 1))
    ends.callback(node.leave, Reason.WITHDREW, patience_s=0.0)
    link, own = link_of(node), held.get(timeout=30)
    link.join(60.0)
    until(lambda: link._post is not None and link._post.state.name == "RESTS", "it waits for its lease")
    assert written == []
    own()
    lease_of_run = held.get(timeout=30)
    until(lambda: observer.words() == 1, "its word is there")
    assert {key for key, _ in written} == {observer.keys.node(node.view.node.id), observer.keys.leader}
    lease_of_run()
    assert node.wait(lambda view: view.state is State.HOLDS, time.monotonic() + 30.0)
    assert observer.keys.board in {key for key, _ in written}
    assert all(was_there for _, was_there in written)


def test_who_leaves_before_there_is_a_run_takes_its_word_back(
    cluster: Cluster, run: str, observer: Observer, ends: ExitStack
) -> None:
    node = member(cluster.endpoints, run, Bounds(1, 1))
    ends.callback(node.leave, Reason.WITHDREW, patience_s=0.0)
    with EtcdClient(cluster.endpoints) as client, client.grant(60) as lease:
        client.put(Keys(PREFIX, run).leader, "somebody who has not come to it yet", lease=lease)
        link_of(node).join(60.0)
        until(lambda: observer.words() == 1, "its word is there")
        link_of(node).leave(Reason.WITHDREW)
        until(lambda: observer.words() == 0, "it is not")


def test_a_spare_that_was_given_up_stands_by_again_however_long_it_had(
    cluster: Cluster, run: str, ends: ExitStack
) -> None:
    a, spare = member(cluster.endpoints, run, Bounds(1, 1)), member(cluster.endpoints, run, Bounds(1, 1), "b")
    joined(ends, a)
    ends.callback(spare.leave, Reason.WITHDREW, patience_s=0.0)
    with ThreadPoolExecutor() as pool:
        standing_by = pool.submit(spare.join, 2.0)
        join_ends = time.monotonic() + 2.0
        assert spare.wait(lambda view: view.state is State.SPARE, time.monotonic() + 30.0)
        until(lambda: time.monotonic() > join_ends, "the time that it had to join passes")
        link, before = link_of(spare), spare.view.node.id
        # It was in a world before, such as one from which it came late to the next.
        link._change(lambda view: msgspec.structs.replace(view, world=a.view.world))
        assert link._lease is not None
        a._client.revoke(link._lease.id)
        again = spare.wait(
            lambda view: (view.node.id != before and view.state is State.SPARE) or standing_by.done(),
            time.monotonic() + 30.0,
        )
        assert again
        assert not standing_by.done()
        a.leave(Reason.WITHDREW)
        assert standing_by.result(30.0).rank == 0
