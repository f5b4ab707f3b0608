"""Nodes that are killed or stopped (rules 6, 9): the others are told once the lease is gone, and regroup without them.

In most of these tests one of the nodes leads; what happens to the leader happens to the others as well.
"""

from __future__ import annotations

import random

import pytest

from rallypoint.core.events import Left
from rallypoint.core.model import Ending
from rallypoint.etcd.leading import message_of
from tests.etcd.servers import VERSIONS, Cluster, shared
from tests.etcd_v3.harness import EtcdNode, EtcdStage, Observer, by_rank, observing, renewed, undisturbed
from tests.etcd_v3.test_campaign import check_boards
from tests.waiting import until


def form(stage: EtcdStage, cluster: Cluster, run: str, *names: str, nodes: str) -> list[EtcdNode]:
    """A world of these nodes."""
    made = stage.nodes(*names)
    for node in made:
        node.join(cluster.endpoints, nodes, run, last_call_timeout=30.0)
    by_rank(made, round=1, size=len(names))
    return made


@pytest.mark.parametrize(
    ("who", "version"),
    [
        ("the leader", "3.5"),
        ("another", "3.4"),
        *(pytest.param(*case, marks=pytest.mark.soak) for case in (("the leader", "3.4"), ("another", "3.5"))),
    ],
)
def test_a_killed_node_is_missed_and_the_others_regroup(stage: EtcdStage, run: str, version: str, who: str) -> None:
    cluster = shared(version, 3)
    nodes = form(stage, cluster, run, "a", "b", "c", nodes="2:3")
    with observing(cluster.endpoints, run) as observer:
        leader = observer.leading(nodes)
        victim = leader if who == "the leader" else next(node for node in nodes if node is not leader)
        victim.kill()
        rest = [node for node in nodes if node is not victim]
        for node in rest:
            assert node.changed()["why"] == f"{victim.name} was lost: its lease ended"
            assert node.waiting() == 1
            node.again()
        by_rank(rest, round=2, size=2)
        assert observer.leading(nodes) is not victim
        if who == "another":
            assert observer.leading(nodes) is leader
    first, second = sorted(rest, key=lambda node: int(node.heard("placed")[-1]["rank"]))
    first.ask("set", "stored", key="who", value=first.name)
    assert second.ask("get", "value", key="who")["value"] == first.name


def test_a_spare_takes_the_place_of_the_killed_leader(
    stage: EtcdStage, cluster: Cluster, run: str, observer: Observer
) -> None:
    nodes = form(stage, cluster, run, "a", "b", nodes="2")
    spare = stage.node("spare")
    spare.join(cluster.endpoints, 2, run, role="spare")
    until(lambda: observer.words() == 3, "it has joined")
    leader = observer.leading(nodes)
    leader.kill()
    (rest,) = (node for node in nodes if node is not leader)
    rest.changed()
    rest.again()
    by_rank([rest, spare], round=2)


def test_too_few_survivors_wait_for_a_replacement(stage: EtcdStage, old_cluster: Cluster, run: str) -> None:
    a, b = form(stage, old_cluster, run, "a", "b", nodes="2")
    new = stage.node("new")
    a.kill()
    b.changed()
    b.again()
    new.join(old_cluster.endpoints, 2, run)
    assert {node.name for node in by_rank([b, new], round=2)} == {"b", "new"}


def test_all_but_one_are_killed_at_once_and_replaced(
    stage: EtcdStage, cluster: Cluster, run: str, observer: Observer
) -> None:
    nodes = form(stage, cluster, run, "a", "b", "c", "d", nodes="2:4")
    last = next(node for node in nodes if node is not observer.leading(nodes))
    for node in nodes:
        if node is not last:
            node.kill()
    last.changed()
    last.again()
    new = stage.node("new")
    new.join(cluster.endpoints, "2:4", run)
    by_rank([last, new], round=2)


@pytest.mark.parametrize("who", ["the leader", "another"])
def test_a_stopped_node_learns_that_it_is_out_and_comes_back_as_another(
    stage: EtcdStage, cluster: Cluster, run: str, observer: Observer, who: str
) -> None:
    nodes = form(stage, cluster, run, "a", "b", "c", nodes="2:3")
    leader = observer.leading(nodes)
    stopped = leader if who == "the leader" else next(node for node in nodes if node is not leader)
    was = stopped.standing()["node"]
    stopped.pause()
    rest = [node for node in nodes if node is not stopped]
    for node in rest:
        assert node.changed()["why"] == f"{stopped.name} was lost: its lease ended"
        node.again()
    by_rank(rest, round=2, size=2)
    stopped.resume()
    # It hears of its lease, or first what the others heard of it, or that they have gone on.
    why = stopped.changed()["why"]
    told = (f"{stopped.name} was lost: its lease ended", "round 2 came after it")
    assert "this node was given up" in why or why in told
    assert stopped.waiting() == 1
    stopped.again()
    for node in rest:
        node.changed()
        assert node.waiting() == 1
        node.again()
    by_rank(nodes, round=3, size=3)
    assert stopped.standing()["node"] not in ("", was), "it is another node now"
    assert [event["round"] for node in rest for event in node.heard("placed")] == [1, 2, 3] * 2


