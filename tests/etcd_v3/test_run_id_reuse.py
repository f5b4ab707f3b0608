"""A run id can be used again (rule 1), whatever became of the run before; and a run that was killed leaves nothing."""

from __future__ import annotations

import pytest

from tests.support.etcd_node_processes import EtcdNode, EtcdProcesses, Observer, by_rank, form, observing
from tests.support.etcd_servers import Cluster, shared
from tests.support.waiting import until


def incarnation(node: EtcdNode) -> str:
    """That of the world that it was placed in last."""
    fence: str = node.heard("placed")[-1]["fence"]
    return fence.partition("/")[0]


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_run_id_is_used_again_after_success(processes: EtcdProcesses, cluster: Cluster, run: str, nodes: int) -> None:
    made = processes.nodes(*"ab"[:nodes])
    incarnations = []
    for _ in range(3):
        for node in made:
            node.join(cluster.endpoints, nodes, run)
        by_rank(made)
        incarnations.append(incarnation(made[0]))
        for node in made:
            node.order("finish")
        for node in made:
            assert node.expect("left")["done"]
    assert len(set(incarnations)) == 3, "each run has an incarnation of its own"


def test_a_run_id_is_used_again_after_failure_once_its_last_node_has_left(
    processes: EtcdProcesses, old_cluster: Cluster, run: str
) -> None:
    a, b = form(processes, old_cluster.endpoints, run, "a", "b", nodes=2)
    a.ask("close", "closed")
    b.changed()
    c, d = processes.nodes("c", "d")
    c.join(old_cluster.endpoints, 2, run)
    assert "is closed as failed" in c.failed("RendezvousClosedError")
    a.kill()
    b.kill()
    for node in (c, d):
        node.join(old_cluster.endpoints, 2, run)
    by_rank([c, d])
    assert incarnation(c) != incarnation(a)


@pytest.mark.parametrize("when", ["at once", pytest.param("once the claim is gone", marks=pytest.mark.soak)])
def test_a_run_id_is_used_again_after_everything_was_killed(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer, when: str
) -> None:
    """Nobody of the old world comes back: after the hold the run is founded anew."""
    old = form(processes, cluster.endpoints, run, "a", "b", "c", nodes=3, heartbeat_timeout=1.5)
    new = processes.nodes("a", "b", "c")
    for node in old:
        node.process.kill()
    if when != "at once":
        until(lambda: not observer.claims(), "its lease ends")
    for node in new:
        node.join(cluster.endpoints, 3, run, heartbeat_timeout=1.5)
    by_rank(new, size=3)
    assert incarnation(new[0]) != incarnation(old[0])
    assert new[0].round > old[0].round


@pytest.mark.parametrize("nodes", ["1", pytest.param("3:4", marks=pytest.mark.soak)])
def test_a_run_that_was_killed_is_founded_anew_with_other_bounds(
    processes: EtcdProcesses, cluster: Cluster, run: str, nodes: str
) -> None:
    """A job that is resubmitted with another number of nodes is not refused for what its dead predecessor wanted."""
    old = form(processes, cluster.endpoints, run, "a", "b", nodes=2, heartbeat_timeout=1.5)
    for node in old:
        node.process.kill()
    names = [f"n{number}" for number in range(int(nodes[0]))]
    new = processes.nodes(*names)
    for node in new:
        node.join(cluster.endpoints, nodes, run, heartbeat_timeout=1.5)
    by_rank(new, size=len(names))


@pytest.mark.parametrize("version", ["3.5", pytest.param("3.4", marks=pytest.mark.soak)])
def test_all_keys_of_a_run_hang_on_leases(processes: EtcdProcesses, version: str, run: str) -> None:
    """A run that was killed leaves nothing: its record expires, and not before the outage that a node sits out."""
    cluster = shared(version, 3)
    form(processes, cluster.endpoints, run, "a", "b", nodes=2, outage_grace=40.0)
    with observing(cluster.endpoints, run) as observer:
        for kv in observer.everything():
            assert kv.lease, f"{kv.key!r} hangs on no lease"
        leases = {kv.key.decode().rpartition("/")[2]: kv.lease for kv in observer.everything()}
        assert observer.client.time_to_live(leases["record"]).granted_ttl == 80


def test_runs_under_one_prefix_do_not_meet(processes: EtcdProcesses, cluster: Cluster, run: str) -> None:
    """Not even where the name of one is the beginning of the other's."""
    one, other = processes.nodes("one", "other")
    one.join(cluster.endpoints, 1, run)
    other.join(cluster.endpoints, 1, f"{run}/record")
    for node in (one, other):
        node.placed(size=1, round=1)
