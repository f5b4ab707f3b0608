"""How a run forms, grows, shrinks and ends on etcd when all goes well (rules 1, 4, 7, 8, 11, 12, 17a)."""

from __future__ import annotations

import re
from functools import partial
from itertools import pairwise

import pytest

from rallypoint.messages.types import Ending
from tests.support.etcd_node_processes import (
    EtcdProcesses,
    Observer,
    by_rank,
    form,
    observing,
    regroup,
    says,
    undisturbed,
)
from tests.support.etcd_servers import VERSIONS, Cluster, shared
from tests.support.etcd_tools import etcd
from tests.support.waiting import until


@pytest.mark.parametrize("version", VERSIONS)
def test_nodes_form_one_world_with_a_store_and_end_well(processes: EtcdProcesses, run: str, version: str) -> None:
    cluster = shared(version, 3)
    first, *rest = nodes = form(processes, cluster.endpoints, run, "a", "b", "c", nodes=3)
    first.ask("set", "stored", key="greeting", value="hello")
    for node in rest:
        assert node.ask("get", "value", key="greeting")["value"] == "hello"
    assert [peer[:2] for peer in first.ask("peers", "peers")["peers"]] == [
        [rank, node.name] for rank, node in enumerate(nodes)
    ]
    for node in nodes:
        node.order("finish")
    for node in nodes:
        assert node.expect("left")["done"]
        assert not [event for event in node.heard("changed") if not event["closed"]]
    with observing(cluster.endpoints, run) as observer:
        record = observer.known()
        assert record.claim is None, "nobody serves it any more"
        assert record.closing is not None
        assert record.closing.ending is Ending.SUCCEEDED
        assert observer.claims() == (), "no claim's lease is left"


@pytest.mark.parametrize("count", [2, 6])
def test_forming_costs_etcd_a_handful_of_writes_however_many_nodes_there_are(
    processes: EtcdProcesses, run: str, count: int
) -> None:
    with etcd("3.5") as cluster, observing(cluster.endpoints, run) as observer:
        nodes = processes.nodes(*(f"n{number}" for number in range(count)))
        for node in nodes:
            node.join(cluster.endpoints, count, run)
        by_rank(nodes, round=1)
        until(lambda: observer.known().met > 0, "the last of them is written")
        # A key's version counts its writes.
        assert sum(kv.version for kv in observer.everything()) <= 5


@pytest.mark.parametrize("world", ["up", "gathering"])
def test_nothing_is_written_while_nothing_changes(processes: EtcdProcesses, run: str, world: str) -> None:
    with etcd("3.5") as cluster, observing(cluster.endpoints, run) as observer:
        nodes = processes.nodes("a", "b")
        for node in nodes:
            node.join(cluster.endpoints, 2 if world == "up" else 3, run, lease_ttl=6)
        if world == "up":
            by_rank(nodes)
        else:
            for node in nodes:
                until(partial(says, node, "2 of at least 3"), "both are here")
        until(lambda: observer.known().met > 0, "all is written")
        # Of this run alone: what other runs left in this etcd may expire meanwhile.
        before = observer.everything()
        (claim,) = observer.claims()
        left = [0]

        def is_renewed_twice() -> bool:
            left.append(observer.client.time_to_live(claim.lease).ttl)
            return sum(later > sooner for sooner, later in pairwise(left)) > 2

        until(is_renewed_twice, "its lease was renewed again and again")
        assert observer.everything() == before


def test_a_late_node_is_admitted_when_the_members_regroup(processes: EtcdProcesses, cluster: Cluster, run: str) -> None:
    a, b = form(processes, cluster.endpoints, run, "a", "b", nodes="2:3")
    late = processes.node("late")
    assert a.waiting() == 0
    late.join(cluster.endpoints, "2:3", run)
    ranked = regroup([a, b], late, round=2)
    assert sorted(node.name for node in ranked[:2]) == ["a", "b"]