def test_a_node_that_is_stopped_for_less_than_its_lease_loses_nothing(
    stage: EtcdStage, old_cluster: Cluster, run: str, old_observer: Observer
) -> None:
    a, b = stage.nodes("a", "b")
    for node in (a, b):
        node.join(old_cluster.endpoints, 2, run, lease_ttl=5)
    by_rank([a, b])
    a.pause()
    renewed([b])
    a.resume()
    undisturbed([a, b])


def test_who_has_finished_stays_so_for_the_next_leader(
    stage: EtcdStage, cluster: Cluster, run: str, observer: Observer
) -> None:
    """The leader is stopped while a member finishes, and never heard of it: its successor finds the word in etcd."""
    nodes = form(stage, cluster, run, "a", "b", "c", nodes="1:3")
    leader = observer.leading(nodes)
    quitter, last = (node for node in nodes if node is not leader)
    leader.pause()
    # If it has rank 0, it stays for the others.
    quitter.order("finish")
    until(lambda: isinstance(message_of(observer.word(quitter)), Left), "it is written down")
    leader.kill()
    last.changed()
    last.again()
    last.placed(round=2, size=1)
    assert observer.finished() == 1
    last.order("finish")
    for node in (last, quitter):
        assert node.expect("left")["done"]
    board = observer.board()
    assert board is not None
    assert board.ended is not None
    assert board.ended.ending is Ending.SUCCEEDED


def test_a_world_that_is_over_when_it_is_heard_of_is_a_place_all_the_same(
    stage: EtcdStage, cluster: Cluster, run: str, observer: Observer
) -> None:
    """A node hears of its world and of its end in one breath: it joins again, and does not wait for what has been."""
    a, b, late = stage.nodes("a", "b", "late")
    a.join(cluster.endpoints, "2:3", run, last_call_timeout=30.0)
    assert observer.leading([a]) is a
    late.join(cluster.endpoints, "2:3", run, lease_ttl=60)
    until(lambda: observer.words() == 2, "it has joined")
    late.pause()
    b.join(cluster.endpoints, "2:3", run)
    for node in (a, b):
        node.placed(round=1, size=3)
    b.ask("withdraw", "left")
    a.changed()
    a.again()
    late.resume()
    late.placed(round=1, size=3)
    assert late.changed()["why"] == "b withdrew: RuntimeError('told to')"
    late.again()
    by_rank([a, late], round=2, size=2)


@pytest.mark.parametrize(
    ("seed", "version"),
    [
        (1, "3.5"),
        *(pytest.param(seed, version, marks=pytest.mark.soak) for version in VERSIONS for seed in range(2, 12)),
    ],
)
def test_a_leader_is_killed_at_any_moment_of_a_round(stage: EtcdStage, run: str, seed: int, version: str) -> None:
    """Right while it gathers, seals and publishes: the run goes on with the others, and no round is lost or doubled."""
    cluster = shared(version, 3)
    with observing(cluster.endpoints, run) as observer:
        kill_the_leader(stage, cluster, run, observer, seed)


def kill_the_leader(stage: EtcdStage, cluster: Cluster, run: str, observer: Observer, seed: int) -> None:
    chance = random.Random(seed)
    nodes = form(stage, cluster, run, "a", "b", "c", "d", nodes="2:4")
    leader = observer.leading(nodes)
    victim, *rest = chance.sample([node for node in nodes if node is not leader], 3)
    for node in (leader, *rest):
        node.order("live")
    with observer.client.watch(observer.keys.run, prefix=True) as changes:
        victim.order("withdraw")
        for _ in range(chance.randrange(1, 20)):
            if changes.get(timeout_s=1.0) is None:
                break  # all is said
        leader.kill()
    ranked = by_rank(rest, size=2)
    assert len(ranked) == 2
    for node in rest:
        rounds = [event["round"] for event in node.heard("placed")]
        assert rounds == sorted(set(rounds)), "no round comes twice"
    check_boards(observer.boards())
