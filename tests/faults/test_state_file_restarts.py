"""`serve --state FILE` (rules 14, 17f): a restarted server knows the world, who has finished in it, and what was closed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.node_processes import Processes, Server, by_rank

MINUTE: dict[str, Any] = {"heartbeat_interval": 1.0, "heartbeat_timeout": 60.0}
"""With these a hold lasts longer than any test waits."""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def _restarted(processes: Processes, server: Server, state: Path) -> Server:
    server.kill()
    return processes.server(port=server.port, state=state)


def test_a_member_that_has_finished_is_not_missed_by_a_restarted_server(processes: Processes, state: Path) -> None:
    server = processes.server(state=state)
    nodes = processes.nodes("a", "b", "c")
    for node in nodes:
        node.join(server.endpoint, 3, **MINUTE)
    a, b, c = by_rank(nodes)
    assert c.ask("finish", "left")["done"]
    c.kill()
    server = _restarted(processes, server, state)
    assert server.expect("happened", phase="sealed")["why"].endswith("all 3 ranks of round 1 still hold it")
    for node in (a, b):
        assert node.ask("reach", "reached")["state"] == "holds its world"
        assert node.waiting() == 0
        assert node.heard("changed") == []
    for node in (a, b):
        node.order("finish")
    for node in (a, b):
        assert node.expect("left")["done"]
    assert server.expect("closed")["ending"] == "succeeded"


def test_a_run_ends_well_although_the_server_is_killed_before_every_finish(processes: Processes, state: Path) -> None:
    server = processes.server(state=state)
    nodes = processes.nodes("a", "b", "c")
    for node in nodes:
        node.join(server.endpoint, 3, **MINUTE)
    for node in reversed(by_rank(nodes)):
        server = _restarted(processes, server, state)
        assert node.ask("finish", "left")["done"]
    assert server.expect("closed")["ending"] == "succeeded"


def test_a_member_that_missed_the_close_hears_of_it_though_the_next_incarnation_runs(
    processes: Processes, state: Path
) -> None:
    server = processes.server(state=state)
    a, b, *fresh = processes.nodes("a", "b", "c", "d")
    for node in (a, b):
        node.join(server.endpoint, 2, **MINUTE)
    by_rank([a, b], round=1)
    b.pause()
    # Its connection ends before the close, so it cannot have heard of it.
    server = _restarted(processes, server, state)
    a.ask("close", "closed")
    a.kill()
    server = _restarted(processes, server, state)
    # Nobody of the closed incarnation is here, so fresh nodes found the next one.
    for node in fresh:
        node.join(server.endpoint, 2, **MINUTE)
    by_rank(fresh, round=2)
    old, new = b.heard("placed")[0], fresh[0].heard("placed")[0]
    assert old["fence"].partition("/")[0] != new["fence"].partition("/")[0]
    b.resume()
    assert b.changed()["closed"]
    b.again()
    assert "is closed as failed" in b.failed("RendezvousClosedError")
    assert fresh[0].waiting() == fresh[1].waiting() == 0


def test_a_closed_run_is_closed_to_fresh_nodes_while_a_member_of_it_is_here(processes: Processes, state: Path) -> None:
    server = processes.server(state=state)
    a, b, late = processes.nodes("a", "b", "late")
    for node in (a, b):
        node.join(server.endpoint, 2, **MINUTE)
    by_rank([a, b])
    a.ask("close", "closed")
    server = _restarted(processes, server, state)
    for node in (a, b):
        node.ask("reach", "reached")
    late.join(server.endpoint, 2, **MINUTE)
    assert "is closed as failed" in late.failed("RendezvousClosedError")


def test_a_server_whose_state_file_was_deleted_is_believed_though_it_counts_its_starts_anew(
    processes: Processes, state: Path
) -> None:
    server = processes.server(state=state)
    nodes = processes.nodes("a", "b", "c")
    for node in nodes:
        node.join(server.endpoint, "2:3", **MINUTE)
    a, b, c = by_rank(nodes, round=1)
    server = _restarted(processes, server, state)
    for node in nodes:
        node.ask("reach", "reached")
    c.pause()
    server.kill()
    state.unlink()
    server = processes.server(port=server.port, state=state, hold_s=3.0)
    for node in (a, b):
        node.changed()
        node.again()
    by_rank([a, b], round=2)
    # It knows this incarnation from the second start of the server, and now hears of the first.
    c.resume()
    assert c.changed()["why"] == "c is no longer part of round 1: it was given up or left behind"
    assert not c.ask("waiting", "waiting")["outage"]


@pytest.mark.root
def test_a_full_disk_costs_only_what_a_restart_would_know_and_the_log_says_so(
    processes: Processes, tmp_path: Path
) -> None:
    mounted = 'mount -t tmpfs -o size=4k none "$0" && exec "$@"'
    state = tmp_path / "state"
    server = processes.server(state=state, before=["unshare", "--mount", "sh", "-c", mounted, str(tmp_path)])
    a, b = processes.nodes("a", "b")
    for node in (a, b):
        node.join(server.endpoint, 2)
    by_rank([a, b], round=1)
    rounds = 1
    while not (said := [event["line"] for event in server.heard("stderr")]):
        rounds += 1
        a.again()
        b.changed()
        b.again()
        by_rank([a, b], round=rounds)
        assert rounds < 100, "the disk is never full"
    assert said[0].rstrip() == (
        f"{state} cannot be written: [Errno 28] No space left on device; a restart would not know of the last change of run"
    )
    # The run goes on, to its end.
    b.again()
    a.changed()
    a.again()
    by_rank([a, b], round=rounds + 1)
    for node in (a, b):
        node.order("finish")
    for node in (a, b):
        assert node.expect("left")["done"]
    assert server.expect("closed")["ending"] == "succeeded"
