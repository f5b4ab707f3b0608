"""What happens to etcd while a world is up (rules 14, 17c to 17e): no wrong world, nobody told to restart who need not be.

Nodes talk to their server, which needs etcd only to record what it decides.  Afterwards the run goes on: a newcomer is
admitted.
"""

from __future__ import annotations

import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rallypoint.etcd_client import EtcdNoSpaceError, User
from rallypoint.messages.types import Ending
from tests.support.etcd_node_processes import (
    LEASE_TTL_S,
    EtcdNode,
    EtcdProcesses,
    Observer,
    by_rank,
    first,
    form,
    has_logged,
    leader_of,
    observing,
    others,
    regroup,
    says,
    undisturbed,
)
from tests.support.etcd_servers import Cluster
from tests.support.etcd_tools import SHORT_TOKENS, compact, enable_users, etcd, etcdctl, proxy_to
from tests.support.waiting import until

GRACE_S = 3.0


def grow(processes: EtcdProcesses, endpoints: str, run: str, nodes: list[EtcdNode], **options: Any) -> None:
    """A newcomer joins, and all of them meet in the next round."""
    new = processes.node("new")
    new.join(endpoints, "3:4", run, **options)
    regroup(nodes, new, round=2)


def settle(nodes: list[EtcdNode], observer: Observer) -> EtcdNode:
    """Wait until one of these nodes serves and is sure of it, and the others hear so; which."""
    server = observer.server(nodes)
    for node in nodes:
        node.ask("calm", "calm")
    return server


def pause(cluster: Cluster) -> None:
    for member in cluster.members:
        member.pause()


def go_on(cluster: Cluster) -> None:
    for member in cluster.members:
        member.go_on()
    for member in cluster.members:
        member.wait()


@pytest.mark.parametrize("version", ["3.5", pytest.param("3.4", marks=pytest.mark.soak)])
def test_the_member_of_etcd_that_leads_is_killed(processes: EtcdProcesses, version: str, run: str) -> None:
    with etcd(version, 3) as cluster, observing(cluster.endpoints, run) as observer:
        victim = leader_of(cluster)
        nodes = form(processes, first(victim, cluster), run, *"abc", nodes="3:4")
        victim.kill()
        undisturbed(nodes)
        grow(processes, cluster.endpoints, run, nodes)
        assert settle(nodes, observer) in nodes
        victim.start()
        victim.wait()
        assert observer.worlds() == [1, 2]


@pytest.mark.parametrize("version", ["3.4", pytest.param("3.5", marks=pytest.mark.soak)])
def test_all_members_are_killed_and_started_again(processes: EtcdProcesses, version: str, run: str) -> None:
    with etcd(version, 3) as cluster, observing(cluster.endpoints, run) as observer:
        nodes = form(processes, cluster.endpoints, run, *"abc", nodes="3:4")
        server = observer.server(nodes)
        cluster.kill()
        for node in nodes:
            node.ask("outage", "outage", seconds=0.2)
            assert node.waiting() == 0
        until(partial(has_logged, server, "the claim could not be renewed for "), "it says so")
        cluster.start()
        settle(nodes, observer)
        until(partial(has_logged, server, "the claim is renewed, and nothing is in doubt"), "it says so")
        undisturbed(nodes)
        grow(processes, cluster.endpoints, run, nodes)


def test_an_etcd_that_has_lost_all_of_its_data_is_told_again_and_nobody_regroups(
    processes: EtcdProcesses, run: str
) -> None:
    """Its revisions begin anew, and no lease is known there."""
    with etcd("3.5") as cluster, observing(cluster.endpoints, run) as observer:
        nodes = form(processes, cluster.endpoints, run, *"abc", nodes="3:4")
        before = observer.known()
        cluster.kill()
        (member,) = cluster.members
        shutil.rmtree(member.command[member.command.index("--data-dir") + 1])
        cluster.start()
        with observing(cluster.endpoints, run) as newcomer:
            until(newcomer.claims, "it is written again")
            settle(nodes, newcomer)
            after = newcomer.known()
            assert (after.incarnation, after.world) == (before.incarnation, before.world)
            undisturbed(nodes)
            grow(processes, cluster.endpoints, run, nodes)


