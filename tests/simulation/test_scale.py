"""Very many nodes: what a node costs does not depend on how many there are."""

from __future__ import annotations

import pytest

from simulation.scale import form


def test_messages_and_bytes_a_node_do_not_grow_with_the_number_of_nodes() -> None:
    few, many = form(100), form(2000)
    assert many.messages_a_node <= 4
    assert many.messages_a_node == pytest.approx(few.messages_a_node, rel=0.02)
    # Longer names and larger numbers; no rosters.
    assert many.octets_a_node < few.octets_a_node + 40


@pytest.mark.soak
def test_a_hundred_thousand_nodes_form_one_world_at_nearly_the_cost_a_node_of_a_thousand() -> None:
    few, many = form(1000), form(100_000)
    assert many.messages_a_node <= 4
    assert many.cpu_s / many.nodes < 3 * few.cpu_s / few.nodes