def test_a_surplus_node_stands_by_and_ends_well_with_the_run(
    processes: EtcdProcesses, cluster: Cluster, run: str
) -> None:
    a, b = form(processes, cluster.endpoints, run, "a", "b", nodes=2)
    surplus = processes.node("surplus")
    surplus.join(cluster.endpoints, 2, run, join_timeout=1.5)
    until(lambda: surplus.standing()["state"] == "SPARE", "it stands by")
    for node in (a, b):
        node.undisturbed()
        node.order("finish")
    for node in (a, b):
        assert node.expect("left")["done"]
    assert surplus.failed("RendezvousGracefulExitError") == f"run {run!r} ended well, and this spare was not needed"


def test_a_spare_takes_the_place_of_one_that_withdraws(
    processes: EtcdProcesses, old_cluster: Cluster, run: str
) -> None:
    a, b = form(processes, old_cluster.endpoints, run, "a", "b", nodes=2)
    # It outlives its own join time-out: no deadline runs while it stands by.
    spare = processes.node("spare")
    spare.join(old_cluster.endpoints, 2, run, role="spare", join_timeout=1.5)
    until(lambda: spare.standing()["state"] == "SPARE", "it stands by")
    b.ask("withdraw", "left")
    assert a.changed()["why"] == "b withdrew: RuntimeError('told to')"
    a.again()
    assert {node.name for node in by_rank([a, spare], round=2)} == {"a", "spare"}


def test_an_early_finisher_does_not_break_the_world(processes: EtcdProcesses, cluster: Cluster, run: str) -> None:
    a, b, c = form(processes, cluster.endpoints, run, "a", "b", "c", nodes=3)
    with observing(cluster.endpoints, run) as observer:
        last = next(node for node in (c, b) if node is not observer.server([a, b, c]))
    assert last.ask("finish", "left")["done"]
    last.kill()
    rest = [node for node in (b, c, a) if node is not last]
    undisturbed(rest)
    for node in rest:
        node.order("finish")
    for node in rest:
        assert node.expect("left")["done"]
        assert not any(not event["closed"] for event in node.heard("changed"))


def test_a_member_that_gives_up_closes_a_run_of_fixed_size(
    processes: EtcdProcesses, cluster: Cluster, run: str
) -> None:
    a, b = form(processes, cluster.endpoints, run, "a", "b", nodes=2)
    b.order("give_up")
    changed = a.changed()
    assert (changed["closed"], changed["why"]) == (True, "b gave up: it failed")


def test_a_time_out_says_who_is_missing_and_leaves_nothing_in_the_way(
    processes: EtcdProcesses, cluster: Cluster, run: str
) -> None:
    a, b, c = processes.nodes("a", "b", "c")
    a.join(cluster.endpoints, 3, run, join_timeout=2.0)
    b.join(cluster.endpoints, 3, run)
    said = a.failed("RendezvousTimeoutError")
    where = re.escape(f"run {run!r} at etcd://{cluster.endpoints}/test was not joined within 2.")
    assert re.match(where + r"\d s: 2 of at least 3 nodes are here", said), said
    for node in (a, c):
        node.join(cluster.endpoints, 3, run)
    by_rank([a, b, c], round=1)


def test_a_node_with_other_bounds_is_refused_with_both_shown(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer
) -> None:
    a, odd = processes.nodes("a", "odd")
    a.join(cluster.endpoints, 2, run)
    until(lambda: observer.record() is not None, "it has founded the run")
    odd.join(cluster.endpoints, "2:4", run)
    refusal = odd.failed("RendezvousError")
    assert "2:4" in refusal
    assert "2 nodes" in refusal


def test_two_nodes_of_one_process_share_one_election(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer
) -> None:
    both, other = processes.nodes("both", "other")
    both.join(cluster.endpoints, 3, run)
    both.join(cluster.endpoints, 3, run, do="join_beside", node_name="second")
    other.join(cluster.endpoints, 3, run)
    ranks = {both.placed(round=1)["rank"], other.placed(round=1)["rank"], both.expect("beside", round=1)["rank"]}
    assert ranks == {0, 1, 2}
    assert both.standing()["elections"] == 1
    assert len(observer.claims()) == 1
    both.ask("finish_beside", "left beside", name="second")
    undisturbed([other])