@pytest.mark.parametrize("version", ["3.5", pytest.param("3.4", marks=pytest.mark.soak)])
def test_members_are_stopped_one_by_one_and_nobody_regroups(processes: EtcdProcesses, run: str, version: str) -> None:
    """Each for longer than the claim's lease lives, the leader among them."""
    with etcd(version, 3) as cluster, observing(cluster.endpoints, run) as observer:
        nodes = form(processes, cluster.endpoints, run, *"abc", nodes="3:4")
        for member in cluster.members:
            member.pause()
            nodes[0].ask("bide", "bided", seconds=LEASE_TTL_S + 1.0)
            undisturbed(nodes)
            member.go_on()
            member.wait()
        settle(nodes, observer)
        undisturbed(nodes)
        grow(processes, cluster.endpoints, run, nodes)
        assert observer.worlds() == [1, 2]


@pytest.mark.parametrize("version", ["3.5", pytest.param("3.4", marks=pytest.mark.soak)])
@pytest.mark.parametrize("who", ["nobody", "another", "the server"])
def test_etcd_is_stopped_for_longer_than_a_lease_and_continued(
    processes: EtcdProcesses, run: str, version: str, who: str
) -> None:
    """With a node killed meanwhile, a new world is sealed once etcd is back, and not before."""
    with etcd(version, 3) as cluster, observing(cluster.endpoints, run) as observer:
        nodes = form(processes, cluster.endpoints, run, *"abc", nodes="2:3")
        server = observer.server(nodes)
        pause(cluster)
        for node in nodes:
            node.ask("outage", "outage", seconds=LEASE_TTL_S)
        victim = None if who == "nobody" else server if who == "the server" else others(nodes, server)[0]
        rest = others(nodes, victim) if victim is not None else nodes
        if victim is None:
            undisturbed(nodes)
        else:
            victim.kill()
        if victim is not None and who == "another":
            for node in rest:
                assert node.ask("be_over", "is over")["why"].startswith(f"{victim.name} was lost"), "a loss is told"
        for node in rest:
            assert node.waiting() == 0, "no agent restarts its workers during an outage (rule 6b)"
            assert len(node.heard("placed")) == 1, "nothing is sealed that cannot be recorded"
        go_on(cluster)
        if victim is None:
            settle(nodes, observer)
            undisturbed(nodes)
            assert observer.worlds() == [1]
            return
        regroup(rest, round=2)
        assert observer.worlds() == [1, 2]


def test_a_server_that_is_in_doubt_seals_nothing_and_says_so(processes: EtcdProcesses, run: str) -> None:
    with etcd("3.5", 3) as cluster, observing(cluster.endpoints, run) as observer:
        nodes = form(processes, cluster.endpoints, run, *"abc", nodes="2:4")
        server = observer.server(nodes)
        pause(cluster)
        for node in nodes:
            node.ask("outage", "outage", seconds=0.1)
        quitter = others(nodes, server)[0]
        quitter.order("withdraw")
        rest = others(nodes, quitter)
        for node in rest:
            assert node.ask("be_over", "is over")["why"].startswith(f"{quitter.name} withdrew")
            node.again()
        for node in rest:
            until(partial(says, node, "answers, but cannot renew its claim"), "it says what is awaited")
        go_on(cluster)
        by_rank(rest, round=2, size=2)


