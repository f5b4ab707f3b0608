"""Nodes of torch's own `etcd` backend and of ours form one world together, in every role of the protocol."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys

import pytest

from rallypoint.elastic.etcd_rendezvous import EtcdRendezvous
from tests.etcd_v2.legacy_node_processes import LegacyNodeGroup, NodeProcess, legacy_nodes
from tests.support.etcd_servers import Cluster, wait_until

LIBRARIES = ("torch", "ours")

# Who creates the version and is the last to confirm; who joins as rank min-1 and keeps the last call; who comes late;
# who is killed in the end.  The first two have each library in each role.
MIXED = ("torch", "ours", "torch", "keeper")
FURTHER = [
    roles
    for roles in itertools.product(LIBRARIES, LIBRARIES, LIBRARIES, ("creator", "keeper", "late"))
    if roles != MIXED and len(set(roles[:3])) == 2
]


def test_one_world_of_both(one_etcd: Cluster, name: str) -> None:
    live(one_etcd, name, *MIXED)


@pytest.mark.soak
@pytest.mark.parametrize("roles", FURTHER, ids="-".join)
def test_one_world_of_both_in_all_other_ways(one_etcd: Cluster, name: str, roles: tuple[str, str, str, str]) -> None:
    live(one_etcd, name, *roles)


@pytest.mark.parametrize("late", ["ours", pytest.param("torch", marks=pytest.mark.soak)])
def test_a_late_node_joins_a_mixed_world_in_the_root_directory(one_etcd: Cluster, name: str, late: str) -> None:
    """Whoever waits there sees the members alive, and lets their world stand until they regroup with it."""
    with legacy_nodes(one_etcd.endpoint, name, 2, 3, prefix="/") as nodes:
        world = form_of_two(nodes, "torch", "ours")
        versions = [(nodes.state() or {})["version"]]
        meet([*world, nodes.start(late, "C")])
        versions.append((nodes.state() or {})["version"])
    assert versions == ["1", "2"]


def test_a_node_of_torchs_is_not_too_late_for_those_who_are_back_at_once(one_etcd: Cluster, name: str) -> None:
    """Ours regroup within milliseconds, without a last call; torch's sleeps for a second first."""
    with legacy_nodes(one_etcd.endpoint, name, 2, 3, last_call=0) as nodes:
        ours = [nodes.start("ours", "A"), nodes.start("ours", "B")]
        meet(ours)
        meet([*ours, nodes.start("torch", "C")])


def test_extra_data_is_shared(one_etcd: Cluster, name: str) -> None:
    ours = EtcdRendezvous(one_etcd.client(), "/torchelastic/p2p", name, 1, 1, 60, 1)
    version, _, _ = ours.rendezvous_barrier()
    ours.store_extra_data(version, "ours", "from ours")
    program = f"""
import etcd
from torch.distributed.elastic.rendezvous.etcd_rendezvous import EtcdRendezvous
client = etcd.Client(host="127.0.0.1", port={one_etcd.members[0].port})
theirs = EtcdRendezvous(client, "/torchelastic/p2p", {name!r}, 1, 1, 60, 1)
theirs.store_extra_data({version!r}, "theirs", "from torch")
print(theirs.load_extra_data({version!r}, "ours"))
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said == "from ours\n"
    assert ours.load_extra_data(version, "theirs") == "from torch"
    ours.set_closed()


def live(etcd: Cluster, run_id: str, creator: str, keeper: str, late: str, killed: str) -> None:
    """A world of two, of three after a late joiner, and of three again after one was killed and another came."""
    with legacy_nodes(etcd.endpoint, run_id, 2, 3) as nodes:
        a, b = form_of_two(nodes, creator, keeper)
        c = nodes.start(late, "C")
        members = [a, b, c]
        meet(members)
        lost = members.pop(["creator", "keeper", "late"].index(killed))
        lost.kill()
        d = nodes.start("ours", "D")  # with torch's nodes alone, one of them may miss that somebody waits
        meet([*members, d])
        a_survivor = members[0]
        assert a_survivor.end() == {"shut down": True}
        wait_until(lambda: (nodes.state() or {}).get("status") == "closed")


def form_of_two(nodes: LegacyNodeGroup, creator: str, keeper: str) -> tuple[NodeProcess, NodeProcess]:
    a = nodes.start(creator, "A")
    wait_until(lambda: (nodes.state() or {}).get("participants") == [0])
    a.signal(signal.SIGSTOP)
    b = nodes.start(keeper, "B")
    wait_until(lambda: len((nodes.state() or {}).get("keep_alives", ())) == 1)
    a.signal(signal.SIGCONT)  # the last to confirm
    worlds = meet([a, b])
    assert [world["rank"] for world in worlds] == [0, 1]
    return a, b


def meet(members: list[NodeProcess]) -> list[dict[str, object]]:
    """All of them are in one world, and share its store."""
    worlds = [member.hear_world_of(len(members)) for member in members]
    assert sorted(world["rank"] for world in worlds) == list(range(len(members)))
    assert len({tuple(world["names"]) for world in worlds}) == 1
    assert sorted(worlds[0]["names"]) == sorted(member.name for member in members)
    assert sorted(world["counted"] for world in worlds) == list(range(1, len(members) + 1))
    assert len({world["port"] for world in worlds}) == 1
    return worlds
