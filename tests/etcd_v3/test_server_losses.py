"""The node that serves is killed, stopped or cut off from its claim (rules 17a to 17f): the others go on without it."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from rallypoint.messages.types import Bounds
from rallypoint.record import encode
from tests.etcd_v3.invariants import check_history
from tests.support.etcd_node_processes import (
    EtcdProcesses,
    Observer,
    are_one_world,
    by_rank,
    form,
    observing,
    others,
    regroup,
    undisturbed,
)
from tests.support.etcd_servers import VERSIONS, Cluster, shared
from tests.support.waiting import until


@pytest.mark.parametrize("version", VERSIONS)
def test_the_serving_node_is_killed_and_the_others_are_in_a_new_world(
    processes: EtcdProcesses, run: str, version: str
) -> None:
    cluster = shared(version, 3)
    nodes = form(processes, cluster.endpoints, run, "a", "b", "c", nodes="2:3")
    with observing(cluster.endpoints, run) as observer:
        epoch, server = observer.known().epoch, observer.server(nodes)
        server.kill()
        rest = others(nodes, server)
        for node in rest:
            assert node.changed()["why"] == "only 2 of 3 ranks of round 1 still hold it"
            node.again()
        first, second = by_rank(rest, round=2, size=2)
        assert observer.server(rest) in rest
        assert observer.known().epoch > epoch
        assert observer.worlds() == [1, 2]
    first.ask("set", "stored", key="who", value=first.name)
    assert second.ask("get", "value", key="who")["value"] == first.name


def test_the_serving_node_and_another_are_killed_at_once(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer
) -> None:
    nodes = form(processes, cluster.endpoints, run, "a", "b", "c", "d", nodes="2:4")
    server = observer.server(nodes)
    other = others(nodes, server)[0]
    for node in (server, other):
        node.process.kill()
    regroup(others(nodes, server, other), round=2)
    assert observer.worlds() == [1, 2]


def test_servers_are_killed_one_after_the_other_until_one_node_is_left(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer
) -> None:
    nodes = form(processes, cluster.endpoints, run, "a", "b", "c", "d", nodes="1:4", last_call_timeout=30.0)
    for round_ in (2, 3, 4):
        server = observer.server(nodes)
        server.kill()
        nodes = others(nodes, server)
        regroup(nodes, round=round_)
    epochs = [record.epoch for _, record in observer.history() if record is not None]
    assert epochs == sorted(epochs)
    assert observer.worlds() == [1, 2, 3, 4]


def test_a_spare_takes_the_place_of_the_serving_node(
    processes: EtcdProcesses, old_cluster: Cluster, run: str, old_observer: Observer
) -> None:
    nodes = form(processes, old_cluster.endpoints, run, "a", "b", nodes=2)
    spare = processes.node("spare")
    spare.join(old_cluster.endpoints, 2, run, role="spare")
    until(lambda: spare.standing()["state"] == "SPARE", "it stands by")
    server = old_observer.server(nodes)
    server.kill()
    regroup(others(nodes, server), spare, round=2)


def test_a_spare_that_serves_is_killed_and_no_world_breaks(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer
) -> None:
    """It is no member: a change of server breaks nobody's world (rule 17g)."""
    spare, a, b = processes.nodes("spare", "a", "b")
    spare.join(cluster.endpoints, 2, run, role="spare")
    assert observer.server([spare]) is spare
    for node in (a, b):
        node.join(cluster.endpoints, 2, run)
    by_rank([a, b], round=1)
    spare.kill()
    assert observer.server([a, b]) in (a, b)
    undisturbed([a, b])
    assert observer.worlds() == [1]


def test_the_serving_node_is_killed_while_nodes_gather(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer
) -> None:
    a, b, c, d = processes.nodes("a", "b", "c", "d")
    a.join(cluster.endpoints, 3, run)
    assert observer.server([a]) is a
    b.join(cluster.endpoints, 3, run)
    until(lambda: "2 of at least 3" in b.ask("why", "why")["why"], "both are here")
    a.kill()
    for node in (c, d):
        node.join(cluster.endpoints, 3, run)
    by_rank([b, c, d], round=1)
    assert observer.worlds() == [1]


def test_a_stopped_server_is_replaced_and_learns_that_it_is_out(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer
) -> None:
    nodes = form(processes, cluster.endpoints, run, "a", "b", "c", nodes="2:3")
    server = observer.server(nodes)
    was = server.standing()["node"]
    server.pause()
    rest = others(nodes, server)
    regroup(rest, round=2)
    server.resume()
    server.changed()
    assert server.waiting() == 1
    server.again()
    regroup(rest, server, round=3)
    assert server.standing()["node"] not in ("", was), "it is another node now"
    assert observer.server(nodes) in rest, "it serves no more"
    assert [event["round"] for node in rest for event in node.heard("placed")] == [1, 2, 3] * 2
    assert observer.worlds() == [1, 2, 3]


