"""A request to close and a reason for leaving are not lost with a server (rule 17c): a node repeats them until one answers."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.faults.relay import Relay
from tests.support.node_processes import NIMBLE, Node, Processes, Server, by_rank
from tests.support.waiting import until

MINUTE: dict[str, Any] = {"heartbeat_interval": 1.0, "heartbeat_timeout": 60.0}
LONG_HOLD_S = 60.0
"""Longer than any test waits."""
LEAVE = b'"type":"leave"'


def _world(server: Server, leaver: Node, relay: Relay, *others: Node) -> None:
    for node in others:
        node.join(server.endpoint, f"2:{len(others) + 1}", **MINUTE)
    leaver.join(relay.endpoint, f"2:{len(others) + 1}", **MINUTE)
    by_rank([*others, leaver], round=1)


def test_a_leave_said_while_the_server_is_away_reaches_the_restarted_one(processes: Processes) -> None:
    server = processes.server()
    a, b, leaver = processes.nodes("a", "b", "leaver")
    with Relay(server.port) as relay:
        _world(server, leaver, relay, a, b)
        relay.swallow_until(LEAVE)
        server.kill()
        server = processes.server(port=server.port, hold_s=LONG_HOLD_S)
        for node in (a, b):
            node.ask("reach", "reached")
        leaver.order("withdraw")
        for node in (a, b):
            assert node.changed()["why"] == "leaver withdrew: RuntimeError('told to')"
        leaver.expect("left")
        assert server.expect("left")["reason"] == "withdrew"
        assert server.heard("lost") == []
        for node in (a, b):
            node.again()
        by_rank([a, b], round=2)


def test_a_leave_may_be_the_first_that_a_restarted_server_hears_of_a_run(processes: Processes) -> None:
    server = processes.server()
    a, b, leaver = processes.nodes("a", "b", "leaver")
    with Relay(server.port) as relay:
        _world(server, leaver, relay, a, b)
        relay.swallow_until(LEAVE)
        for node in (a, b):
            node.pause()
        server.kill()
        server = processes.server(port=server.port, hold_s=LONG_HOLD_S)
        leaver.ask("withdraw", "left")
        assert server.expect("left")["reason"] == "withdrew"
        for node in (a, b):
            node.resume()
        # Its rank is accounted for, so nobody waits out the hold.
        for node in (a, b):
            assert node.changed()["why"].startswith("only 2 of 3 ranks of round 1 still hold it: leaver withdrew")
            node.again()
        by_rank([a, b], round=2)
        assert server.heard("lost") == []


def test_a_node_that_leaves_does_not_sit_out_its_pause_between_two_attempts_to_connect(processes: Processes) -> None:
    server = processes.server()
    a, b, leaver = processes.nodes("a", "b", "leaver")
    with Relay(server.port) as relay:
        _world(server, leaver, relay, a, b)
        relay.refuses = True
        server.kill()
        server = processes.server(port=server.port, hold_s=LONG_HOLD_S)
        for node in (a, b):
            node.ask("reach", "reached")
        # By now its pauses are as long as they get: longer than one that leaves waits.
        until(lambda: relay.refused >= 9, "the leaver tries again and again")
        relay.refuses = False
        leaver.order("withdraw")
        for node in (a, b):
            assert node.changed()["why"] == "leaver withdrew: RuntimeError('told to')"


def test_a_close_that_nobody_confirms_is_an_error_in_time_and_is_asked_for_until_it_is_heard(
    processes: Processes,
) -> None:
    server = processes.server()
    a, b = processes.nodes("a", "b")
    for node in (a, b):
        node.join(server.endpoint, 2, close_timeout=2.0, **MINUTE)
    by_rank([a, b])
    server.pause()
    a.order("close")
    assert a.failed("RendezvousConnectionError") == (
        f"run 'run' was asked to close, but the server at {server.endpoint} did not confirm it within 2 s; this node "
        f"goes on asking until it leaves"
    )
    assert b.heard("changed") == []
    server.resume()
    for node in (a, b):
        assert node.changed()["closed"]


def test_a_close_while_the_server_is_known_to_be_away_is_an_error_in_time(processes: Processes) -> None:
    server = processes.server()
    a, b = processes.nodes("a", "b")
    for node in (a, b):
        node.join(server.endpoint, 2, close_timeout=2.0, **NIMBLE)
    by_rank([a, b])
    server.pause()
    a.ask("outage", "outage", seconds=0.1)
    a.order("close")
    assert re.fullmatch(
        rf"run 'run' could not be closed: the server at {re.escape(server.endpoint)} cannot be reached: .+",
        a.failed("RendezvousConnectionError"),
    )


@pytest.mark.parametrize("dies", [False, True], ids=["it lives on", "it is killed"])
def test_a_close_is_asked_for_again_when_the_server_was_away_for_longer_than_the_caller_waited(
    processes: Processes, dies: bool
) -> None:
    server = processes.server()
    a, b = processes.nodes("a", "b")
    for node in (a, b):
        node.join(server.endpoint, 2, close_timeout=0.5, **NIMBLE)
    by_rank([a, b])
    server.pause()
    a.order("close")
    a.failed("RendezvousConnectionError")
    if dies:
        server.kill()
        processes.server(port=server.port, hold_s=LONG_HOLD_S)
    else:
        server.resume()
    for node in (a, b):
        assert node.changed()["closed"]
