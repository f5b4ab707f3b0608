"""Who leads next: a few who are not likely to die with the leader, watch its key; the others look now and then."""

from __future__ import annotations

import time
from itertools import count

import pytest

from rallypoint.core import codec
from rallypoint.core.events import Joined
from rallypoint.core.model import Bounds, Node, Run, Settings
from rallypoint.etcd.heirs import SUCCESSORS, heirs
from rallypoint.etcd.leading import Gone, Leading, Word
from rallypoint.etcd_client import Change
from tests.etcd.servers import Cluster
from tests.etcd_v3.harness import EtcdStage, Observer, by_rank
from tests.waiting import until


def world(nodes: list[Node]) -> Run:
    """A run whose world has these nodes, in the order of their ranks."""
    numbers = count()
    leading = Leading(Run(run_id="run"), lambda: f"m{next(numbers)}")
    bounds = Bounds(len(nodes), len(nodes))
    words = [
        Word(node.id, codec.encode_message(Joined(node, bounds, Settings())), at, at)
        for at, node in enumerate(nodes, start=1)
    ]
    leading.take(words, now=10.0)
    assert leading.run.world is not None
    assert leading.run.world.members == tuple(nodes)
    return leading.run


def on(address: str, rank: int, topology: str = "") -> Node:
    return Node(id=f"n{rank:05}", name=f"n{rank:05}", address=address, wanted_rank=rank, topology=topology)


def ranks(run: Run, leader: int) -> list[int]:
    return [int(node_id[1:]) for node_id in heirs(run, f"n{leader:05}")]


@pytest.mark.parametrize("leader", range(8))
def test_no_half_of_the_ranks_has_all_successors_and_none_leads_already(leader: int) -> None:
    found = ranks(world([on("10.0.0.1", rank) for rank in range(8)]), leader)
    assert len(set(found)) == SUCCESSORS
    assert leader not in found
    for first in range(5):
        assert not set(found) <= set(range(first, first + 4)), "a process with four ranks side by side goes as a whole"


def test_successors_are_on_machines_apart_from_each_other_and_from_the_leader() -> None:
    run = world([on(f"10.0.0.{rank // 4}", rank) for rank in range(16)])
    for leader in range(16):
        machines = {rank // 4 for rank in ranks(run, leader)}
        assert len(machines) == SUCCESSORS
        assert leader // 4 not in machines


def test_successors_are_in_racks_apart_where_the_nodes_said_where_they_are() -> None:
    run = world([on(f"10.0.0.{rank}", rank, f"rack{rank // 4}/machine{rank}") for rank in range(16)])
    for leader in range(16):
        assert len({leader // 4, *(rank // 4 for rank in ranks(run, leader))}) == 1 + SUCCESSORS


@pytest.mark.parametrize("size", range(1, 8))
def test_a_small_world_has_all_the_others_as_successors(size: int) -> None:
    run = world([on("10.0.0.1", rank) for rank in range(size)])
    for leader in range(size):
        assert len(ranks(run, leader)) == min(SUCCESSORS, size - 1)


def test_those_who_are_gone_are_not_named_however_many_they_are() -> None:
    nodes = [on("10.0.0.1", rank) for rank in range(200)]
    numbers = count()
    leading = Leading(Run(run_id="run"), lambda: f"m{next(numbers)}")
    for at, node in enumerate(nodes, start=1):
        word = Word(node.id, codec.encode_message(Joined(node, Bounds(1, 200), Settings())), at, at)
        leading.take([word], now=10.0)
    leading.take([Gone(node.id, 1000) for node in nodes[3:-2]], now=11.0)
    assert set(ranks(leading.run, 0)) <= {1, 2, 198, 199}
    assert len(ranks(leading.run, 0)) == SUCCESSORS


def test_the_leader_and_all_successors_die_together_and_somebody_looks_soon(
    stage: EtcdStage, cluster: Cluster, run: str, observer: Observer
) -> None:
    """Who was not named looks each quarter to half of a lease's time."""
    ttl_s = 6
    nodes = stage.nodes("a", "b", "c", "d", "e")
    for node in nodes:
        node.join(cluster.endpoints, "1:5", run, last_call_timeout=30.0, lease_ttl=ttl_s)
    by_rank(nodes, round=1, size=5)
    names = {node.standing()["node"]: node for node in nodes}
    until(lambda: (board := observer.board()) is not None and len(board.successors) == SUCCESSORS, "they are named")
    board = observer.board()
    assert board is not None
    doomed = [names[node_id] for node_id in (observer.leader(), *board.successors)]
    assert len(set(map(id, doomed))) == 4
    (last,) = (node for node in nodes if node not in doomed)
    with observer.client.watch(observer.keys.leader) as leaders:
        for node in doomed:
            node.kill()
        gone = leaders.get(timeout_s=30.0)
        assert isinstance(gone, Change)
        assert gone.is_delete
        vacant_at = time.monotonic()
        found = leaders.get(timeout_s=30.0)
        vacant_s = time.monotonic() - vacant_at
    assert isinstance(found, Change)
    assert found.value.decode() == last.standing()["node"]
    assert vacant_s < ttl_s / 2 + 1.5
    last.changed()
    last.again()
    last.placed(round=2, size=1)
