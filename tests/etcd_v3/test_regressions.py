"""Schedules that went wrong on version 0.1, whose nodes wrote their own keys in etcd: the elected server keeps its promises."""

from __future__ import annotations

import os
import signal
from functools import partial

import pytest

from rallypoint.messages.types import Ending
from tests.etcd_v3.interrupted_program import OUTAGE_GRACE_S
from tests.etcd_v3.writes_proxy import writes_proxy_to
from tests.support.cli_processes import answer
from tests.support.etcd_node_processes import (
    PREFIX,
    EtcdNode,
    EtcdProcesses,
    Observer,
    by_rank,
    form,
    observing,
    others,
    regroup,
    says,
    undisturbed,
)
from tests.support.etcd_servers import Cluster, shared
from tests.support.node_processes import ControlledProcess
from tests.support.waiting import PATIENCE_S, until


@pytest.mark.parametrize("gone", ["killed", "evicted", pytest.param("stopped", marks=pytest.mark.soak)])
def test_a_busy_node_is_in_no_world_that_it_did_not_ask_for_and_is_told_to_regroup(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer, gone: str
) -> None:
    """One withdraws, another is busy for longer than `regroup_timeout`, and then the serving node goes.

    The process of a node that is evicted serves on.
    """
    nodes = form(processes, cluster.endpoints, run, *"abcd", nodes="2:5", last_call_timeout=1.0, regroup_timeout=1.0)
    server = observer.server(nodes)
    quitter, busy, other = others(nodes, server)
    quitter.ask("withdraw", "left")
    for node in (server, other):
        node.changed()
        node.again()
    by_rank([server, other], round=2, size=2)
    if gone == "killed":
        server.kill()
    elif gone == "stopped":
        server.pause()
    else:
        place = ("--endpoint", f"etcd://{cluster.endpoints}", "--etcd-prefix", PREFIX)
        assert "was evicted" in answer("evict", run, server.name, *place)
        assert "was evicted" in server.changed()["why"]
    other.changed()
    other.again()
    assert busy.changed()["fence"] == busy.heard("placed")[-1]["fence"]
    until(lambda: busy.waiting() == 1, "it is to regroup")
    assert [event["round"] for event in busy.heard("placed")] == [1], "it has asked for no other world"
    busy.again()
    by_rank([busy, other])
    sizes = {r.world.seal_id: r.world.size for _, r in observer.history() if r is not None and r.world is not None}
    assert list(sizes.values()) == [4, 2, 2]
    if gone == "evicted":
        assert observer.server(nodes) is server
        assert server.heard("placed")[-1]["round"] == 2, "it is kept out"


@pytest.mark.parametrize("when", ["once it is recorded", "once all have left"])
def test_a_run_id_that_is_used_again_after_its_server_was_killed_outlives_a_change_of_its_own_server(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer, when: str
) -> None:
    """The server is killed just when the run has closed well; nothing of that is taken for the end of the next run."""
    old = form(processes, cluster.endpoints, run, "a", "b", nodes=2)
    server = observer.server(old)
    (other,) = others(old, server)
    server.order("finish")
    other.order("finish")
    until(lambda: observer.known().closing is not None, "it has closed")
    if when == "once all have left":
        other.expect("left")
    server.kill()
    new = processes.nodes("c", "d", "e")
    for node in new:
        node.join(cluster.endpoints, "2:3", run, last_call_timeout=5.0)
    by_rank(new, size=3)
    heir = observer.server(new)
    round_ = heir.round
    heir.kill()
    rest = others(new, heir)
    regroup(rest, round=round_ + 1)
    assert observer.known().closing is None
    for node in rest:
        node.order("finish")
    for node in rest:
        assert node.expect("left")["done"]
    closing = observer.known().closing
    assert closing is not None
    assert closing.ending is Ending.SUCCEEDED


