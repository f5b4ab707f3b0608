"""Jobs on an etcd cluster: members of etcd die, agents die, and nothing is left behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from rallypoint.core.model import Settings
from rallypoint.etcd.board import decode_board
from rallypoint.etcd.leader import RUN_LEASE_S
from rallypoint.etcd_client import EtcdClient
from tests.etcd.servers import Member
from tests.etcd_client.stage import etcdctl
from tests.etcd_v3.harness import leader_of
from tests.torchrun.conftest import EtcdCluster, OldEtcdCluster
from tests.torchrun.harness import Agent, connections
from tests.torchrun.stage import Job, formed, in_order, learned
from tests.waiting import until

WORKER = Path(__file__).with_name("worker.py")
CLOSED_TTL_S = Settings().closed_ttl_s
OTHER_VERSION = pytest.param(OldEtcdCluster, marks=pytest.mark.soak)


@pytest.fixture(params=[EtcdCluster, OTHER_VERSION], ids=["3.5", "3.4"])
def etcd(request: pytest.FixtureRequest) -> Iterator[EtcdCluster]:
    made: EtcdCluster = request.param()
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
    # A member of etcd dies, which leads the others and which agents talk to: nobody notices.
    victim = _most_used(etcd, agents)
    _let_lead(etcd, victim)
    bereft = [agent for agent in agents if victim.port in connections(agent.process.pid)]
    assert bereft, "agents talk to the member that is about to die"
    words = _words(etcd)
    victim.kill()
    began = by_rank[0].expect("step")["at"]
    for agent in agents:
        while agent.expect("step")["at"] < began + 2 * etcd.options["lease_ttl"]:
            pass
        agent.reach(60)
    rest = {member.port for member in etcd.cluster.members} - {victim.port}
    for agent in bereft:
        assert rest & set(connections(agent.process.pid)), f"{agent} talks to another member"
    assert _words(etcd) == words, "every node still has the lease that it had"
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


def _most_used(etcd: EtcdCluster, agents: Sequence[Agent]) -> Member:
    """The member of etcd that most agents are connected to."""
    used = Counter(port for agent in agents for port in set(connections(agent.process.pid)))
    return max(etcd.cluster.members, key=lambda member: used[member.port])


def _let_lead(etcd: EtcdCluster, heir: Member) -> None:
    """Make a member of etcd the leader of the others."""
    if leader_of(etcd.cluster) is not heir:
        with EtcdClient(heir.endpoint) as client:
            (health,) = client.health()
        assert health.status is not None
        assert health.status.header is not None
        etcdctl(etcd.cluster, "move-leader", f"{health.status.header.member_id:x}")
    assert leader_of(etcd.cluster) is heir


def _words(etcd: EtcdCluster) -> dict[bytes, tuple[int, int]]:
    """What nodes say: the revision that each key was created at, and its lease."""
    with EtcdClient(etcd.endpoint) as client:
        found = client.range("/", prefix=True).kvs
    words = {kv.key: (kv.create_revision, kv.lease) for kv in found if b"/in/nodes/" in kv.key}
    assert words
    return words


def _only_a_tombstone_is_left(etcd: EtcdCluster) -> None:
    """It says how the run ended, and goes with its lease."""
    with EtcdClient(etcd.endpoint) as client:
        (tombstone,) = client.range("/", prefix=True).kvs
        board = decode_board(tombstone.value, "job")
        assert board.ended is not None
        assert board.ended.ending.value == "succeeded"
        assert tombstone.lease == board.lease
        lease = client.time_to_live(board.lease, keys=True)
        assert lease.granted_ttl <= board.settings.closed_ttl_s
        assert lease.keys == (tombstone.key,)


@pytest.mark.soak
def test_nothing_at_all_is_left_once_the_tombstone_has_gone(job: Job, etcd: EtcdCluster) -> None:
    agents = job.start("a b c", "3", script=[str(WORKER), "--until", str(job.stop_file)])
    for agent in agents:
        agent.expect("started")
    job.finish(*agents)
    _only_a_tombstone_is_left(etcd)
    with EtcdClient(etcd.endpoint) as client:
        until(
            lambda: not client.range("", prefix=True, limit=1).kvs, "no key is left in all of etcd", CLOSED_TTL_S + 30
        )
    until(lambda: "found 0 leases" in etcdctl(etcd.cluster, "lease", "list"), "no lease is left")


@pytest.mark.soak
def test_all_that_killed_agents_leave_behind_has_a_lease_that_nobody_renews(job: Job, etcd: EtcdCluster) -> None:
    agents = job.start("a b c", "3", script=[str(WORKER), "--until", str(job.stop_file)])
    for agent in agents:
        agent.expect("started")
    for agent in agents:
        agent.kill()
    with EtcdClient(etcd.endpoint) as client:
        until(lambda: all(b"/out/" in kv.key for kv in client.range("", prefix=True).kvs), "their own leases end")
        (lease,) = {kv.lease for kv in client.range("", prefix=True).kvs}
        assert lease, "what the leader wrote has one too"
        was = client.time_to_live(lease).ttl
        assert was < RUN_LEASE_S
        until(lambda: client.time_to_live(lease).ttl <= was - 2 * etcd.options["lease_ttl"], "it runs out")
        client.revoke(lease)
        assert not client.range("", prefix=True, limit=1).kvs, "nothing is left without it"


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