def test_a_server_that_is_stopped_for_less_than_its_lease_loses_nothing(
    processes: EtcdProcesses, old_cluster: Cluster, run: str, old_observer: Observer
) -> None:
    nodes = form(processes, old_cluster.endpoints, run, "a", "b", nodes=2, lease_ttl=20, heartbeat_timeout=15.0)
    server, epoch = old_observer.server(nodes), old_observer.known().epoch
    (rest,) = others(nodes, server)
    server.pause()
    rest.ask("bide", "bided", seconds=2.0)
    server.resume()
    undisturbed(nodes)
    assert old_observer.server(nodes) is server
    assert old_observer.known().epoch == epoch


def test_a_server_whose_lease_is_revoked_by_hand_claims_again_and_nobody_is_told(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer
) -> None:
    nodes = form(processes, cluster.endpoints, run, "a", "b", "c", nodes="2:3")
    server, epoch = observer.server(nodes), observer.known().epoch
    (claim,) = observer.claims()
    observer.client.revoke(claim.lease)
    until(lambda: observer.known().epoch > epoch and len(observer.claims()) == 1, "it has claimed again")
    assert observer.server(nodes) is server
    undisturbed(nodes)
    assert observer.worlds() == [1]


@pytest.mark.parametrize("what", ["the record", "everything"])
def test_a_record_that_is_deleted_by_hand_is_written_again_and_nobody_is_told(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer, what: str
) -> None:
    nodes = form(processes, cluster.endpoints, run, "a", "b", "c", nodes="2:4")
    server, before = observer.server(nodes), observer.known()
    if what == "the record":
        observer.client.delete(observer.keys.record)
    else:
        observer.client.delete(observer.keys.run, prefix=True)
    until(lambda: observer.record() is not None and len(observer.claims()) == 1, "it is written again")
    after = observer.known()
    assert (after.incarnation, after.world) == (before.incarnation, before.world)
    assert after.epoch > before.epoch
    assert observer.server(nodes) is server
    undisturbed(nodes)
    new = processes.node("new")
    new.join(cluster.endpoints, "2:4", run)
    regroup(nodes, new, round=2)


def test_the_record_is_deleted_while_its_server_is_stopped(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer
) -> None:
    """The others know the world that they are in, and the next server learns it from them."""
    nodes = form(processes, cluster.endpoints, run, "a", "b", "c", nodes="2:3")
    server, incarnation = observer.server(nodes), observer.known().incarnation
    server.pause()
    observer.client.delete(observer.keys.run, prefix=True)
    rest = others(nodes, server)
    regroup(rest, round=2)
    assert observer.known().incarnation == incarnation
    server.resume()
    server.changed()
    server.again()
    regroup(rest, server, round=3)


def test_a_claim_that_is_taken_by_force_is_left_to_the_nodes_to_settle(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer
) -> None:
    """Somebody writes another server into the record, which does not live: the server steps down, and one is elected."""
    nodes = form(processes, cluster.endpoints, run, "a", "b", "c", nodes="2:3")
    before = observer.known()
    assert before.claim is not None
    stranger = replace(before.claim, id="cstranger", port=1, ranks=())
    forced = replace(before, epoch=before.epoch + 1, claim=stranger, write_id="wforced")
    found = observer.client.get(observer.keys.record)
    assert found is not None
    observer.client.put(observer.keys.record, encode(forced), lease=found.lease)
    until(lambda: observer.known().epoch > forced.epoch, "one of them has claimed it")
    assert observer.server(nodes) in nodes
    undisturbed(nodes)
    assert observer.worlds() == [1]


def test_a_fresh_node_that_comes_when_the_server_is_killed_founds_nothing(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer
) -> None:
    nodes = form(processes, cluster.endpoints, run, "a", "b", "c", nodes="2:4")
    incarnation, server = observer.known().incarnation, observer.server(nodes)
    fresh = processes.node("fresh")
    server.kill()
    fresh.join(cluster.endpoints, "2:4", run)
    rest = others(nodes, server)
    for node in rest:
        node.order("live")
    until(lambda: are_one_world([*rest, fresh]), "they meet")
    assert fresh.heard("placed")[-1]["fence"].partition("/")[0] == incarnation


@pytest.mark.parametrize(
    ("seed", "version"),
    [
        (1, "3.5"),
        *(pytest.param(seed, version, marks=pytest.mark.soak) for version in VERSIONS for seed in range(2, 12)),
    ],
)
def test_a_server_is_killed_at_any_moment_of_a_round(
    processes: EtcdProcesses, run: str, seed: int, version: str
) -> None:
    """Right while it gathers and seals: the run goes on with the others, and no round is lost or doubled."""
    cluster, chance = shared(version, 3), random.Random(seed)
    nodes = form(processes, cluster.endpoints, run, "a", "b", "c", "d", nodes="2:4")
    with observing(cluster.endpoints, run) as observer:
        server = observer.server(nodes)
        victim, *rest = chance.sample(others(nodes, server), 3)
        for node in (server, *rest):
            node.order("live")
        with observer.client.watch(observer.keys.run, prefix=True) as changes:
            victim.order("withdraw")
            if chance.random() < 0.5:
                changes.get(timeout_s=chance.random())
            server.kill()
        until(lambda: are_one_world(rest), "the others meet")
        for node in rest:
            rounds = [event["round"] for event in node.heard("placed")]
            assert rounds == sorted(set(rounds)), "no round comes twice"
        check_history(observer.history(), Bounds(2, 4))
