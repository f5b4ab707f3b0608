"""What a rendezvous does, on every backend (rules 1 to 14); `backend_kinds.py` says what a backend really cannot do."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from tests.conformance.backend_kinds import (
    CONNECTED_FIRST,
    END,
    KEEPS_RANKS,
    MAY_LEAVE,
    MEDIUM_AWAY,
    NOT_COUNTED,
    SAYS_HOW,
    SHARE_ENDPOINT,
    START,
    TIMEOUT_S,
    table,
)
from tests.conformance.backend_selection import where_asked
from tests.conformance.node_processes import BackendDriver, PooledNode, ranked, until_closed

PAGE = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"


def test_nodes_form_one_world_with_one_store(driver: BackendDriver) -> None:
    a, b, c = driver.world("a", "b", "c", nodes=3)
    a.ask("set", "stored", key="greeting", value="hello")
    for node in (b, c):
        assert node.ask("get", "value", key="greeting")["value"] == "hello"
    assert [node.waiting() for node in (a, b, c)] == [0, 0, 0]


@where_asked(CONNECTED_FIRST)
def test_a_node_is_connected_before_it_joins(driver: BackendDriver) -> None:
    """Nobody has joined, and a server is found or elected all the same: joining costs a request and its answer."""
    nodes = driver.nodes("a", "b", nodes=2)
    for node in nodes:
        assert node.ask("connected", "connected")["there"]
    driver.meet(*nodes)


def test_a_world_is_sealed_at_once_when_max_are_here(driver: BackendDriver) -> None:
    nodes = driver.nodes("a", "b", nodes="1:2", last_call_timeout=30)
    began = time.monotonic()
    driver.meet(*nodes)
    assert time.monotonic() - began < 15


def test_a_last_call_ends_with_fewer_than_max(driver: BackendDriver) -> None:
    nodes = driver.nodes("a", "b", nodes="2:4", last_call_timeout=1)
    began = time.monotonic()
    driver.meet(*nodes)
    assert time.monotonic() - began >= 0.9


def test_a_late_node_is_announced_and_let_in(driver: BackendDriver) -> None:
    a, b = driver.world("a", "b", nodes="2:3", last_call_timeout=0.5)
    (late,) = driver.nodes("late", nodes="2:3")
    late.join()
    assert [node.changed()["count"] for node in (a, b)] == [1, 1]
    for node in (a, b):
        node.join()
    driver.regrouped(a, b, late)


def test_a_spare_takes_the_place_of_a_lost_member(driver: BackendDriver) -> None:
    a, b = driver.world("a", "b", nodes=2)
    (spare,) = driver.nodes("spare", nodes=2)
    spare.join()
    b.kill()
    a.changed()
    a.join()
    driver.regrouped(a, spare)


def test_a_loss_is_told_and_the_survivors_regroup(driver: BackendDriver) -> None:
    a, b, c = driver.world("a", "b", "c", nodes="2:3")
    b.kill()
    driver.call_again(a, c)
    driver.regrouped(a, c)
    assert not a.is_closed()


def test_too_few_survivors_wait_for_a_replacement(driver: BackendDriver) -> None:
    a, b = driver.world("a", "b", nodes=2)
    b.kill()
    driver.call_again(a)
    (fresh,) = driver.nodes("fresh", nodes=2)
    fresh.join()
    driver.regrouped(a, fresh)


def test_a_member_that_joins_again_calls_all_of_them(driver: BackendDriver) -> None:
    a, b = driver.world("a", "b", nodes=2)
    b.ask("set", "stored", key="seen", value="in round 1")
    b.join()
    a.changed()
    a.join()
    ranked([a, b])
    assert not a.ask("check", "checked", key="seen")["there"]


def test_a_run_that_all_have_finished_is_closed(driver: BackendDriver) -> None:
    a, b = driver.world("a", "b", nodes=2)
    assert not a.is_closed()
    for node in (a, b):
        node.order("finish")
    for node in (a, b):
        assert node.expect("left")["done"]
    assert a.is_closed()


def test_a_closed_run_is_closed_for_everybody(driver: BackendDriver) -> None:
    a, b = driver.world("a", "b", nodes=2)
    b.ask("close", "closing")
    assert b.is_closed()
    is_closed = f"run {driver.run!r} is closed{'' if driver.limit(SAYS_HOW) else ' as failed'}: "
    b.join()
    assert is_closed in b.failed("RendezvousClosedError")
    until_closed(a)
    assert a.waiting() == 0
    (fresh,) = driver.nodes("fresh", nodes=2)
    fresh.join()
    assert is_closed in fresh.failed("RendezvousClosedError")


def test_who_waits_is_told_that_the_run_was_closed(driver: BackendDriver) -> None:
    waiting, other = driver.nodes("waiting", "other", nodes=3)
    waiting.join()
    other.join()
    assert waiting.ask("bide", "bided", seconds=0.3)["count"] == 0
    other.order("close")
    for node in (waiting, other):
        node.failed("RendezvousClosedError")


def test_a_time_out_says_who_is_here_and_what_is_awaited(driver: BackendDriver) -> None:
    (a,) = driver.nodes("a", nodes=3)
    (b,) = driver.nodes("b", nodes=3, join_timeout=1.5)
    a.join()
    b.join()
    text = b.failed("RendezvousTimeoutError")
    assert f"run {driver.run!r}" in text
    # A server that a node has just started listens first for nodes of an earlier life (rule 14).
    assert "2 of at least 3 nodes are here" in text or "2 of 3 nodes are here" in text
    assert "1 more must come" in text or "the server has just started" in text


def test_a_join_that_timed_out_is_counted_no_more(driver: BackendDriver) -> None:
    """Its handler is still there, and was not shut down."""
    (a,) = driver.nodes("a", nodes=3)
    gone, other = driver.nodes("gone", "other", nodes=3, join_timeout=1.5)
    a.join()
    gone.join()
    gone.failed("RendezvousTimeoutError")
    other.join()
    text = other.failed("RendezvousTimeoutError")
    if driver.limit(NOT_COUNTED):
        assert re.search(r"of the 3 nodes of version 1 ha(s|ve) confirmed", text), text
        return
    assert re.search(r"2 of (at least )?3 nodes are here \((a, other|other, a)\)", text), text


def test_two_nodes_of_one_process_are_two_members(driver: BackendDriver) -> None:
    one, other = driver.nodes("one", "other", nodes="2:3")
    second_node = driver.second_node(one, "second_node", nodes="2:3")
    driver.meet(one, other, second_node)
    if driver.limit(MAY_LEAVE):
        return
    assert second_node.ask("withdraw", "left")["done"]
    for node in (one, other):
        node.changed()
    driver.meet(one, other)
    assert one.ask("bide", "bided", seconds=0.3)["count"] == 0
    # The first one of a process leaves as the last one does: for itself.
    again = driver.second_node(other, "again", nodes="2:3")
    again.join()
    for node in (one, other):
        node.changed()
        node.join()
    ranked([one, other, again])
    assert other.ask("withdraw", "left")["done"]
    for left in (one, again):
        left.changed()
        left.join()
    ranked([one, again])


def test_runs_of_one_medium_do_not_know_of_each_other(driver: BackendDriver) -> None:
    a, b = driver.world("a", "b", nodes=2, run="-ours")
    if driver.limit(SHARE_ENDPOINT):
        (stranger,) = driver.nodes("stranger", nodes=2, run="-theirs")
        stranger.join()
        assert f"is part of the job '{driver.run}-ours'" in stranger.failed("RendezvousConnectionError")
        return
    c, d = driver.world("c", "d", nodes=2, run="-theirs")
    c.ask("close", "closing")
    assert a.ask("bide", "bided", seconds=0.3)["count"] == 0
    assert not b.is_closed()
    assert d.is_closed()


def test_clocks_that_differ_change_nothing(driver: BackendDriver) -> None:
    (a,) = driver.nodes("a", nodes="2:3", last_call_timeout=1)
    (b,) = driver.nodes("b", nodes="2:3", last_call_timeout=1, skew_s=20)
    a, b = driver.meet(a, b)
    assert a.ask("bide", "bided", seconds=TIMEOUT_S + 0.5)["count"] == 0
    assert b.waiting() == 0


def test_a_paused_node_learns_that_it_is_out_and_comes_back(driver: BackendDriver) -> None:
    world = driver.world("a", "b", "c", nodes="2:3")
    # One that serves at a fixed address holds its port while it is stopped: that is another test.
    b = next(node for node in reversed(world) if not node.serves())
    a, c = (node for node in world if node is not b)
    b.pause()
    driver.call_again(a, c)
    driver.regrouped(a, c)
    b.resume()
    b.changed()
    b.join()
    for node in (a, c):
        node.changed()
        node.join()
    by_rank = ranked([a, c, b])
    assert driver.limit(KEEPS_RANKS) or by_rank[:2] == [a, c]


def test_a_short_pause_is_no_loss(driver: BackendDriver) -> None:
    a, b = driver.world("a", "b", nodes=2)
    b.pause()
    assert a.ask("bide", "bided", seconds=TIMEOUT_S / 3)["count"] == 0
    b.resume()
    assert a.ask("bide", "bided", seconds=TIMEOUT_S + 0.5)["count"] == 0
    assert b.waiting() == 0


def _comes_back(driver: BackendDriver, away_s: float) -> None:
    a, b, c = driver.world("a", "b", "c", nodes="2:3")
    with driver.away():
        assert a.ask("bide", "bided", seconds=away_s)["count"] == 0
    for node in (a, b, c):
        node.order("bide", seconds=TIMEOUT_S + 0.5)
    for node in (a, b, c):
        assert node.expect("bided")["count"] == 0
    # And the run goes on: a loss is noticed.
    c.kill()
    driver.call_again(a, b)
    ranked([a, b])


@where_asked(MEDIUM_AWAY)
def test_a_medium_that_is_away_and_comes_back_costs_nobody_its_place(driver: BackendDriver) -> None:
    _comes_back(driver, TIMEOUT_S + 1.0)


@pytest.mark.soak
@where_asked(MEDIUM_AWAY)
def test_a_medium_that_is_away_for_twenty_seconds_costs_nobody_its_place(driver: BackendDriver) -> None:
    _comes_back(driver, 20.0)


def _meet_without(driver: BackendDriver, *nodes: PooledNode) -> None:
    """They form a world; one that was sealed with a dead node, because nobody could know, breaks and is sealed anew."""
    for node in nodes:
        node.join()
    places = [node.placed() for node in nodes]
    if places[0]["size"] > len(nodes):
        for node in nodes:
            node.changed()
        driver.meet(*nodes)


def test_a_node_that_dies_before_it_joins_is_not_missed(driver: BackendDriver) -> None:
    victim, a, b = driver.nodes("victim", "a", "b", nodes="2:3", last_call_timeout=0.5)
    victim.kill()
    driver.meet(a, b)


def test_a_node_that_dies_while_it_waits_holds_nobody_up(driver: BackendDriver) -> None:
    victim, a, b = driver.nodes("victim", "a", "b", nodes="2:3", last_call_timeout=0.5)
    victim.join()
    assert victim.ask("bide", "bided", seconds=0.3)["count"] == 0
    victim.kill()
    _meet_without(driver, a, b)


def test_a_node_that_dies_in_the_last_call_is_not_in_the_world(driver: BackendDriver) -> None:
    victim, a, b = driver.nodes("victim", "a", "b", nodes="2:4", last_call_timeout=TIMEOUT_S + 1.5)
    for node in (victim, a, b):
        node.join()
    assert victim.ask("bide", "bided", seconds=0.3)["count"] == 0
    victim.kill()
    ranked([a, b])


def test_a_node_that_dies_while_all_regroup_holds_nobody_up(driver: BackendDriver) -> None:
    victim, a, b = driver.nodes("victim", "a", "b", nodes="2:3")
    driver.meet(victim, a, b)
    victim.join()
    for node in (a, b):
        node.changed()
    victim.kill()
    _meet_without(driver, a, b)


def test_a_run_stays_closed_when_who_closed_it_dies(driver: BackendDriver) -> None:
    victim, a = driver.nodes("victim", "a", nodes=2)
    driver.meet(victim, a)
    victim.ask("close", "closing")
    victim.kill()
    until_closed(a)
    a.join()
    a.failed("RendezvousClosedError")


def test_the_page_shows_what_a_backend_cannot_do(rewrite: bool) -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, start, rest = text.partition(START)
    inside, end, after = rest.partition(END)
    assert start, "the page has a place for the table"
    assert end, "and the place has an end"
    if rewrite:
        PAGE.write_text(f"{before}{table()}{after}", encoding="utf-8")
        return
    assert table() == f"{START}{inside}{END}", "run this test with --rewrite"
