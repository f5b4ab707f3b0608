"""A run id can be used again: after success, after failure, after everything was killed (rule 1)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.node_processes import Processes, by_rank, free_port


def test_a_run_id_is_used_again_after_success(processes: Processes) -> None:
    server = processes.server()
    fences = set()
    for names in (("a", "b"), ("c", "d")):
        nodes = processes.nodes(*names)
        for node in nodes:
            node.join(server.endpoint, 2)
        by_rank(nodes)
        fences.add(nodes[0].heard("placed")[0]["fence"].partition("/")[0])
        nodes[0].ask("set", "stored", key="from", value=names[0])
        for node in nodes:
            node.order("finish")
        for node in nodes:
            assert node.expect("left")["done"]
    assert len(fences) == 2, "each run has an incarnation of its own"


def test_a_run_id_is_used_again_after_failure_once_its_last_node_has_left(processes: Processes) -> None:
    server = processes.server()
    a, b, c, d = processes.nodes("a", "b", "c", "d")
    for node in (a, b):
        node.join(server.endpoint, 2)
    by_rank([a, b])
    a.ask("close", "closed")
    b.changed()
    c.join(server.endpoint, 2)
    assert "is closed as failed" in c.failed("RendezvousClosedError")
    a.kill()
    server.expect("happened", phase="closed", live=1)
    b.kill()
    server.expect("happened", phase="closed", live=0)
    for node in (c, d):
        node.join(server.endpoint, 2)
    by_rank([c, d])


def test_members_of_a_closed_run_say_goodbye_so_that_its_id_is_free_at_once(processes: Processes) -> None:
    server = processes.server()
    a, b, c, d = processes.nodes("a", "b", "c", "d")
    for node in (a, b):
        node.join(server.endpoint, 2)
    by_rank([a, b])
    a.ask("close", "closed")
    b.changed()
    for node in (a, b):
        node.ask("withdraw", "left")
    # These processes run already, and are quicker than the reconnect grace; a closed run would refuse them.
    for node in (c, d):
        node.join(server.endpoint, 2)
    by_rank([c, d])


@pytest.mark.parametrize("keeps_state", [False, True], ids=["without state", "with state"])
def test_a_run_id_is_used_again_after_everything_was_killed(
    processes: Processes, tmp_path: Path, keeps_state: bool
) -> None:
    state = tmp_path / "state" if keeps_state else None
    server = processes.server(state=state)
    old, new = processes.nodes("a", "b"), processes.nodes("a", "b")
    for node in old:
        node.join(server.endpoint, 2)
    by_rank(old)
    old[1].ask("set", "stored", key="left over", value="yes")
    for process in (*old, server):
        process.kill()
    server = processes.server(port=server.port, hold_s=7.0, state=state)
    for node in new:
        node.join(server.endpoint, 2)
    by_rank(new)
    assert not new[0].ask("check", "checked", key="left over")["there"]
    assert new[0].heard("placed")[0]["fence"] != old[0].heard("placed")[0]["fence"]


def test_a_run_id_is_used_again_after_all_nodes_but_not_the_server_were_killed(processes: Processes) -> None:
    server = processes.server()
    old, new = processes.nodes("a", "b"), processes.nodes("a", "b")
    for node in old:
        node.join(server.endpoint, 2)
    by_rank(old)
    for node in old:
        node.kill()
    for node in new:
        node.join(server.endpoint, 2)
    by_rank(new)


def test_one_process_joins_one_run_after_the_other_at_an_endpoint_that_it_serves(processes: Processes) -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    a, b = processes.nodes("a", "b")
    for run in ("first", "second", "first"):
        for node in (a, b):
            node.join(endpoint, 2, run=run, is_host=None)
        by_rank([a, b])
        for node in (a, b):
            node.order("finish")
        for node in (a, b):
            assert node.expect("left")["done"]
