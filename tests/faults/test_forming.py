"""How a run forms, grows, shrinks and ends when all goes well (rules 1, 4, 5, 7, 8, 12)."""

from __future__ import annotations

from tests.faults.harness import Stage, by_rank


def test_nodes_form_one_world(stage: Stage) -> None:
    server = stage.server()
    nodes = stage.nodes("a", "b", "c")
    for node in nodes:
        node.join(server.endpoint, 3)
    ranked = by_rank(nodes)
    assert [node.name for node in ranked] == ["a", "b", "c"]


def test_a_world_with_an_embedded_server_forms_and_ends(stage: Stage) -> None:
    from tests.faults.harness import free_port

    endpoint = f"127.0.0.1:{free_port()}"
    nodes = stage.nodes("a", "b", "c")
    for node in nodes:
        node.join(endpoint, 3, is_host=None)
    by_rank(nodes)
    for node in nodes:
        node.order("finish")
    for node in nodes:
        assert node.expect("left")["done"]
