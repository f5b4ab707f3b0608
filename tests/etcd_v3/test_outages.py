"""What happens to etcd while a world is up (rule 14): no wrong world, nobody told to restart who need not be.

Afterwards the run goes on: a newcomer is admitted, by whoever leads.
"""

from __future__ import annotations

import threading

import pytest

from rallypoint.etcd_client import User
from tests.etcd.servers import Member
from tests.etcd_client.stage import enable_users, etcd, etcdctl, proxy_to
from tests.etcd_v3.harness import (
    EtcdNode,
    EtcdStage,
    Observer,
    by_rank,
    leader_of,
    observing,
    renewed,
    undisturbed,
    until,
)

TTL_S = 5
STOPPED_S = 10.0


def form(stage: EtcdStage, endpoints: str, run: str, **options: object) -> list[EtcdNode]:
    """A world of three that could take a fourth."""
    nodes = stage.nodes("a", "b", "c")
    for node in nodes:
        node.join(endpoints, "3:4", run, **{"lease_ttl": TTL_S, **options})
    by_rank(nodes, round=1)
    return nodes


def grow(stage: EtcdStage, endpoints: str, run: str, nodes: list[EtcdNode], round_: int = 2, **options: object) -> None:
    """A newcomer joins, and all of them meet in the next round."""
    new = stage.node("new")
    new.join(endpoints, "3:4", run, **{"lease_ttl": TTL_S, **options})
    for node in nodes:
        node.changed()
        assert node.waiting() == 1, node.account()
        node.again()
    by_rank([*nodes, new], round=round_, size=4)


@pytest.mark.parametrize("version", ["3.5", pytest.param("3.4", marks=pytest.mark.soak)])
def test_etcds_leader_is_killed(stage: EtcdStage, version: str, run: str) -> None:
    with etcd(version, 3) as cluster:
        nodes = form(stage, cluster.endpoints, run)
        victim = leader_of(cluster)
        victim.kill()
        undisturbed(nodes)
        grow(stage, cluster.endpoints, run, nodes)
        victim.start()
        victim.wait()
        nodes[0].ask("withdraw", "left")
        for node in nodes[1:]:
            node.changed()


@pytest.mark.parametrize("version", ["3.4", pytest.param("3.5", marks=pytest.mark.soak)])
def test_all_members_are_restarted(stage: EtcdStage, version: str, run: str) -> None:
    with etcd(version, 3) as cluster:
        nodes = form(stage, cluster.endpoints, run, lease_ttl=2)
        cluster.kill()
        for node in nodes:
            node.ask("outage", "outage", seconds=0.2)
            assert node.waiting() == 0
        for member in cluster.members:
            member.start()
        for member in cluster.members:
            member.wait()
        undisturbed(nodes)
        grow(stage, cluster.endpoints, run, nodes)


def stop_for_a_while(member: Member, nodes: list[EtcdNode]) -> None:
    """SIGSTOP for twice as long as a lease lives; meanwhile every lease is renewed."""
    over = threading.Event()
    member.pause()
    timer = threading.Timer(STOPPED_S, over.set)
    timer.start()
    while not over.is_set():
        renewed(nodes)
    for node in nodes:
        node.undisturbed()
    member.go_on()
    member.wait()


@pytest.mark.parametrize(
    ("who", "version"),
    [(0, "3.5"), *(pytest.param(*case, marks=pytest.mark.soak) for case in ((1, "3.4"), (2, "3.5"), (0, "3.4")))],
)
def test_a_member_is_stopped(stage: EtcdStage, run: str, who: int, version: str) -> None:
    """For twice as long as a lease lives.  One that led, and goes on, may revoke leases that its successor has renewed: a
    mistake of etcd's in these versions (its issue 15247); then the job regroups to one world.
    """
    with etcd(version, 3) as cluster:
        leader = leader_of(cluster)
        members = sorted(cluster.members, key=lambda member: member is not leader)
        stopped = members[who]
        # It is the one that all of them talk to.
        others = [member.endpoint for member in members if member is not stopped]
        nodes = form(stage, ",".join([stopped.endpoint, *others]), run)
        stop_for_a_while(stopped, nodes)
        if stopped is not leader:
            undisturbed(nodes)
            grow(stage, cluster.endpoints, run, nodes)
            return
        for node in nodes:
            node.order("live")
        new = stage.node("new")
        options = {"node_name": "new", "lease_ttl": TTL_S}
        new.order("join_and_live", endpoint=cluster.endpoints, run=run, nodes="3:4", options=options)
        until(lambda: is_one_world([*nodes, new]), "all of them are in one world")


