"""The node that serves the run is a node like the others: it may be lost, stopped, leave or finish (rules 14, 17)."""

from __future__ import annotations

import time
from typing import Any

from tests.conformance.backend_kinds import (
    A_NODE_SERVES,
    MAY_END_FIRST,
    REPLACES_STOPPED,
    STALE_FILE,
    STALE_FILE_S,
    TAKEN,
    TIMEOUT_S,
)
from tests.conformance.backend_selection import where_asked, where_not_asked
from tests.conformance.node_processes import AT_ONCE_S, BackendDriver, PooledNode, ranked, serving_first
from tests.support.waiting import PATIENCE_S

QUIET_S = TIMEOUT_S + 0.5
"""A node that would be missed is missed by then."""


def _served_world(driver: BackendDriver, nodes: str | int, **given: Any) -> list[PooledNode]:
    """Three nodes in a world; the first one serves it."""
    by_serving = serving_first(driver.world("a", "b", "c", nodes=nodes, **given))
    assert [node.serves() for node in by_serving] == [True, False, False]
    return by_serving


def _keep_their_world(*nodes: PooledNode) -> None:
    for node in nodes:
        node.order("bide", seconds=QUIET_S)
    for node in nodes:
        assert node.expect("bided")["count"] == 0


@where_asked(A_NODE_SERVES)
def test_the_serving_node_is_killed_and_the_others_regroup_at_once(driver: BackendDriver) -> None:
    silence = driver.long_silence()
    server, one, other = _served_world(driver, "2:3", last_call_timeout=2 * AT_ONCE_S, **silence)
    began = time.monotonic()
    server.kill()
    for node in (one, other):
        assert node.changed()["count"] >= 1
        node.join()
    ranked([one, other])
    assert time.monotonic() - began < AT_ONCE_S
    assert sum(node.serves() for node in (one, other)) == 1


@where_asked(A_NODE_SERVES)
def test_the_serving_node_is_stopped_and_learns_that_it_is_out(driver: BackendDriver) -> None:
    server, one, other = _served_world(driver, "2:3")
    limit = driver.limit(REPLACES_STOPPED)
    server.pause()
    if limit == TAKEN:
        _keep_their_world(one, other)
        server.resume()
        _keep_their_world(server, one, other)
        return
    for node in (one, other):
        node.expect("changed", STALE_FILE_S if limit == STALE_FILE else PATIENCE_S)
        node.join()
    ranked([one, other])
    server.resume()
    server.changed()
    server.join()
    for node in (one, other):
        node.changed()
        node.join()
    ranked([server, one, other])


@where_asked(A_NODE_SERVES)
def test_the_serving_node_withdraws_and_its_leave_is_all_that_is_noticed(driver: BackendDriver) -> None:
    server, one, other = _served_world(driver, "2:3", close_timeout=1)
    server.order("withdraw")
    for node in (one, other):
        node.changed()
        node.join()
    ranked([one, other])
    server.expect("left")
    _keep_their_world(one, other)
    assert sum(node.serves() for node in (one, other)) == 1


@where_asked(A_NODE_SERVES)
def test_the_serving_node_finishes_first_and_no_world_breaks(driver: BackendDriver) -> None:
    server, one, other = _served_world(driver, 3, close_timeout=1)
    (spare,) = driver.nodes("spare", nodes=3)
    spare.join()
    stays = driver.limit(MAY_END_FIRST)
    # It stays for the others, but not for long where it need not; then its process ends.
    server.order("finish")
    if not stays:
        server.expect("left")
        server.kill()
    _keep_their_world(one, other)
    assert not stays or not server.heard("left"), stays
    assert not one.is_closed()
    for node in (one, other):
        node.order("finish")
    for node in (one, other):
        assert node.expect("left")["done"]
    # The run has ended well.
    spare.failed("RendezvousGracefulExitError")
    if stays:
        server.expect("left")


@where_not_asked(A_NODE_SERVES)
def test_where_no_node_serves_none_says_so(driver: BackendDriver) -> None:
    assert not any(node.serves() for node in driver.world("a", "b", nodes=2))
