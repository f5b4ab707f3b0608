"""Members of etcd and nodes on hosts of their own, as root, in namespaces of the test's own: networks fall apart, members
stop or end; no wrong world, and nobody is told to restart who need not be.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.etcd_v3.harness import EtcdStage, by_rank, renewed, undisturbed
from tests.etcd_v3.town import TTL_S, town
from tests.waiting import until

pytestmark = pytest.mark.root

SOON_S = 20.0
"""How long nodes may take to meet on a machine that is busy; the kernel gives up a connection after two minutes."""


@pytest.mark.parametrize(
    ("leads", "version"),
    [
        (True, "3.5"),
        *(pytest.param(*case, marks=pytest.mark.soak) for case in ((False, "3.5"), (True, "3.4"), (False, "3.4"))),
    ],
)
def test_a_minority_is_cut_off(stage: EtcdStage, run: str, tmp_path: Path, leads: bool, version: str) -> None:
    """Be it the member of etcd that leads the others, and nodes are on both sides."""
    with town(tmp_path, version) as place:
        nodes = place.form(stage, run, "2:3")
        # A member that only the other members have lost: nodes go to those.
        lonely = place.pick(leads=leads)
        place.cut(lonely, 1)
        until(lambda: not place.is_healthy(lonely), "it is alone")
        undisturbed(nodes)
        place.heal(lonely)
        until(lambda: place.is_healthy(lonely), "it is back")
        undisturbed(nodes)
        # A whole host, be it the one that leads: its node is missed by the others, and itself told nothing.
        lonely = place.pick(leads=leads)
        place.cut(lonely, 0, 1)
        alone, rest = nodes[lonely], [node for number, node in enumerate(nodes) if number != lonely]
        for node in rest:
            assert node.changed()["why"] == f"{alone.name} was lost: its lease ended"
            node.again()
        by_rank(rest, round=2, size=2)
        assert alone.ask("outage", "outage", seconds=0.1)["still"]
        assert alone.waiting() == 0
        assert alone.heard("changed") == []
        place.heal(lonely)
        # It learns that it is out, and comes back as another.
        alone.changed()
        assert alone.waiting() == 1
        alone.again()
        for node in rest:
            node.changed()
            node.again()
        by_rank(nodes, round=3, size=3)


@pytest.mark.parametrize("version", ["3.4", pytest.param("3.5", marks=pytest.mark.soak)])
def test_all_members_are_killed_and_started_again(stage: EtcdStage, run: str, tmp_path: Path, version: str) -> None:
    with town(tmp_path, version) as place:
        nodes = place.form(stage, run, "3:4")
        place.kill()
        nodes[0].ask("outage", "outage", seconds=TTL_S)
        for node in nodes:
            assert node.waiting() == 0
        place.start()
        undisturbed(nodes)
        new = place.node(stage, run, 1, "3:4", "new")
        for node in nodes:
            node.changed()
            node.again()
        by_rank([*nodes, new], round=2, size=4)


@pytest.mark.parametrize("version", ["3.5", pytest.param("3.4", marks=pytest.mark.soak)])
def test_a_member_is_stopped(stage: EtcdStage, run: str, tmp_path: Path, version: str) -> None:
    """For twice as long as a lease lives, and the node on its host talks to it first."""
    with town(tmp_path, version) as place:
        nodes = place.form(stage, run, "3:4")
        stopped = place.pick(leads=False)
        over = threading.Event()
        place.pause(stopped)
        threading.Timer(2 * TTL_S, over.set).start()
        while not over.is_set():
            renewed(nodes)
        for node in nodes:
            node.undisturbed()
        place.go_on(stopped)
        until(lambda: place.is_healthy(stopped), "it is back")
        undisturbed(nodes)
        new = place.node(stage, run, stopped, "3:4", "new")
        for node in nodes:
            node.changed()
            node.again()
        by_rank([*nodes, new], round=2, size=4)


@pytest.mark.parametrize("version", ["3.4", pytest.param("3.5", marks=pytest.mark.soak)])
def test_a_member_whose_packets_are_dropped_is_the_first_in_the_list(
    stage: EtcdStage, run: str, tmp_path: Path, version: str
) -> None:
    """Nodes that have never talked to etcd form a world, and another one joins them."""
    with town(tmp_path, version) as place:
        hidden = place.pick(leads=False)
        here, there = (number for number in range(3) if number != hidden)
        place.hide(hidden)
        assert place.is_silent(hidden, to=here)
        assert place.is_silent(hidden, to=there)
        start = time.monotonic()
        nodes = [place.node(stage, run, number, "2:4", first=hidden) for number in (here, there)]
        by_rank(nodes, round=1, size=2)
        assert time.monotonic() < start + SOON_S
        undisturbed(nodes)
        start = time.monotonic()
        new = place.node(stage, run, here, "2:4", "new", first=hidden)
        for node in nodes:
            node.changed()
            node.again()
        by_rank([*nodes, new], round=2, size=3)
        assert time.monotonic() < start + SOON_S
        for node in (*nodes, new):
            assert node.way()["endpoint"] != place.endpoints[hidden]
        renewed([*nodes, new])
        new.undisturbed()
