"""Nodes leave (rules 8, 17g): a server goes with its process, hands over what it knows, and breaks nobody's world by it."""

from __future__ import annotations

import pytest

from rallypoint.messages.types import Ending
from tests.support.etcd_node_processes import (
    EtcdProcesses,
    Observer,
    by_rank,
    form,
    observing,
    others,
    regroup,
    undisturbed,
)
from tests.support.etcd_servers import VERSIONS, Cluster, shared
from tests.support.etcd_tools import etcd, etcdctl
from tests.support.waiting import until


@pytest.mark.parametrize("version", VERSIONS)
def test_the_serving_node_withdraws_and_another_one_serves(processes: EtcdProcesses, run: str, version: str) -> None:
    cluster = shared(version, 3)
    nodes = form(processes, cluster.endpoints, run, "a", "b", "c", nodes="2:3")
    with observing(cluster.endpoints, run) as observer:
        server = observer.server(nodes)
        server.ask("withdraw", "left")
        rest = others(nodes, server)
        regroup(rest, round=2)
        assert observer.server(rest) in rest
        server.kill()
        for node in rest:
            node.ask("reach", "reached")
            assert node.waiting() == 0, node.account()
        assert observer.worlds() == [1, 2]


def test_the_serving_node_finishes_first_and_serves_on_until_all_have_finished(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer
) -> None:
    nodes = form(processes, cluster.endpoints, run, "a", "b", "c", nodes=3)
    server = observer.server(nodes)
    rest = others(nodes, server)
    server.order("finish")
    until(lambda: finished(observer) == 1, "it is recorded")
    undisturbed(rest)
    assert observer.server(nodes) is server
    for node in rest:
        node.order("finish")
    for node in nodes:
        assert node.expect("left")["done"]
        assert not any(not event["closed"] for event in node.heard("changed"))
    closing = observer.known().closing
    assert closing is not None
    assert closing.ending is Ending.SUCCEEDED


def finished(observer: Observer) -> int:
    """How many ranks have finished, as the record has it."""
    world = observer.known().world
    return 0 if world is None else len(list(world.finished_ranks()))


def test_a_server_whose_node_finished_and_that_waits_no_longer_hands_over(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer
) -> None:
    nodes = form(processes, cluster.endpoints, run, "a", "b", "c", nodes=3, close_timeout=1.0)
    server = observer.server(nodes)
    server.ask("finish", "left")
    server.kill()
    rest = others(nodes, server)
    undisturbed(rest)
    assert observer.server(rest) in rest
    assert finished(observer) == 1, "the next server knows who has finished"
    for node in rest:
        node.order("finish")
    for node in rest:
        node.expect("left")
    closing = observer.known().closing
    assert closing is not None
    assert closing.ending is Ending.SUCCEEDED


@pytest.mark.parametrize("then", ["killed", pytest.param("stopped", marks=pytest.mark.soak)])
def test_who_has_finished_stays_so_for_the_next_server(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer, then: str
) -> None:
    """The finish was acknowledged, so it is recorded: the server may go the moment after."""
    nodes = form(processes, cluster.endpoints, run, "a", "b", "c", nodes="1:3", last_call_timeout=30.0)
    server = observer.server(nodes)
    quitter, last = sorted(others(nodes, server), key=lambda node: -node.heard("placed")[-1]["rank"])
    assert quitter.ask("finish", "left")["done"]
    if then == "killed":
        server.kill()
    else:
        server.pause()
    quitter.kill()
    regroup([last], round=2)
    world = observer.known().world
    assert world is not None
    assert world.ended_before == 1
    last.order("finish")
    assert last.expect("left")["done"]
    closing = observer.known().closing
    assert closing is not None
    assert closing.ending is Ending.SUCCEEDED


def test_a_fresh_node_beside_a_server_that_withdraws_is_admitted_by_the_next(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer
) -> None:
    nodes = form(processes, cluster.endpoints, run, "a", "b", nodes="2:3")
    server = observer.server(nodes)
    fresh = processes.node("fresh")
    fresh.join(cluster.endpoints, "2:3", run)
    (rest,) = others(nodes, server)
    rest.changed()
    server.ask("withdraw", "left")
    rest.again()
    assert {node.name for node in by_rank([rest, fresh], round=2)} == {rest.name, "fresh"}
    assert observer.worlds() == [1, 2]


def test_everybody_withdraws_and_nobody_serves(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer
) -> None:
    nodes = form(processes, cluster.endpoints, run, "a", "b", "c", nodes="2:3")
    for node in nodes:
        node.order("withdraw")
    for node in nodes:
        node.expect("left")
    until(lambda: observer.known().claim is None, "the last one has handed over to nobody")
    assert observer.claims() == ()


def test_a_handler_that_never_joins_leaves_no_claim(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer
) -> None:
    """It is made, which may make it the server, and shut down."""
    node = processes.node("a")
    node.join(cluster.endpoints, 2, run, do="make")
    node.expect("made")
    assert observer.server([node]) is node
    assert node.ask("shut_down", "left")["done"]
    record = observer.record()
    assert record is None or record.claim is None
    assert observer.claims() == ()
    assert node.standing()["elections"] == 0
    pair = form(processes, cluster.endpoints, run, "b", "c", nodes=2)
    undisturbed(pair)


def test_a_handler_that_is_shut_down_at_once_leaves_no_claim(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer
) -> None:
    node = processes.node("a")
    node.join(cluster.endpoints, 2, run, do="make")
    node.expect("made")
    node.ask("shut_down", "left")
    until(lambda: observer.claims() == (), "no claim is left")
    record = observer.record()
    assert record is None or record.claim is None


def test_a_node_that_knows_that_the_run_is_closed_founds_no_other_one(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer
) -> None:
    """The server closes the run and goes; the other node takes its time to stop its workers."""
    nodes = form(processes, cluster.endpoints, run, "a", "b", nodes=2)
    server = observer.server(nodes)
    (other,) = others(nodes, server)
    incarnation = observer.known().incarnation
    server.ask("close", "closed")
    server.ask("finish", "left")
    until(lambda: other.standing()["state"] == "CLOSED", "it is told")
    assert other.standing()["claim"] == ""
    record = observer.known()
    assert (record.incarnation, record.claim) == (incarnation, None)
    assert record.closing is not None


def test_processes_that_lose_the_race_to_serve_leave_no_lease_behind(processes: EtcdProcesses, run: str) -> None:
    with etcd() as cluster:
        nodes = processes.nodes(*(f"n{number}" for number in range(6)))
        for node in nodes:
            node.join(cluster.endpoints, 6, run)
        by_rank(nodes)
        # That of the run, and that of the claim.
        until(lambda: "found 2 leases" in etcdctl(cluster, "lease", "list"), "the losers revoke theirs")
