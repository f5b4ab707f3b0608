"""Jobs on an etcd cluster: members of etcd die, agents die, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.etcd.board import decode_board
from rallypoint.etcd_client import EtcdClient
from tests.torchrun.conftest import EtcdCluster
from tests.torchrun.stage import Job, formed, in_order, learned


@pytest.fixture
def etcd() -> Iterator[EtcdCluster]:
    made = EtcdCluster()
    try:
        made.start()
        yield made
    finally:
        made.end()


@pytest.fixture
def job(cores: None, etcd: EtcdCluster, tmp_path: Path) -> Iterator[Job]:
    made = Job(etcd, tmp_path)
    try:
        yield made
    finally:
        made.end()


def test_members_of_etcd_and_agents_are_killed_and_nothing_is_left_behind(job: Job, etcd: EtcdCluster) -> None:
    agents = job.start("a b c", "2:3")
    places = formed(*agents)
    pids = {place["pid"] for place in places}
    by_rank = in_order(agents, places)
    by_rank[0].reach(5)
    # A member of etcd dies: nobody notices.
    etcd.cluster.members[0].kill()
    for agent in agents:
        agent.reach(60)
    steps = [event for agent in agents for event in agent.seen if event["event"] == "step"]
    assert {event["pid"] for event in steps} == pids, "the workers are the same"
    # Rank 0's agent dies: the others agree on the next, with two members of etcd left.
    by_rank[0].kill()
    survivors = by_rank[1:]
    again = formed(*survivors)
    assert all(place["step"] >= 40 for place in again), "training resumes from the checkpoint"
    assert {place["master"] for place in again}.isdisjoint(place["master"] for place in places)
    for agent in survivors:
        agent.reach(100)
    learned(*survivors)
    job.finish(*survivors)
    _only_a_tombstone_is_left(etcd)


def _only_a_tombstone_is_left(etcd: EtcdCluster) -> None:
    """It says how the run ended, and goes with its lease."""
    with EtcdClient([member.endpoint for member in etcd.cluster.members[1:]]) as client:
        (tombstone,) = client.range("/", prefix=True).kvs
        board = decode_board(tombstone.value, "job")
        assert board.ended is not None
        assert board.ended.ending.value == "succeeded"
        assert tombstone.lease == board.lease
        lease = client.time_to_live(board.lease, keys=True)
        assert lease.granted_ttl <= board.settings.closed_ttl_s
        assert lease.keys == (tombstone.key,)


@pytest.mark.soak
def test_a_round_whose_store_is_in_etcd(job: Job) -> None:
    agents = job.start("a b c", "2:3", options={"store": "etcd"})
    by_rank = in_order(agents, formed(*agents))
    by_rank[0].reach(10)
    by_rank[0].kill()
    formed(*by_rank[1:])
    for agent in by_rank[1:]:
        agent.reach(40)
    learned(*by_rank[1:])
    job.finish(*by_rank[1:])
