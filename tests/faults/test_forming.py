"""How a run forms, grows, shrinks and ends when all goes well (rules 1, 4, 5, 7, 8, 12)."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from rallypoint import protocol
from rallypoint.client.admin_client import AdminClient
from rallypoint.elastic import RendezvousParameters
from rallypoint.elastic.member_handler import MemberHandler, create_rallypoint_handler
from rallypoint.messages.notices import Broken, KeepWaiting, Placed
from rallypoint.messages.types import Settings
from tests.support.node_processes import Processes, Server, by_rank, free_port
from tests.support.protocol_client import ProtocolClient
from tests.support.waiting import until

CALM = Settings(heartbeat_interval_s=600.0, heartbeat_timeout_s=3600.0)


def test_nodes_form_one_world(processes: Processes) -> None:
    server = processes.server()
    nodes = processes.nodes("a", "b", "c")
    for node in nodes:
        node.join(server.endpoint, 3)
    assert [node.name for node in by_rank(nodes)] == ["a", "b", "c"]


def test_a_join_costs_one_request_and_one_place(processes: Processes) -> None:
    """The handlers are connected before they join.  Beside its place, a node that has to wait is told once what for."""
    count, server = 8, processes.server()
    calm: dict[str, Any] = {"heartbeat_interval": 600, "heartbeat_timeout": 3600, "is_host": False}

    def handler(run: str, nodes: int) -> MemberHandler:
        params = RendezvousParameters("rallypoint", server.endpoint, run, nodes, nodes, **calm)
        made = create_rallypoint_handler(params)
        until(lambda: made._member.link.is_connected, "it is connected")
        return made

    with AdminClient("127.0.0.1", server.port) as admin, ThreadPoolExecutor(count) as threads:

        def messages() -> tuple[int, int]:
            """How many the server has received and sent; asking adds one to each."""
            counted = admin.status("beside").messages
            return counted["received"], counted["sent"]

        beside = handler("beside", 1)  # a run to ask about
        beside.next_rendezvous()
        handlers = [handler("run", count) for _ in range(count)]
        received, sent = messages()
        places = list(threads.map(lambda each: each.next_rendezvous(), handlers))
        received_then, sent_then = messages()
        assert sorted(place.rank for place in places) == list(range(count))
        told = count - 1  # all but the last one had to wait
        assert (received_then - received - 1, sent_then - sent - 1) == (count, count + told)
        list(threads.map(lambda each: each.shutdown(), [beside, *handlers]))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_the_first_process_at_an_endpoint_of_this_machine_serves_it(processes: Processes, host: str) -> None:
    endpoint = f"{host}:{free_port()}"
    nodes = processes.nodes("a", "b", "c")
    for node in nodes:
        node.join(endpoint, 3, is_host=None)
    first, *others = by_rank(nodes)
    first.ask("set", "stored", key="greeting", value="hello")
    for node in others:
        assert node.ask("get", "value", key="greeting")["value"] == "hello"
    for node in nodes:
        node.order("finish")
    for node in nodes:
        assert node.expect("left")["done"]


def test_the_hold_and_the_last_call_run_together(processes: Processes) -> None:
    hold_s = last_call_s = 5.0
    alone = processes.node("alone")
    began = time.monotonic()
    server = processes.server(hold_s=hold_s)
    alone.join(server.endpoint, "1:2", last_call_timeout=last_call_s)
    server.expect("happened", live=1)
    with ProtocolClient("127.0.0.1", server.port) as admin:
        admin.hello()
        status = admin.ask(protocol.Status, lambda number: protocol.AskStatus(number, "run"))
    assert status.run is not None
    assert re.fullmatch(
        r"1 of 1:2 nodes is here \(alone\); the server has just started and listens for nodes of an earlier life, "
        r"at most \d\.\d s more",
        status.run.situation,
    )
    assert alone.placed(round=1)["size"] == 1
    assert last_call_s <= time.monotonic() - began < hold_s + last_call_s


def test_the_hold_of_a_server_is_that_of_the_run(processes: Processes) -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    alone = processes.node("alone")
    # One time-out, and the largest pause between two attempts to connect, which is half of it here.
    alone.join(endpoint, "1:2", is_host=None, heartbeat_timeout=2.0, last_call_timeout=0.0, join_timeout=1.0)
    assert re.search(
        r"1 of 1:2 nodes is here \(alone\); .*, at most [12]\.\d s more$", alone.failed("RendezvousTimeoutError")
    )


def test_a_late_node_is_admitted_when_the_members_regroup(processes: Processes) -> None:
    server = processes.server()
    a, b, late = processes.nodes("a", "b", "late")
    for node in (a, b):
        node.join(server.endpoint, "2:3")
    by_rank([a, b], round=1)
    assert a.waiting() == 0
    late.join(server.endpoint, "2:3")
    for node in (a, b):
        node.changed()
        assert node.waiting() == 1
        node.again()
    assert [node.name for node in by_rank([a, b, late], round=2)] == ["a", "b", "late"]


def test_a_surplus_node_stands_by_and_ends_well_with_the_run(processes: Processes) -> None:
    server = processes.server()
    a, b, surplus = processes.nodes("a", "b", "surplus")
    for node in (a, b):
        node.join(server.endpoint, 2)
    by_rank([a, b])
    # It outlives its own join time-out: no deadline runs while it stands by.
    surplus.join(server.endpoint, 2, join_timeout=0.5)
    server.expect("happened", why="surplus joined")
    assert (a.waiting(), b.waiting()) == (0, 0)
    for node in (a, b):
        node.order("finish")
    for node in (a, b):
        assert node.expect("left")["done"]
    assert surplus.failed("RendezvousGracefulExitError") == "run 'run' ended well, and this spare was not needed"


def test_an_early_finisher_does_not_break_the_world(processes: Processes) -> None:
    server = processes.server()
    nodes = processes.nodes("a", "b", "c")
    for node in nodes:
        node.join(server.endpoint, 3)
    a, b, c = by_rank(nodes)
    assert c.ask("finish", "left")["done"]
    server.expect("finished")
    assert (a.waiting(), b.waiting()) == (0, 0)
    b.order("finish")
    assert b.expect("left")["done"]
    # Rank 0 serves the store, and stays until all have gone.
    a.order("finish")
    assert a.expect("left")["done"]
    closed = server.expect("closed")
    assert closed["ending"] == "succeeded"
    assert not any("lost" in event["why"] or not event["closed"] for event in a.heard("changed") + b.heard("changed"))


def test_a_process_that_ends_right_after_finishing_has_finished(processes: Processes) -> None:
    server = processes.server()
    a, b = processes.nodes("a", "b")
    for node in (a, b):
        node.join(server.endpoint, 2)
    by_rank([a, b])
    b.ask("finish", "left")
    b.kill()
    assert a.ask("finish", "left")["done"]
    assert server.expect("closed")["ending"] == "succeeded"


def test_a_node_that_withdraws_breaks_the_world_and_says_why(processes: Processes) -> None:
    server = processes.server()
    nodes = processes.nodes("a", "b", "c")
    for node in nodes:
        node.join(server.endpoint, "2:3")
    a, b, c = by_rank(nodes)
    c.ask("withdraw", "left")
    for node in (a, b):
        assert node.changed()["why"] == "c withdrew: RuntimeError('told to')"
        node.again()
    by_rank([a, b], round=2)


def test_closing_a_run_ends_it_for_everybody(processes: Processes) -> None:
    server = processes.server()
    nodes = processes.nodes("a", "b", "c")
    for node in nodes:
        node.join(server.endpoint, 3)
    a, b, c = by_rank(nodes)
    b.ask("close", "closed")
    assert server.expect("closed")["ending"] == "failed"
    for node in (a, b, c):
        assert node.changed()["closed"]
        assert node.waiting() == 0
        node.again()
        assert re.fullmatch(r"run 'run' is closed as failed: b\.\w+ closed it", node.failed("RendezvousClosedError"))


def test_a_run_is_closed_while_others_wait_to_join_it(processes: Processes) -> None:
    server = processes.server()
    a, b = processes.nodes("a", "b")
    a.join(server.endpoint, 3)
    b.join(server.endpoint, 3)
    server.expect("happened", live=2)
    with ProtocolClient("127.0.0.1", server.port) as wire:
        wire.hello()
        done = wire.ask(protocol.Done, lambda number: protocol.AskClose(number, "run", "enough"))
    assert done.done
    for node in (a, b):
        assert node.failed("RendezvousClosedError") == "run 'run' is closed as failed: enough"


def test_the_reason_for_a_wait_comes_by_itself_and_before_what_follows_it(processes: Processes) -> None:
    server = processes.server()
    with ProtocolClient("127.0.0.1", server.port) as wire:
        wire.hello("run", "a")
        wire.join("a", 2, 2)
        assert "1 of at least 2 nodes are here (a)" in wire.expect(KeepWaiting).why
    with ProtocolClient("127.0.0.1", server.port) as wire:
        wire.hello("another", "a")
        wire.join("a", 2, 2)
        wire.say(protocol.Ping())
        assert isinstance(wire.next(), KeepWaiting)
        assert isinstance(wire.next(), protocol.Pong)


def test_a_node_with_other_bounds_is_refused_with_both_shown(processes: Processes) -> None:
    server = processes.server()
    a, odd = processes.nodes("a", "odd")
    a.join(server.endpoint, 2)
    server.expect("happened", live=1)
    odd.join(server.endpoint, "2:4")
    assert odd.failed("RendezvousError") == (
        "run 'run' cannot be joined: odd asks for 2:4 nodes, but run 'run' was founded for 2 nodes: start every node "
        "with the same number, or use another run id"
    )


def test_runs_of_one_server_do_not_know_of_each_other(processes: Processes) -> None:
    server = processes.server()
    ours, theirs = processes.nodes("a", "b"), processes.nodes("a", "b")
    for node in ours:
        node.join(server.endpoint, 2, run="ours")
    for node in theirs:
        node.join(server.endpoint, 2, run="theirs")
    by_rank(theirs)
    a, b = by_rank(ours)
    theirs[0].ask("close", "closed")
    server.expect("closed", run="theirs")
    b.kill()
    a.changed()
    assert [event["closed"] for event in a.heard("changed")] == [False]


def test_keys_of_one_round_are_not_seen_in_the_next(processes: Processes) -> None:
    server = processes.server()
    a, b = processes.nodes("a", "b")
    for node in (a, b):
        node.join(server.endpoint, 2)
    by_rank([a, b], round=1)
    b.ask("set", "stored", key="seen", value="in round 1")
    assert a.ask("get", "value", key="seen")["value"] == "in round 1"
    b.again()
    a.changed()
    a.again()
    by_rank([a, b], round=2)
    for node in (a, b):
        assert not node.ask("check", "checked", key="seen")["there"]
    a.ask("set", "stored", key="seen", value="in round 2")
    assert b.ask("get", "value", key="seen")["value"] == "in round 2"


def test_every_seal_loss_leave_and_close_is_recorded_with_its_reason(processes: Processes) -> None:
    server = processes.server()
    nodes = processes.nodes("a", "b", "c")
    for node in nodes:
        node.join(server.endpoint, "1:3")
    a, b, c = by_rank(nodes)
    sealed = server.expect("sealed", run="run", round=1)
    assert sealed["why"].endswith(" joined; round 1 is sealed with 3 nodes: all 3 nodes are here")
    assert [member.partition(".")[0] for member in sealed["members"]] == ["a", "b", "c"]
    c.kill()
    lost = server.expect("lost")
    assert lost["why"] == "its connection ended and did not come back within 0.15 s"
    assert lost["node"].startswith("c.")
    assert "c was lost: its connection ended" in server.expect("broken", round=1)["why"]
    for node in (a, b):
        node.changed()
        node.again()
    server.expect("sealed", round=2)
    by_rank([a, b], round=2)
    b.order("withdraw")
    left = server.expect("left")
    assert (left["reason"], left["node"].partition(".")[0]) == ("withdrew", "b")
    assert "b withdrew: RuntimeError('told to')" in left["why"]
    a.changed()
    a.again()
    server.expect("sealed", round=3)
    a.placed(round=3)
    a.order("finish")
    assert server.expect("finished")["why"].startswith("a finished")
    assert server.expect("closed", ending="succeeded")["why"] == "all members have finished"


def _gather(server: Server, run: str, count: int) -> list[ProtocolClient]:
    wires = [ProtocolClient("127.0.0.1", server.port) for _ in range(count)]
    for number, wire in enumerate(wires):
        wire.hello(run, f"n{number}")
        wire.join(f"n{number}", count, count, CALM)
    return wires


def _messages(server: Server, run: str) -> dict[str, int]:
    with ProtocolClient("127.0.0.1", server.port) as admin:
        admin.hello()
        return admin.ask(protocol.Status, lambda number: protocol.AskStatus(number, run)).messages


def test_a_node_and_round_cost_the_same_messages_and_bytes_however_many_there_are(processes: Processes) -> None:
    costs: dict[int, tuple[float, float, float]] = {}
    for count in (10, 300):
        server = processes.server()
        wires = _gather(server, "run", count)
        for wire in wires:
            wire.expect(Placed)
        messages = _messages(server, "run")
        received = max(wire.received for wire in wires)
        costs[count] = messages["received"] / count, messages["sent"] / count, received
        for wire in wires:
            wire.socket.close()
    (few_in, few_out, few_bytes), (many_in, many_out, many_bytes) = costs[10], costs[300]
    # A hello and a join; a welcome, a word on what is awaited, and the place; the admin's own come on top.
    assert many_in <= few_in <= 2.5
    assert many_out <= few_out <= 3.5
    # Longer numbers, and up to six names in a sentence: no roster.
    assert many_bytes <= few_bytes + 100


def test_the_news_of_a_loss_carries_no_roster(processes: Processes) -> None:
    server = processes.server()
    wires = _gather(server, "run", 200)
    for wire in wires:
        wire.expect(Placed)
    wires.pop().socket.close()
    for wire in wires:
        before = wire.received
        wire.expect(Broken)
        assert wire.received - before < 300
        wire.socket.close()


def test_the_roster_is_read_page_by_page(processes: Processes) -> None:
    server = processes.server()
    wires = _gather(server, "run", 600)
    seal_id = wires[0].expect(Placed).seal_id
    pages: list[protocol.Peers] = []
    while (start := sum(len(page.page) for page in pages)) < 600:
        pages.append(wires[1].ask(protocol.Peers, partial(protocol.AskPeers, seal_id=seal_id, start=start)))
    assert [len(page.page) for page in pages] == [256, 256, 88]
    assert [peer.rank for page in pages for peer in page.page] == list(range(600))
    assert len({peer.name for page in pages for peer in page.page}) == 600
    for wire in wires:
        wire.socket.close()


def test_members_learn_who_their_peers_are(processes: Processes) -> None:
    server = processes.server()
    nodes = processes.nodes("a", "b", "c")
    for node in nodes:
        node.join(server.endpoint, 3)
    for node in by_rank(nodes):
        peers = node.ask("peers", "peers")["peers"]
        assert peers == [[0, "a", "127.0.0.1"], [1, "b", "127.0.0.1"], [2, "c", "127.0.0.1"]]