@pytest.mark.parametrize("version", ["3.5", pytest.param("3.4", marks=pytest.mark.soak)])
def test_workers_run_on_while_etcd_is_away_until_the_grace_ends_and_meet_again_when_it_is_back(
    processes: EtcdProcesses, run: str, version: str
) -> None:
    """The grace is counted from when the server is in doubt (rule 17e)."""
    with etcd(version, 3) as cluster, observing(cluster.endpoints, run) as observer:
        nodes = form(processes, cluster.endpoints, run, *"abc", nodes="3:4", outage_grace=GRACE_S)
        cluster.kill()
        began = time.monotonic()
        for node in nodes:
            why = node.changed()["why"]
            assert why == f"the server has been away for more than {GRACE_S:.0f} s" or why in (
                f"{other.name} had been told that it is" for other in nodes
            )
            assert time.monotonic() - began >= GRACE_S, "it held on until the grace was over"
            node.again()
        cluster.start()
        by_rank(nodes, round=2, size=3)
        assert observer.worlds() == [1, 2]


def test_a_finish_while_etcd_is_away_is_acknowledged_once_it_is_recorded(processes: EtcdProcesses, run: str) -> None:
    with etcd("3.5", 3) as cluster, observing(cluster.endpoints, run) as observer:
        nodes = form(processes, cluster.endpoints, run, *"abc", nodes=3)
        server = observer.server(nodes)
        quitter = max(others(nodes, server), key=lambda node: int(node.heard("placed")[-1]["rank"]))
        pause(cluster)
        quitter.order("finish")
        server.ask("outage", "outage", seconds=0.5)
        assert quitter.heard("left") == []
        go_on(cluster)
        assert quitter.expect("left")["done"]
        quitter.kill()
        rest = others(nodes, quitter)
        for node in rest:
            node.order("finish")
        for node in rest:
            assert node.expect("left")["done"]
            assert not any(not event["closed"] for event in node.heard("changed"))
        closing = observer.known().closing
        assert closing is not None
        assert closing.ending is Ending.SUCCEEDED


@pytest.mark.parametrize("version", ["3.4", pytest.param("3.5", marks=pytest.mark.soak)])
@pytest.mark.parametrize("then", ["lives", "is killed"])
def test_etcd_is_compacted_before_a_watch_comes_back(
    processes: EtcdProcesses, run: str, then: str, version: str
) -> None:
    """What the server's watch needs next is gone from the history: the record is read anew, and nothing is missed."""
    with (
        etcd(version, 3) as cluster,
        proxy_to(cluster.members[0].port) as proxy,
        observing(cluster.endpoints, run) as observer,
    ):
        server, b, c = nodes = processes.nodes("a", "b", "c")
        server.join(proxy.endpoint, "2:4", run, lease_ttl=30, last_call_timeout=1.0)
        assert observer.server([server]) is server
        for node in (b, c):
            node.join(cluster.endpoints, "2:4", run, lease_ttl=30)
        by_rank(nodes)
        proxy.loses_answers = True
        compact(observer.client, observer.client.put("elsewhere", "x").revision)
        proxy.loses_answers = False
        proxy.cut()
        undisturbed(nodes)
        if then == "is killed":
            server.kill()
            regroup([b, c], round=2)
        else:
            new = processes.node("new")
            new.join(cluster.endpoint, "2:4", run)
            regroup(nodes, new, round=2)
        processes.end()  # nobody comes to the proxy any more


@pytest.mark.parametrize("version", ["3.4", pytest.param("3.5", marks=pytest.mark.soak)])
def test_tokens_expire(processes: EtcdProcesses, run: str, version: str, tmp_path: Path) -> None:
    """A process that asks etcd so seldom needs another token each time; nobody is told of that."""
    password = tmp_path / "password"
    password.write_text("secret\n", encoding="utf-8")
    user = {"username": "root", "password_file": str(password)}
    with etcd(version, 3, *SHORT_TOKENS) as cluster:
        enable_users(cluster)
        with observing(cluster.endpoints, run, User("root", "secret")) as observer:
            nodes = form(processes, cluster.endpoints, run, *"abc", nodes="3:4", lease_ttl=15, **user)
            nodes[0].ask("bide", "bided", seconds=4.0)
            undisturbed(nodes)
            grow(processes, cluster.endpoints, run, nodes, **user)
            server = observer.server(nodes)
            server.kill()
            (new,) = (actor for actor in processes.actors if isinstance(actor, EtcdNode) and actor.name == "new")
            regroup([*others(nodes, server), new], round=3)


