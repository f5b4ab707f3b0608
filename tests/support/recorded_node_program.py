"""A node at a fixed address as a process of its own, which lives by itself: `python -m tests.support.recorded_node_program`."""

from __future__ import annotations

from rallypoint.backends.fixed import RALLYPOINT
from tests.support.living_node import LivingNode
from tests.support.node_program import run


class RecordedNode(LivingNode):
    """Joins through the server at an address."""

    backend = RALLYPOINT


def main() -> None:
    run(RecordedNode())


if __name__ == "__main__":
    main()