def test_a_claim_that_arrives_after_its_node_has_gone_stops_nobody(processes: EtcdProcesses, run: str) -> None:
    """Its write was only late: it names a server that never serves, on a lease that outlives the time of any join."""
    cluster = shared("3.5")
    with observing(cluster.endpoint, run) as observer, writes_proxy_to(cluster.members[0].port) as proxy:
        gone = processes.node("gone")
        held = proxy.hold_last_writes()
        gone.join(proxy.endpoint, 2, run, lease_ttl=120)
        assert held.one_came.wait(30.0)
        gone.kill()
        nodes = processes.nodes("a", "b")
        assert observer.record() is None
        held.let_go()
        until(observer.claims, "it has arrived")
        assert observer.known().claim is not None
        for node in nodes:
            node.join(cluster.endpoint, 2, run)
        by_rank(nodes, size=2)


def test_a_node_that_gave_up_while_its_world_was_being_recorded_is_in_no_world(
    processes: EtcdProcesses, run: str
) -> None:
    """The others learn at once that it is gone, and regroup."""
    cluster = shared("3.5")
    with observing(cluster.endpoint, run) as observer, writes_proxy_to(cluster.members[0].port) as proxy:
        server, hasty, new = processes.nodes("server", "hasty", "new")
        server.join(proxy.endpoint, 2, run, lease_ttl=30)
        assert observer.server([server]) is server
        held = proxy.hold_writes()
        hasty.join(cluster.endpoint, 2, run, join_timeout=3.0, lease_ttl=30)
        assert held.one_came.wait(30.0)
        hasty.failed("RendezvousTimeoutError")
        assert server.heard("placed") == [], "what is not recorded is not told"
        held.let_go()
        server.placed(round=1, size=2)
        assert server.changed()["why"].startswith("hasty withdrew: ")
        new.join(cluster.endpoint, 2, run)
        server.again()
        by_rank([server, new], round=2)
        assert hasty.heard("placed") == []


def test_a_node_that_came_back_while_the_server_was_stopped_is_not_fenced(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer
) -> None:
    """Its connection ends, it makes another in time, and the server hears of both when it goes on."""
    nodes = form(processes, cluster.endpoints, run, *"abc", nodes="2:3", lease_ttl=30, heartbeat_timeout=20.0)
    server = observer.server(nodes)
    back, other = others(nodes, server)
    server.pause()
    back.ask("drop", "dropped")
    other.ask("bide", "bided", seconds=2.0)
    server.resume()
    undisturbed(nodes)
    assert observer.worlds() == [1]


@pytest.mark.parametrize("then", ["goes on", "is killed"])
def test_a_close_while_the_server_is_stopped_is_not_lost(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer, then: str
) -> None:
    nodes = form(processes, cluster.endpoints, run, *"abc", nodes=3, lease_ttl=20, heartbeat_timeout=15.0)
    server = observer.server(nodes)
    asker, other = others(nodes, server)
    server.pause()
    asker.order("close")
    other.ask("bide", "bided", seconds=0.5)
    assert observer.known().closing is None
    assert asker.heard("closed") == [], "it does not return before it is recorded"
    if then == "goes on":
        server.resume()
    else:
        server.kill()
    asker.expect("closed")
    assert observer.known().closing is not None
    # Where the next server misses the rank of the one that was killed first, a node may hear of that loss before.
    for node in (asker, other):
        until(partial(is_closed, node), "it knows that the run is closed")


def is_closed(node: EtcdNode) -> bool:
    return bool(node.ask("waiting", "waiting")["closed"])


def test_a_join_that_raised_is_counted_out(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer
) -> None:
    """Its handler is still there, and was not shut down."""
    a, b, c = processes.nodes("a", "b", "c")
    a.join(cluster.endpoints, 3, run, join_timeout=1.5, do="join_and_stay")
    a.failed("RendezvousTimeoutError")
    for node in (b, c):
        node.join(cluster.endpoints, 3, run)
    for node in (b, c):
        until(partial(says, node, "2 of at least 3 nodes are here"), "who gave up is not counted")
    assert observer.known().world is None
    a.join(cluster.endpoints, 3, run)
    by_rank([a, b, c], round=1)


