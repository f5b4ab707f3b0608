"""A run is closed (rules 1, 17c, 17h): recorded before it is acknowledged, and told to everybody, also by a later server."""

from __future__ import annotations

import re

import pytest

from rallypoint.messages.types import Ending
from tests.support.etcd_node_processes import EtcdProcesses, Observer, by_rank, form, observing, others
from tests.support.etcd_servers import VERSIONS, Cluster, shared
from tests.support.waiting import until


@pytest.mark.parametrize("version", VERSIONS)
def test_closing_a_run_ends_it_for_everybody(processes: EtcdProcesses, run: str, version: str) -> None:
    cluster = shared(version, 3)
    a, b, c = form(processes, cluster.endpoints, run, "a", "b", "c", nodes=3)
    b.ask("close", "closed")
    with observing(cluster.endpoints, run) as observer:
        closing = observer.known().closing
        assert closing is not None, "what is acknowledged is recorded"
        assert closing.ending is Ending.FAILED
    told = rf"run {run!r} is closed as failed: {b.name}\.\w+ closed it"
    for node in (a, b, c):
        assert node.changed()["closed"]
        assert node.waiting() == 0
        node.again()
        assert re.fullmatch(told, node.failed("RendezvousClosedError"))


def test_an_acknowledged_close_survives_its_server(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer
) -> None:
    nodes = form(processes, cluster.endpoints, run, "a", "b", "c", nodes=3)
    server = observer.server(nodes)
    asker, stopped = others(nodes, server)
    stopped.pause()
    asker.ask("close", "closed")
    server.kill()
    stopped.resume()
    for node in (asker, stopped):
        assert node.changed()["closed"]
    closing = observer.known().closing
    assert closing is not None
    assert closing.ending is Ending.FAILED


def test_a_close_that_a_stopped_server_does_not_confirm_raises_and_is_delivered_all_the_same(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer
) -> None:
    """The node that asked goes on asking, and the next server hears it."""
    nodes = form(processes, cluster.endpoints, run, "a", "b", "c", nodes="2:3", close_timeout=1.0)
    server = observer.server(nodes)
    asker, other = others(nodes, server)
    server.pause()
    asker.order("close")
    said = asker.failed("RendezvousConnectionError")
    assert "did not confirm it within 1 s; this node goes on asking until it leaves" in said
    for node in (asker, other):
        # Its world may be told to be broken a moment before the run is closed.
        until(lambda node=node: node.standing()["state"] == "CLOSED", "it is told")  # type: ignore[misc]
    server.resume()
    until(lambda: server.standing()["state"] in ("CLOSED", "FENCED"), "so is this one")


def test_the_members_of_a_closed_run_need_no_server_to_know_it(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer
) -> None:
    """All others are gone when it wakes up: the record tells it."""
    nodes = form(processes, cluster.endpoints, run, "a", "b", "c", nodes=3, heartbeat_timeout=10.0, close_timeout=1.0)
    server = observer.server(nodes)
    stopped, asker = others(nodes, server)
    stopped.pause()
    asker.ask("close", "closed")
    for node in (asker, server):
        node.kill()
    stopped.resume()
    assert stopped.changed()["closed"]


def test_a_node_that_comes_late_is_told_that_the_run_is_closed_while_its_nodes_are_there(
    processes: EtcdProcesses, cluster: Cluster, run: str
) -> None:
    nodes = form(processes, cluster.endpoints, run, "a", "b", nodes=2)
    nodes[0].ask("close", "closed")
    late = processes.node("late")
    late.join(cluster.endpoints, 2, run)
    assert "is closed as failed" in late.failed("RendezvousClosedError")


def test_nodes_that_found_a_closed_record_without_a_server_start_the_next_incarnation(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer
) -> None:
    old = form(processes, cluster.endpoints, run, "a", "b", nodes=2)
    before = observer.known()
    old[0].ask("close", "closed")
    for node in old:
        node.kill()
    new = processes.nodes("c", "d")
    for node in new:
        node.join(cluster.endpoints, 2, run)
    by_rank(new)
    after = observer.known()
    assert after.incarnation != before.incarnation
    assert after.round > before.round, "the round continues"
    assert after.last is not None
    assert (after.last.incarnation, after.last.ending) == (before.incarnation, Ending.FAILED)
