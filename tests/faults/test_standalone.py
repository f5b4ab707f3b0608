"""A standalone server comes back to its own port: no node takes its place while it is away."""

from __future__ import annotations

from tests.support.node_processes import NIMBLE, Processes, by_rank


def test_a_standalone_server_that_was_killed_finds_its_port_free(processes: Processes) -> None:
    server = processes.server()
    nodes = processes.nodes("a", "b")
    for node in nodes:
        # Left to themselves, nodes on the endpoint's machine may serve it.
        node.join(server.endpoint, 2, **{**NIMBLE, "is_host": None})
    by_rank(nodes, round=1)
    server.kill()
    # Starting an interpreter takes many times longer than a node waits before it tries to connect again.
    again = processes.server(port=server.port, hold_s=7.0)
    for node in nodes:
        node.order("reach")
    for node in nodes:
        assert node.expect("reached")["round"] == 1
    assert again.expect("happened", phase="sealed")["why"].endswith("all 2 ranks of round 1 still hold it")
