"""What a loss means to those who stay (rules 5, 6, 7, 9): they are told by push, regroup, and agree."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.node_processes import NIMBLE, Processes, by_rank
from tests.support.waiting import until


def test_survivors_of_a_killed_node_are_told_and_keep_their_ranks(processes: Processes) -> None:
    server = processes.server()
    nodes = processes.nodes("a", "b", "c", "d")
    for node in nodes:
        node.join(server.endpoint, "2:4")
    a, b, c, d = by_rank(nodes)
    b.kill()
    for node in (a, c, d):
        assert node.changed()["why"].startswith("b was lost: its connection ended and did not come back within 0.15 s")
        assert node.waiting() == 1
        node.again()
    # 0 and 2 stay what they were; 3 does not exist in a world of three, and fills the gap.
    assert [node.name for node in by_rank([a, c, d], round=2)] == ["a", "d", "c"]


def test_all_survivors_of_rank_0_agree_on_a_new_store_that_answers(processes: Processes) -> None:
    server = processes.server()
    nodes = processes.nodes("a", "b", "c")
    for node in nodes:
        node.join(server.endpoint, "2:3")
    a, b, c = by_rank(nodes)
    old = a.heard("placed")[0]["store"]
    a.kill()
    for node in (b, c):
        node.changed()
        node.again()
    by_rank([b, c], round=2)
    stores = {node.heard("placed")[-1]["store"] for node in (b, c)}
    assert len(stores) == 1
    assert stores != {old}
    b.ask("set", "stored", key="who", value="b")
    assert c.ask("get", "value", key="who")["value"] == "b"


def test_a_spare_takes_the_place_of_a_killed_node(processes: Processes) -> None:
    server = processes.server()
    a, b, spare, other = processes.nodes("a", "b", "spare", "other")
    for node in (a, b):
        node.join(server.endpoint, 2)
    by_rank([a, b])
    spare.join(server.endpoint, 2, role="spare", join_timeout=1.0)
    server.expect("happened", why="spare joined as a spare")
    other.join(server.endpoint, 2, role="spare", join_timeout=1.0)
    server.expect("happened", why="other joined as a spare")
    b.kill()
    a.changed()
    a.again()
    assert [node.name for node in by_rank([a, spare], round=2)] == ["a", "spare"]
    for node in (a, spare):
        node.order("finish")
    for node in (a, spare):
        assert node.expect("left")["done"]
    other.failed("RendezvousGracefulExitError")


def test_too_few_survivors_wait_for_a_replacement(processes: Processes) -> None:
    server = processes.server()
    a, b, new = processes.nodes("a", "b", "new")
    for node in (a, b):
        node.join(server.endpoint, 2)
    by_rank([a, b])
    b.kill()
    a.changed()
    a.again()
    server.expect("happened", why="a is back")
    new.join(server.endpoint, 2)
    assert [node.name for node in by_rank([a, new], round=2)] == ["a", "new"]


def test_a_paused_node_learns_that_it_is_out_and_joins_as_a_newcomer(processes: Processes) -> None:
    server = processes.server()
    nodes = processes.nodes("a", "b", "c")
    for node in nodes:
        node.join(server.endpoint, "2:3", **NIMBLE)
    a, b, c = by_rank(nodes)
    b.pause()
    assert server.expect("lost")["why"] == "nothing was heard of it for 1.0 s"
    for node in (a, c):
        node.changed()
        node.again()
    by_rank([a, c], round=2)
    b.resume()
    b.changed()
    until(lambda: b.ask("reach", "reached")["state"] == "out of its world", "b hears that it is out")
    assert b.waiting() == 1
    b.again()
    for node in (a, c):
        node.changed()
        node.again()
    ranked = by_rank([a, b, c], round=3)
    assert (ranked[0].name, ranked[1].name) == ("a", "c")
    b.ask("set", "stored", key="back", value="yes")
    assert a.ask("get", "value", key="back")["value"] == "yes"


def test_a_paused_rank_0_comes_back_to_another_store(processes: Processes) -> None:
    server = processes.server()
    nodes = processes.nodes("a", "b", "c")
    for node in nodes:
        node.join(server.endpoint, "2:3", **NIMBLE)
    a, b, c = by_rank(nodes)
    a.pause()
    server.expect("lost")
    for node in (b, c):
        node.changed()
        node.again()
    by_rank([b, c], round=2)
    b.ask("set", "stored", key="round", value="2")
    a.resume()
    a.changed()
    # Its own store is still there, has nothing of the newer world, and says that its round is over.
    a.order("check", key="round")
    assert "the store of round 1" in a.failed("RoundOverError")


@pytest.mark.parametrize("step", ["before connect", "after connect", "after hello", "after join", "after placed"])
def test_a_node_killed_while_joining_holds_nobody_up(processes: Processes, step: str) -> None:
    server = processes.server()
    victim, a, b = processes.nodes("victim", "a", "b")
    options: dict[str, Any] = {"last_call_timeout": 1.0}
    if step == "after placed":
        for node in (a, b):
            node.join(server.endpoint, "2:3", **options)
        server.expect("happened", live=2)
    victim.ask("step", "there", endpoint=server.endpoint, run="run", until=step)
    if step == "after placed":
        for node in (a, b):
            node.placed(round=1, size=3)
    if step == "after join":
        server.expect("happened", live=1)
    victim.kill()
    if step == "after placed":
        for node in (a, b):
            node.changed()
            node.again()
        by_rank([a, b], round=2)
        return
    if step == "after join":
        server.expect("lost")
    for node in (a, b):
        node.join(server.endpoint, "2:3", **options)
    by_rank([a, b], round=1)


def test_a_node_killed_in_the_last_call_is_not_in_the_world(processes: Processes) -> None:
    server = processes.server()
    a, b, c = processes.nodes("a", "b", "c")
    for node in (a, b, c):
        node.join(server.endpoint, "2:4", last_call_timeout=5.0)
        server.expect("happened")
    c.kill()
    server.expect("lost")
    assert [node.name for node in by_rank([a, b], round=1)] == ["a", "b"]
