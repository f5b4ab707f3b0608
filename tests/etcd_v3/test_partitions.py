"""Members of etcd and nodes on hosts of their own, as root, in namespaces of the test's own: networks fall apart, members
stop or end; no wrong world, and nobody is told to restart who need not be.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest

from tests.etcd_v3.etcd_hosts import etcd_hosts
from tests.support.etcd_node_processes import (
    EtcdNode,
    EtcdProcesses,
    are_one_world,
    by_rank,
    has_logged,
    others,
    regroup,
    says,
    undisturbed,
)
from tests.support.waiting import until

pytestmark = pytest.mark.root

GOES_ON_WITHIN_S = 20.0
"""The time-out and half of it for the hold, with room for a slow machine; `outage_grace` would be 300 s."""


def is_server(node: EtcdNode) -> bool:
    return bool(node.standing()["claim"])


@pytest.mark.parametrize(
    ("leads", "version"),
    [
        (True, "3.5"),
        *(pytest.param(*case, marks=pytest.mark.soak) for case in ((False, "3.5"), (True, "3.4"), (False, "3.4"))),
    ],
)
def test_a_member_that_the_other_members_have_lost_disturbs_nobody(
    processes: EtcdProcesses, run: str, tmp_path: Path, leads: bool, version: str
) -> None:
    """It is the one that the serving node talks to, and may be the one that leads."""
    with etcd_hosts(tmp_path, version) as place:
        lonely = place.pick(leads=leads)
        nodes = place.form(processes, run, "3:4", server=lonely)
        place.cut(lonely, 1)
        until(lambda: not place.is_healthy(lonely), "it is alone")
        until(partial(has_logged, nodes[lonely], "the next member is asked"), "it says what it does about it")
        undisturbed(nodes)
        place.heal(lonely)
        until(lambda: place.is_healthy(lonely), "it is back")
        undisturbed(nodes)
        new = place.node(processes, run, (lonely + 1) % 3, "3:4", "new")
        regroup(nodes, new, round=2)


@pytest.mark.parametrize(
    ("serves", "leads", "version"),
    [
        ("the majority", False, "3.4"),
        ("the minority", True, "3.5"),
        *(
            pytest.param(*case, marks=pytest.mark.soak)
            for case in (("the majority", True, "3.5"), ("the minority", False, "3.4"), ("the minority", False, "3.5"))
        ),
    ],
)
def test_a_host_is_cut_off(
    processes: EtcdProcesses, run: str, tmp_path: Path, serves: str, leads: bool, version: str
) -> None:
    """With its member of etcd: its node is missed by the others, is itself told nothing, and comes back as another."""
    with etcd_hosts(tmp_path, version) as place:
        lonely = place.pick(leads=leads)
        server = lonely if serves == "the minority" else (lonely + 1) % 3
        nodes = place.form(processes, run, "2:3", server=server)
        alone, rest = nodes[lonely], others(nodes, nodes[lonely])
        place.cut(lonely, 0, 1)
        regroup(rest, round=2)
        assert any(is_server(node) for node in rest)
        missed = "only 2 of 3 ranks of round 1 still hold it" if server == lonely else f"{alone.name} was lost: "
        for node in rest:
            assert node.heard("changed")[-1]["why"].startswith(missed), node.account()
        stay_out(alone)
        if server == lonely:
            until(partial(has_logged, alone, "the claim could not be renewed for "), "it says so")
        place.heal(lonely)
        assert alone.changed()["why"] == f"{alone.name} is no longer part of round 1: it was given up or left behind"
        until(lambda: alone.waiting() == 1, "it is to join again")
        alone.again()
        regroup(rest, alone, round=3)
        assert not is_server(alone), "it serves no more"


def stay_out(node: EtcdNode) -> None:
    """A node that is cut off runs on: it is in an outage, is told nothing, and is in no other world."""
    assert node.ask("outage", "outage", seconds=0.1)["still"]
    assert node.waiting() == 0
    assert node.heard("changed") == [], node.account()
    assert len(node.heard("placed")) == 1


def test_a_minority_with_its_server_and_enough_nodes_for_a_world_forms_none(
    processes: EtcdProcesses, run: str, tmp_path: Path
) -> None:
    """Two nodes on the host that is cut off would be enough, and one of them serves: but nothing can be recorded there."""
    with etcd_hosts(tmp_path, "3.5") as place:
        lonely = place.pick(leads=False)
        nodes = place.form(processes, run, "2:4", server=lonely, companion=True)
        cut_off = [nodes[lonely], nodes[3]]
        rest = others(nodes, *cut_off)
        place.cut(lonely, 0, 1)
        regroup(rest, round=2)
        for node in cut_off:
            stay_out(node)
            node.order("again_and_live")  # as a program may that looks for itself
        for node in cut_off:
            node.ask("outage", "outage", seconds=0.5)
            assert len(node.heard("placed")) == 1, "no wrong world"
            until(partial(says, node, "answers, but cannot renew its claim"), "it says what is awaited")
        place.heal(lonely)
        for node in rest:
            node.order("live")
        until(lambda: are_one_world(nodes), "all meet")


@pytest.mark.parametrize("version", [pytest.param("3.4", marks=pytest.mark.soak), "3.5"])
def test_the_clients_network_of_the_serving_host_fails_and_comes_back(
    processes: EtcdProcesses, run: str, tmp_path: Path, version: str
) -> None:
    """Its member of etcd is still one of the cluster, so that its claim would live on, but no node can reach it (17e)."""
    with etcd_hosts(tmp_path, version) as place:
        lonely = place.pick(leads=False)
        nodes = place.form(processes, run, "2:3", server=lonely)
        alone, rest = nodes[lonely], others(nodes, nodes[lonely])
        place.cut(lonely, 0)
        cut_at = time.monotonic()
        regroup(rest, round=2)
        assert time.monotonic() - cut_at < GOES_ON_WITHIN_S
        assert any(is_server(node) for node in rest)
        until(lambda: not is_server(alone), "it has found out that another one serves")
        until(partial(has_logged, alone, "serves no longer: another server was elected"), "it says so")
        stay_out(alone)
        place.heal(lonely)
        assert alone.changed()["why"] == f"{alone.name} is no longer part of round 1: it was given up or left behind"
        until(lambda: alone.waiting() == 1, "it is to join again")
        alone.again()
        regroup(rest, alone, round=3)


@pytest.mark.soak
@pytest.mark.parametrize("version", ["3.4", "3.5"])
def test_all_members_are_killed_and_started_again(
    processes: EtcdProcesses, run: str, tmp_path: Path, version: str
) -> None:
    with etcd_hosts(tmp_path, version) as place:
        nodes = place.form(processes, run, "3:4", server=0)
        place.kill()
        nodes[0].ask("outage", "outage", seconds=3.0)
        for node in nodes:
            assert node.waiting() == 0
        until(partial(has_logged, nodes[0], "the claim could not be renewed for "), "it says so")
        place.start()
        for node in nodes:
            node.ask("calm", "calm")
        until(partial(has_logged, nodes[0], "the claim is renewed, and nothing is in doubt"), "it says so")
        undisturbed(nodes)
        new = place.node(processes, run, 1, "3:4", "new")
        regroup(nodes, new, round=2)


@pytest.mark.parametrize("version", ["3.4", pytest.param("3.5", marks=pytest.mark.soak)])
@pytest.mark.parametrize("leads", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_a_member_is_killed(processes: EtcdProcesses, run: str, tmp_path: Path, version: str, leads: bool) -> None:
    """The serving node talks to it, and it may be the one that leads; a newcomer is admitted before it is back."""
    with etcd_hosts(tmp_path, version) as place:
        killed = place.pick(leads=leads)
        nodes = place.form(processes, run, "3:4", server=killed)
        place.kill(killed)
        until(partial(has_logged, nodes[killed], "the next member is asked"), "it says what it does about it")
        undisturbed(nodes)
        new = place.node(processes, run, (killed + 1) % 3, "3:4", "new")
        regroup(nodes, new, round=2)
        place.restart(killed)
        for node in (*nodes, new):
            node.ask("calm", "calm")
            assert node.standing()["state"] == "HOLDS", node.account()


@pytest.mark.soak
@pytest.mark.parametrize("version", ["3.4", "3.5"])
def test_a_member_is_stopped(processes: EtcdProcesses, run: str, tmp_path: Path, version: str) -> None:
    """For longer than the claim's lease lives, and the serving node talks to it first."""
    with etcd_hosts(tmp_path, version) as place:
        stopped = place.pick(leads=False)
        nodes = place.form(processes, run, "3:4", server=stopped)
        place.pause(stopped)
        nodes[0].ask("bide", "bided", seconds=5.0)
        undisturbed(nodes)
        place.go_on(stopped)
        until(lambda: place.is_healthy(stopped), "it is back")
        undisturbed(nodes)
        new = place.node(processes, run, stopped, "3:4", "new")
        regroup(nodes, new, round=2)


@pytest.mark.parametrize("version", ["3.4", pytest.param("3.5", marks=pytest.mark.soak)])
def test_a_member_whose_packets_are_dropped_is_the_first_in_the_list(
    processes: EtcdProcesses, run: str, tmp_path: Path, version: str
) -> None:
    """Nodes that have never talked to etcd form a world, and another one joins them."""
    with etcd_hosts(tmp_path, version) as place:
        hidden = place.pick(leads=False)
        here, there = (number for number in range(3) if number != hidden)
        place.hide(hidden)
        assert place.is_silent(hidden, to=here)
        assert place.is_silent(hidden, to=there)
        nodes = [
            place.node(processes, run, number, "2:4", first=hidden, last_call_timeout=0.0) for number in (here, there)
        ]
        by_rank(nodes, round=1, size=2)
        undisturbed(nodes)
        new = place.node(processes, run, here, "2:4", "new", first=hidden)
        regroup(nodes, new, round=2)