@pytest.mark.parametrize("version", ["3.5", pytest.param("3.4", marks=pytest.mark.soak)])
def test_a_full_database_says_what_to_do_and_the_run_goes_on_once_it_is_done(
    processes: EtcdProcesses, run: str, version: str
) -> None:
    with etcd(version, 3, "--quota-backend-bytes", "2000000") as cluster, observing(cluster.endpoints, run) as observer:
        nodes = form(processes, cluster.endpoints, run, *"abc", nodes="2:3", last_call_timeout=5.0)
        server = observer.server(nodes)
        fill(observer)
        stranger = processes.node("stranger")
        stranger.join(cluster.endpoints, 1, f"{run}-other", join_timeout=3.0)
        said = stranger.expect("error")["text"]
        for words in ("quota", "`etcdctl compact`", "`etcdctl defrag`", "`etcdctl alarm disarm`"):
            assert words in said
        undisturbed(nodes)
        # A loss meanwhile is told; the next world cannot be recorded, and is not.
        victim = others(nodes, server)[0]
        victim.kill()
        rest = others(nodes, victim)
        for node in rest:
            assert node.changed()["why"].startswith(f"{victim.name} was lost")
            node.again()
        for node in rest:
            until(partial(says, node, "the record has not been confirmed"), "it says what is awaited")
            assert len(node.heard("placed")) == 1
        make_room(cluster, observer)
        by_rank(rest, round=2, size=2)


@pytest.mark.parametrize("version", ["3.5", pytest.param("3.4", marks=pytest.mark.soak)])
def test_a_finish_that_a_full_database_refuses_is_a_finish_once_there_is_room(
    processes: EtcdProcesses, run: str, version: str
) -> None:
    with etcd(version, 3, "--quota-backend-bytes", "2000000") as cluster, observing(cluster.endpoints, run) as observer:
        nodes = form(processes, cluster.endpoints, run, *"abc", nodes=3)
        server = observer.server(nodes)
        until(lambda: observer.known().met > 0, "all is written")
        fill(observer)
        quitter = max(others(nodes, server), key=lambda node: int(node.heard("placed")[-1]["rank"]))
        rest = others(nodes, quitter)
        quitter.order("finish")
        until(partial(has_logged, server, "its record cannot be written, and is tried again"), "its write is refused")
        until(partial(has_logged, server, "etcd's database has reached its quota"), "it says so")
        rest[0].ask("bide", "bided", seconds=4.0)  # for longer than anybody may be silent
        assert quitter.heard("left") == [], "what is not recorded is not acknowledged"
        for node in rest:
            assert node.standing()["state"] == "HOLDS", node.account()
            assert node.heard("changed") == [], "nobody is told of a loss"
        make_room(cluster, observer)
        until(partial(has_logged, server, "its record can be written again"), "it says so")
        assert quitter.expect("left")["done"]
        quitter.kill()
        undisturbed(rest)
        for node in rest:
            node.order("finish")
        for node in rest:
            assert node.expect("left")["done"]
        closing = observer.known().closing
        assert closing is not None
        assert closing.ending is Ending.SUCCEEDED


def fill(observer: Observer) -> None:
    """Write until etcd takes no more."""

    def is_full() -> bool:
        try:
            for _ in range(10):
                observer.client.put("fill", b"x" * 100_000)
        except EtcdNoSpaceError:
            return True
        return False

    until(is_full, "etcd is full")


def make_room(cluster: Cluster, observer: Observer) -> None:
    """What etcd's own sentence says: compact, defragment, and disarm the alarm."""
    found = observer.client.get("fill")
    assert found is not None
    compact(observer.client, found.mod_revision)
    etcdctl(cluster, "defrag")
    etcdctl(cluster, "alarm", "disarm")
