"""Which node a name means, where one is to be evicted."""

from __future__ import annotations

import pytest

from rallypoint.core import evictions
from rallypoint.core.model import Run, WaitingNode
from rallypoint.errors import RendezvousError
from rallypoint.messages.types import Node
from rallypoint.report import node_to_evict
from rallypoint.sorted_map import SortedMap

NOW = 100.0


def run(*waiting: str, finished: tuple[str, ...] = ()) -> Run:
    nodes = [Node(id=node_id, name=node_id.partition(".")[0]) for node_id in waiting]
    return Run(
        run_id="llama",
        queue=SortedMap.build((node.id, WaitingNode(node, arrival)) for arrival, node in enumerate(nodes)),
        finished=SortedMap.build((node_id, -1) for node_id in finished),
    )


def meant(run: Run, name: str) -> str | None:
    node = node_to_evict(run, name, NOW)
    return node.id if node is not None else None


def test_one_who_has_finished_hides_nobody_of_the_same_name() -> None:
    assert meant(run("a.x_1", "b.y_1", finished=("a.w_1",)), "a") == "a.x_1"
    assert meant(run("a.x_1", "a.x_2"), "a") == "a.x_2", "the newest"
    assert meant(run("a.x_1", "a.x_2"), "a.x_1") == "a.x_1"
    assert meant(run("a.x_1"), "c") is None


def test_one_who_is_kept_out_is_meant_where_nobody_else_has_the_name() -> None:
    out, _ = evictions.note(run("a.x_1"), Node(id="b.y_1", name="b"), 30.0, "", NOW)
    assert meant(out, "b") == "b.y_1"
    both, _ = evictions.note(run("a.x_1"), Node(id="a.w_1", name="a"), 30.0, "", NOW)
    assert meant(both, "a") == "a.x_1"


def test_who_has_finished_is_not_evicted() -> None:
    words = "node 'a' of run 'llama' has finished or left already: there is nobody to evict"
    with pytest.raises(RendezvousError, match=words):
        node_to_evict(run("b.y_1", finished=("a.w_1",)), "a", NOW)
