"""Nodes that are killed or stopped (rules 6, 9): the others are told, and regroup without them."""

from __future__ import annotations

import pytest

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


@pytest.mark.parametrize("version", VERSIONS)
def test_a_killed_node_is_missed_and_the_others_regroup(processes: EtcdProcesses, run: str, version: str) -> None:
    cluster = shared(version, 3)
    nodes = form(processes, cluster.endpoints, run, "a", "b", "c", nodes="2:3")
    with observing(cluster.endpoints, run) as observer:
        server, epoch = observer.server(nodes), observer.known().epoch
        victim = others(nodes, server)[0]
        victim.kill()
        rest = others(nodes, victim)
        for node in rest:
            assert node.changed()["why"].startswith(f"{victim.name} was lost: ")
            node.again()
        by_rank(rest, round=2, size=2)
        assert observer.server(rest) is server
        assert observer.known().epoch == epoch


def test_too_few_survivors_wait_for_a_replacement(processes: EtcdProcesses, old_cluster: Cluster, run: str) -> None:
    a, b = form(processes, old_cluster.endpoints, run, "a", "b", nodes="2")
    new = processes.node("new")
    a.kill()
    b.changed()
    b.again()
    new.join(old_cluster.endpoints, 2, run)
    assert {node.name for node in by_rank([b, new], round=2)} == {"b", "new"}


@pytest.mark.parametrize("stays", ["the server", "another"])
def test_all_but_one_are_killed_at_once_and_replaced(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer, stays: str
) -> None:
    nodes = form(processes, cluster.endpoints, run, "a", "b", "c", "d", nodes="2:4")
    server = observer.server(nodes)
    last = server if stays == "the server" else others(nodes, server)[0]
    for node in others(nodes, last):
        node.process.kill()
    last.changed()
    last.again()
    new = processes.node("new")
    new.join(cluster.endpoints, "2:4", run)
    by_rank([last, new], round=2)
    assert observer.worlds() == [1, 2]


def test_a_stopped_node_learns_that_it_is_out_and_comes_back_as_another(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer
) -> None:
    nodes = form(processes, cluster.endpoints, run, "a", "b", "c", nodes="2:3")
    stopped = others(nodes, observer.server(nodes))[0]
    was = stopped.standing()["node"]
    stopped.pause()
    rest = others(nodes, stopped)
    regroup(rest, round=2)
    stopped.resume()
    stopped.changed()
    assert stopped.waiting() == 1
    stopped.again()
    regroup(rest, stopped, round=3)
    assert stopped.standing()["node"] not in ("", was), "it is another node now"
    assert [event["round"] for node in rest for event in node.heard("placed")] == [1, 2, 3] * 2


def test_a_node_that_is_stopped_for_less_than_the_time_out_loses_nothing(
    processes: EtcdProcesses, old_cluster: Cluster, run: str, old_observer: Observer
) -> None:
    nodes = form(processes, old_cluster.endpoints, run, "a", "b", nodes=2, heartbeat_timeout=15.0)
    server = old_observer.server(nodes)
    (stopped,) = others(nodes, server)
    stopped.pause()
    server.ask("bide", "bided", seconds=2.0)
    stopped.resume()
    undisturbed(nodes)
