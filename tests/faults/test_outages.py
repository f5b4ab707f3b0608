"""An outage is not a loss (rule 14): what becomes of a run while its server is away, and when it is back."""

from __future__ import annotations

from pathlib import Path

import pytest

from rallypoint.net import listen
from tests.support.node_processes import NIMBLE, Node, Processes, Server, by_rank, free_port

HOLD_S = 7.0
"""Heartbeat time-out and largest pause between two attempts to connect: all who live have spoken by then."""


def _world(processes: Processes, server: Server, *names: str, nodes: str = "2:4") -> list[Node]:
    made = processes.nodes(*names)
    for node in made:
        node.join(server.endpoint, nodes)
    return by_rank(made, round=1)


def _restarted(processes: Processes, server: Server, state: Path | None = None) -> Server:
    server.kill()
    return processes.server(port=server.port, hold_s=HOLD_S, state=state)


@pytest.mark.parametrize("keeps_state", [False, True], ids=["without state", "with state"])
def test_a_restarted_server_finds_the_world_as_it_was(processes: Processes, tmp_path: Path, keeps_state: bool) -> None:
    state = tmp_path / "state" if keeps_state else None
    server = processes.server(state=state)
    nodes = _world(processes, server, "a", "b", "c")
    server = _restarted(processes, server, state)
    for node in nodes:
        # A question waits for the connection; the answer comes from the server that was restarted.
        node.order("reach")
    for node in nodes:
        assert node.expect("reached")["round"] == 1
    if not keeps_state:
        assert server.expect("happened", phase="sealed")["why"].endswith("all 3 ranks of round 1 still hold it")
    for node in nodes:
        assert node.waiting() == 0
        assert node.heard("changed") == []
        assert len(node.heard("placed")) == 1
    # And the run goes on: a loss is noticed, ranks stay, the round's number grows.
    nodes[1].kill()
    for node in (nodes[0], nodes[2]):
        node.changed()
        node.again()
    assert by_rank([nodes[0], nodes[2]], round=2)[0] is nodes[0]


def test_a_node_that_dies_while_the_server_is_away_is_lost_when_it_is_back(processes: Processes) -> None:
    server = processes.server()
    a, b, c = _world(processes, server, "a", "b", "c")
    server.kill()
    c.kill()
    assert a.heard("changed") == b.heard("changed") == []
    processes.server(port=server.port, hold_s=HOLD_S)
    for node in (a, b):
        node.changed()
        node.again()
    by_rank([a, b], round=2)


def test_a_server_restarted_while_a_world_gathers_goes_on_gathering(processes: Processes) -> None:
    server = processes.server()
    a, b, c = processes.nodes("a", "b", "c")
    for node in (a, b):
        node.join(server.endpoint, 3)
        server.expect("happened")
    server = _restarted(processes, server)
    c.join(server.endpoint, 3)
    by_rank([a, b, c], round=1)


def test_a_server_restarted_while_members_regroup_goes_on_regrouping(processes: Processes) -> None:
    server = processes.server()
    a, b, c = _world(processes, server, "a", "b", "c")
    c.kill()
    for node in (a, b):
        node.changed()
    a.again()
    server.expect("happened", why="a is back")
    server = _restarted(processes, server)
    b.again()
    assert by_rank([a, b], round=2)[0] is a


@pytest.mark.parametrize("keeps_state", [False, True], ids=["without state", "with state"])
def test_a_run_that_was_closed_stays_closed_when_the_server_is_restarted(
    processes: Processes, tmp_path: Path, keeps_state: bool
) -> None:
    state = tmp_path / "state" if keeps_state else None
    server = processes.server(state=state)
    a, b = _world(processes, server, "a", "b", nodes="2")
    a.ask("close", "closed")
    assert b.changed()["closed"]
    server = _restarted(processes, server, state)
    for node in (a, b):
        node.ask("reach", "reached")
        node.again()
        assert "is closed as failed" in node.failed("RendezvousClosedError")


@pytest.mark.parametrize("keeps_state", [False, True], ids=["without state", "with state"])
def test_a_fresh_node_that_reaches_a_restarted_server_first_displaces_nobody(
    processes: Processes, tmp_path: Path, keeps_state: bool
) -> None:
    state = tmp_path / "state" if keeps_state else None
    server = processes.server(state=state)
    a, b = _world(processes, server, "a", "b", nodes="2")
    fresh = processes.node("fresh")
    server.kill()
    for node in (a, b):
        node.pause()
    server = processes.server(port=server.port, hold_s=HOLD_S, state=state)
    fresh.join(server.endpoint, 2)
    server.expect("happened")
    for node in (a, b):
        node.resume()
        node.order("reach")
    for node in (a, b):
        assert node.expect("reached")["round"] == 1
        assert node.waiting() == 0
        assert node.heard("changed") == []
    b.kill()
    a.changed()
    a.again()
    assert by_rank([a, fresh], round=2)[0] is a


def test_finishing_waits_for_a_server_that_is_away(processes: Processes) -> None:
    server = processes.server()
    a, b = _world(processes, server, "a", "b", nodes="2")
    server.kill()
    for node in (a, b):
        node.order("finish")
    server = processes.server(port=server.port, hold_s=HOLD_S)
    for node in (a, b):
        assert node.expect("left")["done"]
    assert server.expect("closed")["ending"] == "succeeded"


