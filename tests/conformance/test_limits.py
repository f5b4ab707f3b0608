"""What a backend cannot do is declared in `backend_kinds.py`, and is so; what is not declared, it can."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.backend_kinds import (
    CANNOT,
    FREE_AFTER_CLOSE,
    FREE_AT_ONCE,
    KEEPS_RANKS,
    KINDS,
    MAY_LEAVE,
    NOT_ASKED,
    ONE_SIZE,
    OUTLIVES_SERVER,
    STALE_FILE,
    STALE_FILE_S,
    STANDS_BY,
    TCP_STORES,
    TIMEOUT_S,
    TOLD_AT_ONCE,
    UNTOLD,
    WITHOUT_LAST_CALL,
)
from tests.conformance.backend_selection import params
from tests.conformance.node_processes import (
    AT_ONCE_S,
    BackendDriver,
    NodePool,
    PooledNode,
    ranked,
    serving_first,
    until_closed,
)
from tests.support.waiting import PATIENCE_S


def _finish(*nodes: PooledNode) -> None:
    for node in nodes:
        node.order("finish")
    for node in nodes:
        assert node.expect("left")["done"]


def _silence(driver: BackendDriver, limit: str) -> dict[str, Any]:
    """Options with so long a silence that on a busy machine too its end is not taken for `at once`, nor late beats for it."""
    if not limit:
        return driver.long_silence()
    patient = {"lease_ttl": 5, "keep_alive": 5, "heartbeat_timeout": 2 * TIMEOUT_S}
    own = driver.kind.options
    return {name: max(value, own[name]) for name, value in patient.items() if name in own}


def _is_as_declared(took_s: float, limit: str) -> bool:
    """After a silence, or at once."""
    return took_s >= TIMEOUT_S * 0.7 if limit else took_s <= AT_ONCE_S


def test_whether_a_killed_node_is_told_of_at_once(driver: BackendDriver) -> None:
    limit = driver.limit(TOLD_AT_ONCE)
    a, b = driver.world("a", "b", nodes="1:2", **({} if limit == UNTOLD else _silence(driver, limit)))
    began = time.monotonic()
    b.kill()
    if limit == UNTOLD:
        # Its key has expired by then, and nobody says a word until somebody waits.
        assert a.ask("bide", "bided", seconds=driver.kind.options["keep_alive"] + 1.5)["count"] == 0
        (late,) = driver.nodes("late", nodes="1:2")
        late.join()
        a.changed()
        a.join()
        ranked([a, late])
        late.kill()
    else:
        a.changed()
        assert _is_as_declared(time.monotonic() - began, limit)
    # And whether survivors meet again without a last call.
    began = time.monotonic()
    driver.meet(a)
    took_s, last_call_s = time.monotonic() - began, driver.kind.options["last_call_timeout"]
    assert took_s >= last_call_s if driver.limit(WITHOUT_LAST_CALL) else took_s < last_call_s


def test_whether_who_stays_keeps_its_rank(driver: BackendDriver) -> None:
    a, b = driver.world("a", "b", nodes=2)
    b.join()
    a.changed()
    if driver.limit(KEEPS_RANKS):
        driver.medium.until_joined(driver.run, 1)
    a.join()
    assert ranked([a, b]) == ([b, a] if driver.limit(KEEPS_RANKS) else [a, b])


def test_whether_a_node_may_withdraw_and_the_run_goes_on(driver: BackendDriver) -> None:
    a, b, c = driver.world("a", "b", "c", nodes="2:3", close_timeout=1)
    c.order("withdraw")
    if driver.limit(MAY_LEAVE):
        until_closed(a)
        b.join()
        b.failed("RendezvousClosedError")
        return
    for node in (a, b):
        node.changed()
        node.join()
    ranked([a, b])
    c.expect("left")


def test_whether_an_early_finisher_does_not_break_the_world(driver: BackendDriver) -> None:
    # The node that serves has a test of its own.
    a, b, c = serving_first(driver.world("a", "b", "c", nodes=3, close_timeout=1))
    assert c.ask("finish", "left")["done"]
    c.kill()
    if driver.limit(MAY_LEAVE):
        until_closed(a)
    else:
        assert a.ask("bide", "bided", seconds=TIMEOUT_S + 0.5)["count"] == 0
        assert not a.is_closed()
    _finish(a, b)


def test_whether_a_surplus_node_stands_by_and_ends_well_with_the_run(driver: BackendDriver) -> None:
    a, b = driver.world("a", "b", nodes=2)
    (spare,) = driver.nodes("spare", nodes=2, join_timeout=0.5)
    spare.join()
    if driver.limit(STANDS_BY):
        assert [node.changed()["count"] for node in (a, b)] == [1, 1]
        assert "version 1 runs with 2 nodes, and 1 node more waits for the next" in spare.failed(
            "RendezvousTimeoutError"
        )
        return
    # It outlives its own join time-out, and nobody is disturbed.
    assert a.ask("bide", "bided", seconds=1.0)["count"] == 0
    for node in (a, b):
        node.order("finish")
    spare.failed("RendezvousGracefulExitError")
    _finish(spare)
    for node in (a, b):
        assert node.expect("left")["done"]


def test_whether_a_node_that_asks_for_another_size_is_refused_with_both_shown(driver: BackendDriver) -> None:
    (a,) = driver.nodes("a", nodes=2)
    a.join()
    (odd,) = driver.nodes("odd", nodes="2:4")
    assert a.ask("bide", "bided", seconds=0.3)["count"] == 0
    odd.join()
    if driver.limit(ONE_SIZE):
        ranked([a, odd])
        return
    text = odd.failed("RendezvousError")
    assert f"odd asks for 2:4 nodes, but run {driver.run!r} was founded for 2 nodes" in text


def test_whether_a_run_id_is_free_again_when_the_run_has_ended(driver: BackendDriver) -> None:
    a, b = driver.world("a", "b", nodes=2)
    a.ask("set", "stored", key="seen", value="yes")
    _finish(a, b)
    c, d = driver.nodes("c", "d", nodes=2)
    if driver.limit(FREE_AFTER_CLOSE):
        assert driver.medium.forgets_after_s(driver.run) > 7000
        c.join()
        c.failed("RendezvousClosedError")
        return
    driver.meet(c, d)
    assert not c.ask("check", "checked", key="seen")["there"]
    _finish(c, d)


def test_whether_a_run_id_is_free_again_when_the_run_was_closed_and_left(driver: BackendDriver) -> None:
    a, b = driver.world("a", "b", nodes=2)
    a.ask("close", "closing")
    until_closed(b)
    _finish(a, b)
    c, d = driver.nodes("c", "d", nodes=2)
    if driver.limit(FREE_AFTER_CLOSE):
        c.join()
        c.failed("RendezvousClosedError")
        return
    # At once: what is left of a closed run is remembered for a minute.
    began = time.monotonic()
    driver.meet(c, d)
    assert time.monotonic() - began < AT_ONCE_S


def test_whether_a_run_id_is_free_at_once_when_all_nodes_were_killed(driver: BackendDriver) -> None:
    limit = driver.limit(FREE_AT_ONCE)
    silence = _silence(driver, limit)
    old = driver.world("a", "b", nodes=2, **silence)
    patience_s = STALE_FILE_S if limit == STALE_FILE else PATIENCE_S
    fresh = driver.nodes("c", "d", nodes=2, **{**silence, "join_timeout": patience_s})
    for node in old:
        node.kill()
    began = time.monotonic()
    driver.meet(*fresh, within_s=patience_s)
    assert _is_as_declared(time.monotonic() - began, limit)


@pytest.mark.parametrize("name", params(KINDS))
def test_whether_a_run_goes_on_when_its_server_was_restarted(name: str, node_pool: NodePool, tmp_path: Path) -> None:
    kind = KINDS[name]
    medium = kind.start(tmp_path)
    if name in NOT_ASKED[OUTLIVES_SERVER]:
        assert medium.process is None
        return
    driver = BackendDriver(name, kind, medium, node_pool)
    try:
        a, b = driver.world("a", "b", nodes="1:2", outage_grace=PATIENCE_S)
        medium.restart()
        # Nobody loses its world, and when a node is lost the other one finds a world with a store that works.
        assert a.ask("bide", "bided", seconds=2.0)["count"] == 0
        b.kill()
        driver.call_again(a)
        ranked([a])
        a.ask("set", "stored", key="there", value="yes")
        assert a.ask("get", "value", key="there")["value"] == "yes"
    finally:
        driver.end()
        medium.end()


@pytest.mark.parametrize("name", TCP_STORES)
def test_a_store_whose_server_is_gone_for_good_is_told_of(name: str, node_pool: NodePool, tmp_path: Path) -> None:
    medium = KINDS[name].start(tmp_path)
    assert medium.process is not None
    driver = BackendDriver(name, KINDS[name], medium, node_pool)
    try:
        a, b = driver.world("a", "b", nodes="1:2", outage_grace=2, join_timeout=2)
        medium.process.kill()
        assert a.ask("bide", "bided", seconds=0.5)["count"] == 0
        # After the grace the members stop trusting their world; and there is none to be had any more.
        a.changed()
        a.join()
        text = a.failed("RendezvousTimeoutError")
        assert re.search(
            r" was not joined within [\d.]+ s: the server at 127\.0\.0\.1:\d+ answers, but cannot renew its claim, and "
            r"seals nothing until it can \(the store of the run cannot be used: .+\)$",
            text,
        ), text
        # What they held on to is gone for good: nobody has a use for them.
        a.kill()
        b.kill()
    finally:
        driver.end()
        medium.end()


def test_every_backend_of_the_table_is_in_the_suite() -> None:
    for limits in (*CANNOT.values(), *NOT_ASKED.values()):
        assert set(limits) <= set(KINDS)
