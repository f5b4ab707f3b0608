"""`rallypoint evict` on etcd ends the lease of a live node and of nobody else; and which runs a prefix has."""

from __future__ import annotations

import re

import pytest

from rallypoint.errors import RendezvousError
from rallypoint.etcd import inspect
from rallypoint.etcd_client import put_op
from tests.etcd.servers import Cluster
from tests.etcd_v3.harness import PREFIX, EtcdNode, EtcdStage, Observer, undisturbed
from tests.waiting import until


def form(stage: EtcdStage, cluster: Cluster, observer: Observer, *names: str) -> list[EtcdNode]:
    """A world of these nodes, by rank; the first of them leads, so that nobody takes over when another one goes."""
    made = stage.nodes(*names)
    for node in made:
        node.join(cluster.endpoints, f"1:{len(names)}", observer.run, last_call_timeout=30.0)
        observer.leading(made[:1])
    places = {id(node): node.placed(round=1, size=len(names)) for node in made}
    return sorted(made, key=lambda node: int(places[id(node)]["rank"]))


def evict(observer: Observer, name: str) -> bool:
    return inspect.evict(observer.client, PREFIX, observer.run, name)


def test_who_has_finished_cannot_be_evicted_and_the_run_stays_as_it_is(
    stage: EtcdStage, cluster: Cluster, run: str, observer: Observer
) -> None:
    """Its last word hangs on the lease of the run: that must not go with it."""
    a, b, quitter = form(stage, cluster, observer, "a", "b", "quitter")
    assert quitter.ask("finish", "left")["done"]
    until(lambda: observer.finished() == 1, "the leader knows")
    before = observer.everything()
    with pytest.raises(RendezvousError, match=f"node 'quitter' of run '{run}' has finished or left already"):
        evict(observer, "quitter")
    assert observer.everything() == before
    undisturbed([a, b])
    for node in (b, a):
        node.order("finish")
    for node in (b, a):
        assert node.expect("left")["done"]


def test_a_live_node_is_evicted_though_one_of_its_name_has_finished(
    stage: EtcdStage, cluster: Cluster, observer: Observer
) -> None:
    namesakes = form(stage, cluster, observer, "a", "a", "b")
    lives, quitter = (node for node in namesakes if node.name == "a")  # who has rank 0 stays for the others
    (b,) = (node for node in namesakes if node.name == "b")
    assert quitter.ask("finish", "left")["done"]
    until(lambda: observer.finished() == 1, "the leader knows")
    victim = lives.standing()["node"]
    assert evict(observer, "a")
    lives.changed()
    assert observer.client.get(observer.keys.node(victim)) is None
    assert b.changed()["why"] == "a was lost: its lease ended"
    assert observer.finished() == 1
    assert not evict(observer, "nobody")


def test_an_id_names_one_node_among_those_of_one_name(stage: EtcdStage, cluster: Cluster, observer: Observer) -> None:
    first, second = form(stage, cluster, observer, "a", "a")
    victim, stays = first.standing()["node"], second.standing()["node"]
    assert evict(observer, victim)
    for node in (first, second):
        node.changed()
    assert observer.client.get(observer.keys.node(victim)) is None
    assert observer.client.get(observer.keys.node(stays)) is not None


def test_the_runs_of_a_longer_prefix_are_not_listed(cluster: Cluster, run: str, observer: Observer) -> None:
    client, prefix = observer.client, f"/{run}"
    with client.grant(60) as lease:
        for key in (f"{prefix}/mine%2F1/out/board", f"{prefix}/deeper/other/out/board", f"{prefix}er/other/out/board"):
            client.transaction((), [put_op(key, "{}", lease=lease.id)])
        assert [line.run_id for line in inspect.list_runs(client, prefix)] == ["mine/1"]
        (line,) = inspect.list_runs(client, prefix)
        assert re.search("board of run 'mine/1'", line.situation)