@pytest.mark.parametrize("is_carried", [False, True], ids=["it never arrives", "its answer is lost"])
def test_a_finish_whose_write_goes_wrong_once_is_a_finish(processes: EtcdProcesses, run: str, is_carried: bool) -> None:
    cluster = shared("3.5")
    with observing(cluster.endpoint, run) as observer, writes_proxy_to(cluster.members[0].port) as proxy:
        server, b, c = nodes = processes.nodes("server", "b", "c")
        server.join(proxy.endpoint, 3, run)
        assert observer.server([server]) is server
        for node in (b, c):
            node.join(cluster.endpoint, 3, run)
        by_rank(nodes)
        until(lambda: observer.known().met > 0, "all is written")
        quitter = max((b, c), key=lambda node: int(node.heard("placed")[-1]["rank"]))
        (rest,) = others([b, c], quitter)
        went_wrong = proxy.cut_at_next_write(is_carried=is_carried)
        assert quitter.ask("finish", "left")["done"]
        assert went_wrong.is_set()
        quitter.kill()
        undisturbed([server, rest])
        for node in (server, rest):
            node.order("finish")
        for node in (server, rest):
            assert node.expect("left")["done"]
        closing = observer.known().closing
        assert closing is not None
        assert closing.ending is Ending.SUCCEEDED


def interrupt(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer, rank: int
) -> tuple[ControlledProcess, EtcdNode]:
    """A process whose node was interrupted in `shutdown()` by Ctrl-C, and which lives on; and the other node of its world."""
    node = ControlledProcess("tests.etcd_v3.interrupted_program", cluster.endpoints, run, str(rank))
    processes.actors.append(node)
    until(observer.claims, "it serves")
    other = processes.node("other")
    other.join(cluster.endpoints, 2, run, rank=1 - rank, outage_grace=OUTAGE_GRACE_S)
    node.expect("placed")
    other.placed(size=2)
    claim = observer.known().claim
    assert claim is not None
    assert node.process.stdin is not None
    node.process.stdin.write("\n")
    until(
        lambda: (world := observer.known().world) is not None and world.finished, "it leaves, and waits for the other"
    )
    os.kill(node.pid, signal.SIGINT)
    node.expect("interrupted")
    return node, other


@pytest.mark.parametrize("rank", [0, 1])
def test_a_node_whose_shutdown_was_interrupted_keeps_no_claim(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer, rank: int
) -> None:
    """Its process lives on, and another one serves."""
    _, other = interrupt(processes, cluster, run, observer, rank)
    assert observer.server([other]) is other
    other.undisturbed()
    other.ask("withdraw", "left")
    other.kill()
    until(lambda: observer.claims() == (), "nobody claims to serve")


@pytest.mark.soak
def test_a_node_whose_shutdown_was_interrupted_renews_no_lease(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer
) -> None:
    """Its process lives on, and all that the run has left in etcd expires."""
    node, other = interrupt(processes, cluster, run, observer, rank=0)
    other.kill()
    record = observer.client.get(observer.keys.record)
    assert record is not None
    granted_s = observer.client.time_to_live(record.lease).granted_ttl
    assert granted_s == 2 * OUTAGE_GRACE_S
    until(lambda: observer.everything() == (), "all of it has expired", within_s=granted_s + PATIENCE_S)
    assert node.process.poll() is None, "the process that was interrupted is still there"


def test_peers_during_a_regroup_are_no_reason_to_delete_anything(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer
) -> None:
    nodes = form(processes, cluster.endpoints, run, *"abc", nodes="2:3")
    server = observer.server(nodes)
    quitter, asker = others(nodes, server)
    names = [peer[1] for peer in asker.ask("peers", "peers")["peers"]]
    assert sorted(names) == ["a", "b", "c"]
    quitter.ask("withdraw", "left")
    asker.changed()
    asker.order("peers")
    until(lambda: asker.heard("peers")[1:] or asker.heard("error"), "there is an answer")
    for error in asker.heard("error"):
        assert "delete" not in error["text"], error
        assert error["text"], "it says why"
    for told in asker.heard("peers")[1:]:
        assert [peer[1] for peer in told["peers"]] == names