def is_one_world(nodes: list[EtcdNode]) -> bool:
    """Whether these nodes, and nobody else, are in one world."""
    places = [node.heard("placed")[-1:] for node in nodes]
    return all(places) and {(place["fence"], place["size"]) for (place,) in places} == {
        (places[0][0]["fence"], len(nodes))
    }


@pytest.mark.parametrize("version", ["3.4", pytest.param("3.5", marks=pytest.mark.soak)])
@pytest.mark.parametrize("who", ["the leader", "the others"])
def test_etcd_is_compacted_before_a_watch_comes_back(stage: EtcdStage, run: str, who: str, version: str) -> None:
    """What it needs next is gone from the history: it is read anew, and nothing is missed."""
    with (
        etcd(version, 3) as cluster,
        proxy_to(cluster.members[0].port) as proxy,
        observing(cluster.endpoints, run) as observer,
    ):
        a, b, c, new = stage.nodes("a", "b", "c", "new")
        ways = {True: proxy.endpoint, False: cluster.endpoint}
        a.join(ways[who == "the leader"], "3:4", run, lease_ttl=30)
        assert observer.leading([a]) is a
        for node in (b, c):
            node.join(ways[who == "the others"], "3:4", run, lease_ttl=30)
        by_rank([a, b, c])
        proxy.loses_answers = True
        new.join(cluster.endpoint, "3:4", run)
        until(lambda: observer.words() == 4, "it has joined")
        if who == "the others":
            a.changed()
        observer.client.compact(observer.client.put("elsewhere", "x").revision)
        proxy.loses_answers = False
        proxy.cut()
        for node in (a, b, c):
            if node is not a or who == "the leader":
                node.changed()
            assert node.waiting() == 1
            node.again()
        by_rank([a, b, c, new], round=2, size=4)
        stage.end()  # nobody comes to the proxy any more


@pytest.mark.parametrize("version", ["3.4", pytest.param("3.5", marks=pytest.mark.soak)])
def test_tokens_expire(stage: EtcdStage, run: str, version: str) -> None:
    """etcd 3.4 cannot be told how long a token lives; there a restart makes all of them void."""
    options = ["--auth-token", "simple", *(["--auth-token-ttl", "1"] if version == "3.5" else [])]
    user = ("root", "secret")
    with etcd(version, 3, *options) as cluster:
        enable_users(cluster)
        with observing(cluster.endpoints, run, User(*user)):
            nodes = form(stage, cluster.endpoints, run, user=user)
            if version == "3.4":
                cluster.kill()
                cluster.start()
            # Leases are renewed each two seconds or so: with a token that lives for one, each renewal needs another.
            for _ in range(2):
                undisturbed(nodes)
            grow(stage, cluster.endpoints, run, nodes, user=user)


@pytest.mark.parametrize("version", ["3.5", pytest.param("3.4", marks=pytest.mark.soak)])
def test_a_full_database_says_what_to_do_and_the_run_goes_on_once_it_is_done(
    stage: EtcdStage, run: str, version: str
) -> None:
    with etcd(version, 3, "--quota-backend-bytes", "2000000") as cluster, observing(cluster.endpoints, run) as observer:
        a, b, c, new = stage.nodes("a", "b", "c", "new")
        for node in (a, b, c):
            node.join(cluster.endpoints, "2:3", run, last_call_timeout=30.0)
        by_rank([a, b, c])
        etcdctl_fill(observer)
        new.join(cluster.endpoints, "2:3", run, join_timeout=2.0)
        said = new.failed("RendezvousTimeoutError")
        assert "cannot be reached" not in said
        for words in ("quota", "`etcdctl compact`", "`etcdctl defrag`", "`etcdctl alarm disarm`"):
            assert words in said
        undisturbed([a, b, c])
        # A loss meanwhile: nobody can be told, for nothing can be written.
        c.kill()
        until(lambda: observer.words() == 2, "its lease ends")
        for node in (a, b):
            node.undisturbed()
        found = observer.client.get("fill")
        assert found is not None
        observer.client.compact(found.mod_revision)
        etcdctl(cluster, "defrag")
        etcdctl(cluster, "alarm", "disarm")
        for node in (a, b):
            assert node.changed()["why"] == "c was lost: its lease ended"
            node.again()
        by_rank([a, b], round=2, size=2)


def etcdctl_fill(observer: Observer) -> None:
    """Write until etcd takes no more."""
    from rallypoint.etcd_client import EtcdNoSpaceError

    def is_full() -> bool:
        try:
            for _ in range(10):
                observer.client.put("fill", b"x" * 100_000)
        except EtcdNoSpaceError:
            return True
        return False

    until(is_full, "etcd is full")
