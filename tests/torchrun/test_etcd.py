"""Jobs on an etcd cluster: members of etcd die, agents die, the agent that serves dies; nothing is left behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from rallypoint.backends.etcd_v3_client import PREFIX
from rallypoint.etcd_client import EtcdClient
from rallypoint.location.registers.etcd_v3_keys import RecordKeys
from rallypoint.record import Record, decode
from tests.support.etcd_servers import Member
from tests.support.etcd_tools import etcdctl, status_of
from tests.support.waiting import until
from tests.torchrun.agents import Agent, connections
from tests.torchrun.backends import EtcdCluster, OldEtcdCluster
from tests.torchrun.job import Job, formed, in_order, learned, started

OTHER_VERSION = pytest.param(OldEtcdCluster, marks=pytest.mark.soak)
KEYS = RecordKeys(PREFIX.default or "", "job")


@pytest.fixture(params=[EtcdCluster, OTHER_VERSION], ids=["3.5", "3.4"])
def etcd(request: pytest.FixtureRequest) -> Iterator[EtcdCluster]:
    made: EtcdCluster = request.param()
    try:
        made.start()
        yield made
    finally:
        made.end()


@pytest.fixture
def job(etcd: EtcdCluster, tmp_path: Path) -> Iterator[Job]:
    made = Job(etcd, tmp_path)
    try:
        yield made
    finally:
        made.end()


def test_a_member_of_etcd_and_an_agent_are_killed_and_only_how_it_ended_is_left(job: Job, etcd: EtcdCluster) -> None:
    agents = job.start("a b c", "2:3", script=job.works("--steps"))
    places = started(*agents)
    pids = {place["pid"] for place in places}
    by_rank = in_order(agents, places)
    by_rank[0].reach(5)
    # A member of etcd dies, which leads the others and which agents talk to: nobody notices.
    victim = _most_used(etcd, agents)
    _let_lead(etcd, victim)
    before = _record(etcd)
    victim.kill()
    began = by_rank[0].expect("step")["at"]
    for agent in agents:
        while agent.expect("step")["at"] < began + 2 * etcd.options["lease_ttl"]:
            pass
        agent.reach(60)
    now = _record(etcd)
    assert (now.epoch, now.world) == (before.epoch, before.world), "the same process serves the same world"
    steps = [event for agent in agents for event in agent.seen if event["event"] == "step"]
    assert {event["pid"] for event in steps} == pids, "the workers are the same"
    # Rank 0's agent dies: the others agree on the next, with two members of etcd left.
    by_rank[0].kill()
    survivors = by_rank[1:]
    again = started(*survivors)
    assert {place["master"] for place in again}.isdisjoint(place["master"] for place in places)
    job.finish(*survivors)
    _only_how_it_ended_is_left(etcd)


@pytest.mark.soak  # the quick suite has it of nodes, and of workers whose server is a process of its own
def test_workers_run_on_when_an_agent_that_serves_and_is_no_member_is_killed(job: Job, etcd: EtcdCluster) -> None:
    spare = job.agent("spare", "2", options={"role": "spare", "is_host": True})
    until(lambda: _serves(etcd), "the spare serves")
    agents = job.start("a b", "2")
    places = formed(*agents)
    assert _record(etcd).epoch == 1
    spare.kill()
    until(lambda: _record(etcd).epoch == 2, "another agent serves")
    reached = [agent.expect("step")["step"] for agent in agents]
    for agent, step in zip(agents, reached, strict=True):
        agent.reach(step + 40)
    steps = [event for agent in agents for event in agent.seen if event["event"] == "step"]
    assert {event["pid"] for event in steps} == {place["pid"] for place in places}, "the workers are the same"
    job.finish(*agents)


def _record(etcd: EtcdCluster) -> Record:
    """What names the agent that serves."""
    with EtcdClient(etcd.endpoint) as client:
        found = client.get(KEYS.record)
    assert found is not None, "there is a record"
    return decode(found.value)


def _serves(etcd: EtcdCluster) -> bool:
    with EtcdClient(etcd.endpoint) as client:
        return client.get(KEYS.claim(1)) is not None


def _most_used(etcd: EtcdCluster, agents: Sequence[Agent]) -> Member:
    """The member of etcd that most agents are connected to."""
    used = Counter(port for agent in agents for port in set(connections(agent.process.pid)))
    return max(etcd.cluster.members, key=lambda member: used[member.port])


def _let_lead(etcd: EtcdCluster, successor: Member) -> None:
    """Make a member of etcd the leader of the others."""
    status = status_of(etcd.cluster, successor)
    if status.leader != status.member_id:
        etcdctl(etcd.cluster, "move-leader", f"{status.member_id:x}")
    until(lambda: status_of(etcd.cluster, successor).leader == status.member_id, "the member leads")


def _only_how_it_ended_is_left(etcd: EtcdCluster) -> None:
    """The record says it, and goes with its lease."""
    with EtcdClient(etcd.endpoint) as client:
        # The key of the last claim goes with its lease, which is revoked when the last agent ends, or expires.
        until(lambda: len(client.range("/", prefix=True).kvs) == 1, "only the record is left")
        (left,) = client.range("/", prefix=True).kvs
        record = decode(left.value)
        assert record.claim is None
        assert record.closing is not None
        assert record.closing.ending.value == "succeeded"
        assert client.time_to_live(left.lease).ttl > 0


@pytest.mark.soak
def test_all_that_killed_agents_leave_behind_has_a_lease_that_nobody_renews(job: Job, etcd: EtcdCluster) -> None:
    agents = job.start("a b c", "2:3")
    formed(*agents)
    for agent in agents:
        agent.kill()
    with EtcdClient(etcd.endpoint) as client:
        until(lambda: client.get(KEYS.claim(1)) is None, "the lease of the claim ends")
        (left,) = client.range("", prefix=True).kvs
        assert left.lease, "the record has one too"
        was = client.time_to_live(left.lease).ttl
        until(lambda: client.time_to_live(left.lease).ttl <= was - 2 * etcd.options["lease_ttl"], "it runs out")
        client.revoke(left.lease)
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
