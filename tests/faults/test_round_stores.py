"""The store of a round ends with its round: a call then fails, and says why, instead of waiting."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.support.node_processes import NIMBLE, Node, Processes, Server, by_rank
from tests.support.waiting import until

LONG_S = 20.0
"""Far less than the 300 s that a store waits, and far more than a loss takes to be noticed."""


def meet(processes: Processes, nodes: str = "2:3", **options: Any) -> tuple[Server, Node, Node, Node]:
    """Three nodes by rank, and the server that they met at."""
    server = processes.server()
    actors = processes.nodes("a", "b", "c")
    for node in actors:
        node.join(server.endpoint, nodes, **{**NIMBLE, "last_call_timeout": 30.0, **options})
    a, b, c = by_rank(actors)
    return server, a, b, c


def told_that_it_is_over(node: Node, *words: str, round: int = 1) -> None:
    began = time.monotonic()
    text = node.failed("RoundOverError")
    assert time.monotonic() - began < LONG_S
    assert f"the store of round {round} of run 'run' is of no use any more, because the round is over: " in text
    for word in words:
        assert word in text, text


def test_the_first_use_after_the_loss_of_rank_0_says_who_was_lost(processes: Processes) -> None:
    _, a, b, c = meet(processes)
    a.kill()
    b.changed()
    b.order("get", key="x")
    told_that_it_is_over(b, "a", "lost", "; join again")
    # Not even the news is awaited.
    c.order("get", key="x")
    told_that_it_is_over(c, "a", "lost", "; join again")
    for node in (b, c):
        node.again()
    by_rank([b, c], round=2)
    b.ask("set", "stored", key="x", value="1")
    assert c.ask("get", "value", key="x")["value"] == "1"


@pytest.mark.parametrize(
    ("how", "arguments"),
    [
        ("get", {"key": "never"}),
        ("get_by_clone", {"key": "never"}),
        ("wait_for", {"key": "never"}),
        ("barrier", {"key": "gate", "size": 3}),
    ],
)
def test_a_wait_ends_when_rank_0_dies(processes: Processes, how: str, arguments: dict[str, Any]) -> None:
    _, a, b, c = meet(processes)
    c.ask("set", "stored", key="here", value="1")
    assert b.ask("get", "value", key="here")["value"] == "1"
    for node in (b, c):
        node.order(how, **arguments)
    if how == "barrier":
        until(lambda: a.ask("get", "value", key="gate/num_members")["value"] == "2", "both stand at the barrier")
    a.kill()
    for node in (b, c):
        told_that_it_is_over(node, "a", "lost", "; join again")


def test_a_first_connection_that_nobody_answers_ends_with_the_round(processes: Processes) -> None:
    server, a, b, _ = meet(processes)
    a.pause()  # its port takes connections, and nobody answers on them
    b.order("get", key="x")
    server.expect("lost")
    told_that_it_is_over(b, "a", "lost", "; join again")


def test_a_wait_for_another_member_ends_when_that_one_dies(processes: Processes) -> None:
    _, a, b, c = meet(processes)
    assert not a.ask("check", "checked", key="from b")["there"]
    for node in (a, c):
        node.order("get", key="from b")
    b.kill()
    for node in (a, c):
        told_that_it_is_over(node, "b", "lost", "; join again")


def test_the_store_of_a_round_that_one_has_left_says_so_and_serves_the_others(processes: Processes) -> None:
    _, a, b, c = meet(processes, nodes="3")
    for node in (a, b):
        node.ask("set", "stored", key=node.name, value="here")
    b.ask("finish", "left")
    b.order("get", key="a")
    told_that_it_is_over(b, "this node has left the run")
    # Rank 0 stays for those who still work.
    a.order("finish")
    assert c.ask("get", "value", key="b")["value"] == "here"
    assert c.ask("add", "sum", key="n", amount=2)["sum"] == 2
    c.ask("finish", "left")
    a.expect("left")
    for node in (a, c):
        node.order("check", key="a")
        told_that_it_is_over(node)


def test_the_store_of_the_last_round_says_that_it_is_over(processes: Processes) -> None:
    _, a, b, c = meet(processes)
    for node in (a, c):
        node.ask("keep_store", "kept")
    a.ask("set", "stored", key="x", value="1")
    b.ask("withdraw", "left")
    b.order("get", key="x")
    told_that_it_is_over(b, "this node has left the run")
    for node in (a, c):
        node.again()
    by_rank([a, c], round=2)
    for node in (a, c):  # `a` used it, `c` never did
        node.order("get_from_kept", key="x")
    told_that_it_is_over(a)
    told_that_it_is_over(c, "this node is in round 2 by now")
    a.ask("set", "stored", key="x", value="2")
    assert c.ask("get", "value", key="x")["value"] == "2"


def test_a_store_whose_server_lives_speaks_for_itself(processes: Processes) -> None:
    _, _, b, _ = meet(processes)
    b.ask("set", "stored", key="text", value="no number")
    began = time.monotonic()
    b.order("add", key="text", amount=1)
    assert "not a number of 64 bits" in b.failed("StoreConnectionError")
    assert time.monotonic() - began < LONG_S


def test_a_closed_run_ends_the_waits_on_its_store(processes: Processes) -> None:
    _, a, b, c = meet(processes)
    assert not b.ask("check", "checked", key="never")["there"]
    for node in (b, c):
        node.order("get", key="never")
    a.ask("close", "closed")
    for node in (b, c):
        told_that_it_is_over(node, "run 'run' is closed as failed")
