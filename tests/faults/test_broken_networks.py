"""Networks that fail between hosts: cut for a while, in one direction only, for large packets, or moved elsewhere (rule 14).

The hosts are network namespaces; the node on host a serves, unless a server has a host of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.network_namespaces import Lan, with_files
from tests.support.node_processes import FAST, NIMBLE, Node, Processes, by_rank
from tests.support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.root

CALM = {"heartbeat_interval": 1.0, "heartbeat_timeout": 5.0}
"""As they are by default."""
NOBODY = "02:00:00:00:00:99"


class Hosts:
    """Hosts on one network that the test breaks, and a node on each."""

    def __init__(self, lan: Lan, processes: Processes, folder: Path) -> None:
        self.lan, self.processes = lan, processes
        self.file = folder / "hosts"
        self.file.touch()
        self.words = {
            name: (*lan.host(name, f"10.66.0.{number}/24"), *with_files({"/etc/hosts": self.file}))
            for number, name in enumerate("abcd", 1)
        }
        self.endpoint = "10.66.0.1:29400"

    def form(self, names: str, nodes: str, **options: Any) -> list[Node]:
        """A node on each of these hosts, in one world; the first of them serves."""
        made = [self.processes.node(name, before=self.words[name]) for name in names]
        for rank, node in enumerate(made):
            given: dict[str, Any] = {"is_host": None, "rank": rank, **CALM, **options}
            node.join(self.endpoint, nodes, **given)
        return by_rank(made, round=1)

    def cut(self, name: str) -> None:
        self.lan.switch(f"{name}0", "down")

    def heal(self, name: str) -> None:
        self.lan.switch(f"{name}0", "up")

    def deafen(self, name: str, *, to: int) -> None:
        """All that a host sends to another one is lost, and nobody says so."""
        self.lan.run(*self.words[name], "ip", "neighbour", "replace", f"10.66.0.{to}", "lladdr", NOBODY, "dev", "eth0")

    def swallow_large_packets(self, name: str) -> None:
        """Those of more than 600 bytes from and to a host are lost, and nobody says so."""
        for words in self.words.values():
            self.lan.run(*words, "ip", "link", "set", "eth0", "gso_max_segs", "1")
        self.lan.switch(f"{name}0", "mtu", "600")


@pytest.fixture
def hosts(processes: Processes, tmp_path: Path) -> Iterator[Hosts]:
    lan = Lan()
    try:
        yield Hosts(lan, processes, tmp_path)
    finally:
        lan.end()


def undisturbed(*nodes: Node) -> None:
    """Each reaches the server, and nobody was told anything."""
    for node in nodes:
        assert node.ask("reach", "reached")["round"] == 1
        assert node.heard("changed") == [], node.account()


def regroup(nodes: list[Node], *back: Node, round: int) -> None:
    for node in nodes:
        node.changed()
        node.again()
    by_rank([*nodes, *back], round=round)


@pytest.mark.parametrize("who", ["a", "c"])
def test_a_link_that_is_cut_for_two_seconds_disturbs_nobody(hosts: Hosts, who: str) -> None:
    nodes = hosts.form("abc", "3")
    hosts.cut(who)
    nodes[0].ask("bide", "bided", seconds=2.0)
    hosts.heal(who)
    undisturbed(*nodes)


@pytest.mark.parametrize(
    ("given", "seconds"), [(NIMBLE, 2.0), pytest.param(CALM, 7.0, marks=pytest.mark.soak, id="for twelve seconds")]
)
def test_a_node_that_is_cut_off_is_missed_by_the_others_alone_and_comes_back(
    hosts: Hosts, given: dict[str, Any], seconds: float
) -> None:
    """For longer than a node may be silent, and not for longer than workers run on."""
    a, b, c = hosts.form("abc", "2:3", **given)
    hosts.cut("c")
    regroup([a, b], round=2)
    c.ask("outage", "outage", seconds=seconds)
    assert c.waiting() == 0
    assert c.heard("changed") == [], "it runs on"
    hosts.heal("c")
    assert c.changed()["why"] == "c is no longer part of round 1: it was given up or left behind"
    c.again()
    regroup([a, b], c, round=3)


@pytest.mark.parametrize("grace_s", [3.0, pytest.param(300.0, marks=pytest.mark.soak, id="for 400 seconds")])
def test_a_node_that_is_cut_off_for_longer_than_workers_run_on_says_so_and_waits(hosts: Hosts, grace_s: float) -> None:
    patient = {**NIMBLE, "join_timeout": grace_s + PATIENCE_S}  # c is still joining when its link is back
    a, b, c = hosts.form("abc", "2:3", **patient, outage_grace=grace_s)
    hosts.cut("c")
    regroup([a, b], round=2)
    told = c.expect("changed", grace_s + PATIENCE_S)
    assert told["why"] == f"the server has been away for more than {grace_s:.0f} s"
    c.again()
    until(lambda: any("10.66.0.1:29400 cannot be reached" in line for line in c.errors))
    a.order("bide", seconds=grace_s / 3)
    a.expect("bided", grace_s + PATIENCE_S)
    hosts.heal("c")
    regroup([a, b], c, round=3)


@pytest.mark.parametrize("to_server", [True, False], ids=["to the server", "from the server"])
def test_a_node_whose_packets_are_lost_in_one_direction_is_missed_by_the_others_alone(
    hosts: Hosts, to_server: bool
) -> None:
    a, b, c = hosts.form("abc", "2:3", **NIMBLE)
    if to_server:
        hosts.deafen("c", to=1)
    else:
        hosts.deafen("a", to=3)
    regroup([a, b], round=2)
    lonely = c.ask("outage", "outage", seconds=1.0)
    assert lonely["still"]
    assert a.waiting() == b.waiting() == 0


def test_a_network_that_swallows_large_packets_is_crossed_with_small_ones(hosts: Hosts) -> None:
    hosts.swallow_large_packets("b")
    a, b = hosts.form("ab", "2", **{**NIMBLE, "topology": "/".join(["rack"] * 100)})
    b.ask("set", "stored", key="small", value="here")
    assert a.ask("get", "value", key="small")["value"] == "here"


def test_nodes_follow_a_server_whose_name_moves_to_another_address(hosts: Hosts) -> None:
    """Its machine is gone without a word, and they are trying to reach it there when the name changes."""
    hosts.file.write_text("127.0.0.1 localhost\n10.66.0.3 server\n", encoding="ascii")
    hosts.processes.server(host="10.66.0.3", port=29400, before=hosts.words["c"])
    hosts.endpoint = "server:29400"
    nodes = hosts.form("ab", "2")
    hosts.cut("c")
    for node in nodes:
        node.order("outage", seconds=0.5)
    for node in nodes:
        node.expect("outage")
    hosts.processes.server(host="10.66.0.4", port=29400, before=hosts.words["d"], hold_s=7.0)
    hosts.file.write_text("127.0.0.1 localhost\n10.66.0.4 server\n", encoding="ascii")
    began = nodes[0].ask("clock", "clock")["monotonic"]
    undisturbed(*nodes)
    assert nodes[0].ask("clock", "clock")["monotonic"] - began < 4.0


def test_a_server_that_is_cut_off_from_all_nodes_gives_up_nobody(hosts: Hosts) -> None:
    hosts.processes.server(host="10.66.0.4", port=29400, before=hosts.words["d"])
    hosts.endpoint = "10.66.0.4:29400"
    nodes = hosts.form("ab", "2", **FAST)
    hosts.cut("d")
    for node in nodes:
        node.order("outage", seconds=1.0)
    for node in nodes:
        node.expect("outage")
    hosts.heal("d")
    undisturbed(*nodes)
