"""A run id can be used again (rule 1), a run leaves nothing behind, and an idle one writes nothing."""

from __future__ import annotations

import pytest

from rallypoint.etcd_client import Change
from tests.etcd.servers import Cluster, shared
from tests.etcd_v3.harness import EtcdNode, EtcdStage, Observer, by_rank, observing, renewed
from tests.waiting import until

versions = pytest.mark.parametrize("version", ["3.5", pytest.param("3.4", marks=pytest.mark.soak)])


def incarnation(node: EtcdNode) -> str:
    """That of the world that it was placed in last."""
    fence: str = node.heard("placed")[-1]["fence"]
    return fence.partition("/")[0]


def test_a_run_id_is_used_again_after_success(stage: EtcdStage, cluster: Cluster, run: str) -> None:
    nodes = stage.nodes("a", "b")
    incarnations = set()
    for _ in range(2):
        for node in nodes:
            node.join(cluster.endpoints, 2, run)
        by_rank(nodes)
        incarnations.add(incarnation(nodes[0]))
        for node in nodes:
            node.order("finish")
        for node in nodes:
            assert node.expect("left")["done"]
    assert len(incarnations) == 2, "each run has an incarnation of its own"


def test_a_run_id_is_used_again_after_failure_once_its_last_node_has_left(
    stage: EtcdStage, old_cluster: Cluster, run: str, old_observer: Observer
) -> None:
    a, b, c, d = stage.nodes("a", "b", "c", "d")
    for node in (a, b):
        node.join(old_cluster.endpoints, 2, run)
    by_rank([a, b])
    a.ask("close", "closed")
    b.changed()
    c.join(old_cluster.endpoints, 2, run)
    assert "is closed as failed" in c.failed("RendezvousClosedError")
    a.kill()
    b.kill()
    until(lambda: not old_observer.words(), "their leases end")
    for node in (c, d):
        node.join(old_cluster.endpoints, 2, run)
    by_rank([c, d])
    assert incarnation(c) != incarnation(a)


@pytest.mark.parametrize("when", ["at once", "once all leases are gone"])
def test_a_run_id_is_used_again_after_everything_was_killed(
    stage: EtcdStage, cluster: Cluster, run: str, observer: Observer, when: str
) -> None:
    """It forms as soon as the leases of the killed are gone, and they are in nobody's world.

    Who comes while one of them seems to live takes its place; who comes later founds the run anew.
    """
    old, new = stage.nodes("a", "b", "c"), stage.nodes("a", "b", "c")
    for node in old:
        node.join(cluster.endpoints, 3, run)
    by_rank(old, round=1)
    for node in old:
        node.kill()
    if when != "at once":
        until(lambda: not observer.words(), "their leases end")
    for node in new:
        node.join(cluster.endpoints, 3, run)
    by_rank(new, size=3)
    fences = [node.heard("placed")[-1]["fence"].split("/") for node in (old[0], new[0])]
    assert fences[0][2] != fences[1][2]
    assert fences[0][0] != fences[1][0] or (when == "at once" and int(fences[1][1]) > int(fences[0][1]))


@versions
def test_a_killed_run_leaves_nothing_behind(stage: EtcdStage, version: str, run: str) -> None:
    cluster, nodes = shared(version, 3), stage.nodes("a", "b")
    for node in nodes:
        node.join(cluster.endpoints, 2, run, run_lease=3)
    by_rank(nodes)
    with observing(cluster.endpoints, run) as observer:
        assert len(observer.everything()) >= 7, "two words, a leader, a board, a roster, two places"
        for kv in observer.everything():
            assert kv.lease, f"{kv.key!r} hangs on no lease"
        for node in nodes:
            node.kill()
        until(observer.is_empty, "all leases have ended")


@versions
@pytest.mark.parametrize("world", ["up", "gathering"])
def test_nothing_is_written_while_nothing_changes(stage: EtcdStage, version: str, run: str, world: str) -> None:
    cluster, nodes = shared(version, 3), stage.nodes("a", "b")
    for node in nodes:
        node.join(cluster.endpoints, 2 if world == "up" else 3, run)
    with observing(cluster.endpoints, run) as observer:
        if world == "up":
            by_rank(nodes)
        else:
            until(lambda: (board := observer.board()) is not None and "2 of at least 3" in board.why, "both are known")
            for node in nodes:
                node.expect("joins")
        # What the leader clears away after it has told everybody.
        until(lambda: observer.is_quiet(0.5), "all is said")
        with observer.client.watch(observer.keys.run, prefix=True) as changes:
            for _ in range(3):
                renewed(nodes)
            mark = observer.keys.run + "mark"
            observer.client.put(mark, "")
            first = changes.get(timeout_s=30.0)
            assert isinstance(first, Change)
            assert first.key == mark.encode(), f"{first.key!r} was written"
