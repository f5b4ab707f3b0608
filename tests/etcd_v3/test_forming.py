"""How a run forms, grows, shrinks and ends on etcd when all goes well (rules 1, 4, 7, 8, 11, 12)."""

from __future__ import annotations

import re

import pytest

from tests.etcd.servers import VERSIONS, Cluster, shared
from tests.etcd_v3.harness import EtcdStage, Observer, by_rank, observing, undisturbed
from tests.waiting import until


@pytest.mark.parametrize("version", VERSIONS)
def test_nodes_form_one_world_with_a_store_and_end_well(stage: EtcdStage, run: str, version: str) -> None:
    cluster = shared(version, 3)
    nodes = stage.nodes("a", "b", "c")
    for node in nodes:
        node.join(cluster.endpoints, 3, run, closed_ttl=1.0)
    first, *others = by_rank(nodes, round=1)
    first.ask("set", "stored", key="greeting", value="hello")
    for node in others:
        assert node.ask("get", "value", key="greeting")["value"] == "hello"
    assert [peer[:2] for peer in first.ask("peers", "peers")["peers"]] == [
        [rank, node.name] for rank, node in enumerate([first, *others])
    ]
    for node in nodes:
        node.order("finish")
    for node in nodes:
        assert node.expect("left")["done"]
        assert not [event for event in node.heard("changed") if not event["closed"]]
    with observing(cluster.endpoints, run) as observer:
        until(observer.is_empty, "nothing is left once the tombstone has gone")


def test_a_late_node_is_admitted_when_the_members_regroup(
    stage: EtcdStage, cluster: Cluster, run: str, observer: Observer
) -> None:
    a, b, late = stage.nodes("a", "b", "late")
    for node in (a, b):
        node.join(cluster.endpoints, "2:3", run)
    by_rank([a, b], round=1)
    assert a.waiting() == 0
    late.join(cluster.endpoints, "2:3", run)
    for node in (a, b):
        node.changed()
        assert node.waiting() == 1
        node.again()
    assert sorted(node.name for node in by_rank([a, b, late], round=2)[:2]) == ["a", "b"]


def test_a_surplus_node_stands_by_and_ends_well_with_the_run(
    stage: EtcdStage, cluster: Cluster, run: str, observer: Observer
) -> None:
    a, b, surplus = stage.nodes("a", "b", "surplus")
    for node in (a, b):
        node.join(cluster.endpoints, 2, run)
    by_rank([a, b])
    surplus.join(cluster.endpoints, 2, run, join_timeout=1.5)
    until(lambda: observer.words() == 3, "it has joined")
    assert surplus.ask("clock", "clock")
    for node in (a, b):
        node.undisturbed()
        node.order("finish")
    for node in (a, b):
        assert node.expect("left")["done"]
    assert surplus.failed("RendezvousGracefulExitError") == f"run {run!r} ended well, and this spare was not needed"


def test_a_spare_takes_the_place_of_one_that_withdraws(
    stage: EtcdStage, old_cluster: Cluster, run: str, old_observer: Observer
) -> None:
    a, b, spare = stage.nodes("a", "b", "spare")
    for node in (a, b):
        node.join(old_cluster.endpoints, 2, run)
    by_rank([a, b])
    # It outlives its own join time-out: no deadline runs while it stands by.
    spare.join(old_cluster.endpoints, 2, run, role="spare", join_timeout=1.5)
    until(lambda: old_observer.words() == 3, "it has joined")
    b.ask("withdraw", "left")
    assert a.changed()["why"] == "b withdrew: RuntimeError('told to')"
    a.again()
    assert {node.name for node in by_rank([a, spare], round=2)} == {"a", "spare"}


def test_an_early_finisher_does_not_break_the_world(stage: EtcdStage, cluster: Cluster, run: str) -> None:
    nodes = stage.nodes("a", "b", "c")
    for node in nodes:
        node.join(cluster.endpoints, 3, run)
    a, b, c = by_rank(nodes)
    assert c.ask("finish", "left")["done"]
    c.kill()
    undisturbed([a, b])
    b.order("finish")
    assert b.expect("left")["done"]
    assert a.ask("finish", "left")["done"]
    assert not any(not event["closed"] for event in a.heard("changed") + b.heard("changed"))


def test_closing_a_run_ends_it_for_everybody(stage: EtcdStage, old_cluster: Cluster, run: str) -> None:
    nodes = stage.nodes("a", "b", "c")
    for node in nodes:
        node.join(old_cluster.endpoints, 3, run)
    a, b, c = by_rank(nodes)
    b.ask("close", "closed")
    for node in (a, b, c):
        assert node.changed()["closed"]
        assert node.waiting() == 0
        node.again()
        assert re.fullmatch(rf"run {run!r} is closed as failed: b\.\w+ closed it", node.failed("RendezvousClosedError"))


def test_a_member_that_gives_up_closes_a_run_of_fixed_size(stage: EtcdStage, cluster: Cluster, run: str) -> None:
    a, b = stage.nodes("a", "b")
    for node in (a, b):
        node.join(cluster.endpoints, 2, run)
    by_rank([a, b])
    b.ask("give_up", "left")
    changed = a.changed()
    assert (changed["closed"], changed["why"]) == (True, "b gave up: it failed")


def test_a_time_out_says_who_is_missing_and_leaves_nothing_in_the_way(
    stage: EtcdStage, cluster: Cluster, run: str
) -> None:
    a, b, c = stage.nodes("a", "b", "c")
    a.join(cluster.endpoints, 3, run, join_timeout=1.5)
    b.join(cluster.endpoints, 3, run)
    assert re.fullmatch(
        rf"run {run!r} at etcd {cluster.endpoints} was not joined within 1\.\d s: 2 of at least 3 nodes are here.*",
        a.failed("RendezvousTimeoutError"),
    )
    for node in (a, c):
        node.join(cluster.endpoints, 3, run)
    by_rank([a, b, c], round=1)


def test_a_node_with_other_bounds_is_refused_with_both_shown(
    stage: EtcdStage, cluster: Cluster, run: str, observer: Observer
) -> None:
    a, odd = stage.nodes("a", "odd")
    a.join(cluster.endpoints, 2, run)
    until(lambda: observer.board() is not None, "it has founded the run")
    odd.join(cluster.endpoints, "2:4", run)
    refusal = odd.failed("RendezvousError")
    assert "2:4" in refusal
    assert "2" in refusal