def test_workers_run_on_while_the_server_is_away_until_the_grace_ends(processes: Processes) -> None:
    server = processes.server()
    patient, hasty = processes.nodes("patient", "hasty")
    patient.join(server.endpoint, 2)
    hasty.join(server.endpoint, 2, outage_grace=1.0)
    by_rank([patient, hasty])
    server.kill()
    assert hasty.changed()["why"] == "the server has been away for more than 1 s"
    assert hasty.waiting() == 1
    assert patient.waiting() == 0
    assert patient.heard("changed") == []


def test_the_grace_ends_although_another_job_has_taken_the_servers_place(processes: Processes) -> None:
    server = processes.server()
    a, b, stranger = processes.nodes("a", "b", "stranger")
    for node in (a, b):
        node.join(server.endpoint, 2, outage_grace=2.0)
    by_rank([a, b])
    server.kill()
    stranger.join(server.endpoint, 1, run="another", is_host=True)
    stranger.placed()
    for node in (a, b):
        assert node.changed()["why"] == "the server has been away for more than 2 s"
        assert node.waiting() == 1
        node.again()
        assert "this server is part of the job 'another' and serves no other run" in node.failed(
            "RendezvousConnectionError"
        )


def test_a_server_finds_its_nodes_although_another_job_had_its_place_for_a_while(processes: Processes) -> None:
    server = processes.server()
    a, b, stranger = processes.nodes("a", "b", "stranger")
    for node in (a, b):
        node.join(server.endpoint, 2)
    by_rank([a, b])
    server.kill()
    stranger.join(server.endpoint, 1, run="another", is_host=True)
    stranger.placed()
    for node in (a, b):
        node.ask("outage", "outage", seconds=1.0)
    stranger.kill()
    processes.server(port=server.port, hold_s=HOLD_S)
    for node in (a, b):
        assert node.ask("reach", "reached")["state"] == "holds its world"
        assert node.heard("changed") == []


def test_another_process_takes_over_when_the_one_that_serves_is_killed(processes: Processes) -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    host, b, c = processes.nodes("host", "b", "c")
    host.join(endpoint, "2:3", is_host=True, rank=2)
    assert "whoever reaches this port can join the run" in host.expect("stderr")["line"]
    for node in (b, c):
        node.join(endpoint, "2:3", is_host=None)
    ranked = by_rank([host, b, c], round=1)
    assert ranked[2] is host
    host.kill()
    for node in (b, c):
        assert "2 of 3 ranks of round 1" in node.changed()["why"]
        node.again()
    assert by_rank([b, c], round=2) == ranked[:2]
    b.kill()
    c.changed()
    new = processes.node("new")
    new.join(endpoint, "2:3", is_host=None)
    c.again()
    by_rank([c, new], round=3)


def test_a_server_that_was_stopped_for_long_loses_nobody(processes: Processes) -> None:
    server = processes.server()
    nodes = processes.nodes("a", "b", "c")
    for node in nodes:
        node.join(server.endpoint, "2:3", **NIMBLE)
    ranked = by_rank(nodes)
    server.pause()
    # Ten time-outs of each node go by; a node tells by its own clock when it has given the connection up.
    for node in nodes:
        node.ask("outage", "outage", seconds=10.0)
    server.resume()
    for node in nodes:
        node.order("reach")
    for node in nodes:
        assert node.expect("reached")["round"] == 1
        assert node.waiting() == 0
        assert node.heard("changed") == []
    assert server.heard("lost") == server.heard("broken") == []
    ranked[2].kill()
    server.expect("lost")
    for node in ranked[:2]:
        node.changed()
        node.again()
    assert by_rank(ranked[:2], round=2) == ranked[:2]


def test_a_server_that_starts_late_is_waited_for(processes: Processes) -> None:
    nodes = processes.nodes("a", "b")
    with listen("127.0.0.1", 0) as nobody:
        nobody.setblocking(True)
        port = nobody.getsockname()[1]
        for node in nodes:
            node.join(f"127.0.0.1:{port}", 2)
        for _ in nodes:
            nobody.accept()[0].close()
    # From now on their attempts are refused, until somebody serves the port.
    processes.server(port=port)
    by_rank(nodes)


def test_two_servers_cannot_share_a_state_file(processes: Processes, tmp_path: Path) -> None:
    processes.server(state=tmp_path / "state")
    with pytest.raises(AssertionError, match="is in use by another server"):
        processes.server(state=tmp_path / "state")


def test_a_node_that_was_paused_distrusts_its_world_though_the_server_is_away(processes: Processes) -> None:
    server = processes.server()
    nodes = processes.nodes("a", "b", "c")
    for node in nodes:
        node.join(server.endpoint, "2:3", heartbeat_timeout=2.0)
    a, b, c = by_rank(nodes)
    server.pause()
    b.pause()
    # More than a time-out goes by; to the others it is a mere outage.
    for node in (a, c):
        node.order("bide", seconds=3.0)
    for node in (a, c):
        assert not node.expect("bided")["news"]
    b.resume()
    assert b.changed()["why"].startswith("this node itself was paused for ")
    assert b.ask("outage", "outage", seconds=0.5)["still"]
    for node, waiting in ((a, 0), (b, 1), (c, 0)):
        assert node.waiting() == waiting
    server.resume()
    for node in (a, c):
        node.changed()
    for node in nodes:
        node.again()
    by_rank(nodes, round=2)
