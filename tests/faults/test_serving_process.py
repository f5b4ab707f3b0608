"""The process that serves dies (rule 14): its ranks are lost at once under the next server; nobody waits out the hold.

Nodes are heard for a minute here, so a hold lasts longer than any test waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.node_processes import Node, Processes, by_rank, free_port
from tests.support.waiting import PATIENCE_S, until

MINUTE: dict[str, Any] = {"heartbeat_interval": 1.0, "heartbeat_timeout": 60.0}
HOLD_S = 62.0
assert HOLD_S > PATIENCE_S


def _serves(node: Node) -> bool:
    return any("serving run 'run'" in event["line"] for event in node.heard("stderr"))


def _one_serves(nodes: Sequence[Node]) -> Node:
    """Wait until one of them does."""
    until(lambda: any(map(_serves, nodes)), "one of the processes serves")
    return next(filter(_serves, nodes))


@pytest.fixture
def endpoint() -> str:
    return f"127.0.0.1:{free_port()}"


def _world(endpoint: str, host: Node, *others: Node) -> None:
    host.join(endpoint, f"2:{len(others) + 1}", is_host=True, **MINUTE)
    _one_serves([host])
    for node in others:
        node.join(endpoint, f"2:{len(others) + 1}", is_host=None, **MINUTE)
    by_rank([host, *others], round=1)


def _regroup(nodes: Sequence[Node], **wanted: Any) -> None:
    for node in nodes:
        node.changed()
        node.again()
    by_rank(nodes, **wanted)


def test_the_survivors_regroup_at_once_also_when_the_next_server_is_killed_too(
    processes: Processes, endpoint: str
) -> None:
    host, *others = processes.nodes("host", "b", "c", "d")
    _world(endpoint, host, *others)
    host.kill()
    _regroup(others, round=2)
    second = _one_serves(others)
    second.kill()
    _regroup([node for node in others if node is not second], round=3)


def test_the_next_server_may_be_killed_before_a_world_has_formed(processes: Processes, endpoint: str) -> None:
    host, *others = processes.nodes("host", "b", "c", "d")
    _world(endpoint, host, *others)
    host.kill()
    second = _one_serves(others)
    for node in others:
        assert node.changed()["why"] == "only 3 of 4 ranks of round 1 still hold it"
    second.kill()
    left = [node for node in others if node is not second]
    for node in left:
        node.again()
    by_rank(left, round=2)


def test_every_node_of_the_process_that_served_is_gone_with_it(processes: Processes, endpoint: str) -> None:
    pair, b, c = processes.nodes("pair", "b", "c")
    pair.join(endpoint, "2:4", is_host=True, **MINUTE)
    _one_serves([pair])
    pair.join_second(endpoint, "2:4", is_host=None, **MINUTE)
    for node in (b, c):
        node.join(endpoint, "2:4", is_host=None, **MINUTE)
    pair.expect("second placed")
    for node in (pair, b, c):
        node.placed(round=1, size=4)
    pair.kill()
    for node in (b, c):
        assert node.changed()["why"] == "only 2 of 4 ranks of round 1 still hold it"
        node.again()
    by_rank([b, c], round=2)


def test_every_node_of_a_process_that_took_over_is_gone_with_it(processes: Processes, endpoint: str) -> None:
    host, pair, c, d = processes.nodes("host", "pair", "c", "d")
    host.join(endpoint, "2:5", is_host=True, **MINUTE)
    _one_serves([host])
    pair.join(endpoint, "2:5", is_host=None, **MINUTE)
    pair.join_second(endpoint, "2:5", is_host=None, **MINUTE)
    c.join(endpoint, "2:5", is_host=None, **MINUTE)
    d.join(endpoint, "2:5", is_host=False, **MINUTE)
    pair.expect("second placed")
    for node in (host, pair, c, d):
        node.placed(round=1, size=5)
    c.pause()  # else it might take over
    host.kill()
    _one_serves([pair])
    c.resume()
    for node in (pair, c, d):
        node.changed()
    pair.kill()
    for node in (c, d):
        node.again()
    by_rank([c, d], round=2)
