"""Some nodes in one process, as threads: of any implementation of PyTorch's interface, or of `rallypoint.join`.

Orders, one a line: `join` (all nodes at one instant), `regroup SECONDS` (the first node waits for a change, then all
join), `waiting` (how many nodes have a reason to join again).  Times are read from the monotonic clock, which all
processes of a machine share.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from benchmarks.processes import answer

SOON_S = 0.02
LOCAL = "127.0.0.1"
PLACE = "rallypoint.join"

Placed = tuple[float, int, int]
"""When a node learned its place, its rank, and the size of the world."""


class Node(Protocol):
    """A node of any kind."""

    def join(self) -> tuple[int, int]:
        """Wait for a place in the next world: the rank, and the size of the world."""

    def changed(self, limit_s: float) -> bool:
        """Wait until there is a reason to join again; False where the time passes first."""


class HandlerNode:
    """A node with PyTorch's interface, whose user looks again and again whether somebody waits."""

    def __init__(self, handler: Any) -> None:
        self._handler = handler

    def join(self) -> tuple[int, int]:
        """Call `next_rendezvous`."""
        info = self._handler.next_rendezvous()
        return info.rank, info.world_size

    def changed(self, limit_s: float) -> bool:
        """Poll: the interface has no other way."""
        deadline = time.monotonic() + limit_s
        while self._handler.num_nodes_waiting() == 0:
            if time.monotonic() >= deadline:
                return False
            time.sleep(SOON_S)
        return True


class PlaceNode:
    """A node that calls `rallypoint.join`, whose user is told."""

    def __init__(self, endpoint: str, run_id: str, nodes: str, options: dict[str, Any]) -> None:
        import rallypoint

        self._place: rallypoint.Place | None = None
        # Naming `join` here imports what it needs before anything is measured.
        self._open = partial(rallypoint.join, endpoint, run=run_id, nodes=nodes, local_addr=LOCAL, **options)

    def join(self) -> tuple[int, int]:
        """Join, or join again."""
        self._place = self._open() if self._place is None else self._place.again()
        return self._place.rank, self._place.world_size

    def changed(self, limit_s: float) -> bool:
        """Wait for the change."""
        assert self._place is not None, "a node joins before it waits for a change"
        return self._place.changed.wait(limit_s)


def make(implementation: str, endpoint: str, run_id: str, nodes: str, options: dict[str, Any]) -> Node:
    """A node with a handler of torch's, as `torch:c10d`, or of ours, as `rallypoint:c10d`; or one of `rallypoint.join`."""
    if implementation == PLACE:
        return PlaceNode(endpoint, run_id, nodes, options)
    owner, _, backend = implementation.partition(":")
    low, high = map(int, nodes.split(":"))
    if owner == "torch":
        from torch.distributed.elastic.rendezvous import RendezvousParameters, registry

        torch_parameters = RendezvousParameters(backend, endpoint, run_id, low, high, local_addr=LOCAL, **options)
        return HandlerNode(registry.get_rendezvous_handler(torch_parameters))
    from rallypoint import elastic

    parameters = elastic.RendezvousParameters(backend, endpoint, run_id, low, high, local_addr=LOCAL, **options)
    return HandlerNode(elastic.get_rendezvous_handler(parameters))


def line_up(nodes: list[Node]) -> Callable[[], list[Placed]]:
    """Start a thread for each node; what is returned lets all of them join at one instant and waits for their places."""
    signal = threading.Event()
    places: list[Placed] = []

    def join(node: Node) -> None:
        signal.wait()
        rank, size = node.join()
        places.append((time.monotonic(), rank, size))

    threads = [threading.Thread(target=join, args=(node,), daemon=True) for node in nodes]
    for thread in threads:
        thread.start()

    def go() -> list[Placed]:
        signal.set()
        for thread in threads:
            thread.join()
        return places

    return go


def end_process(failure: threading.ExceptHookArgs) -> None:
    """A node that fails ends its process, so that its caller, which waits for an answer, learns of it at once."""
    print(f"{failure.exc_type.__name__}: {failure.exc_value}", file=sys.stderr, flush=True)
    os._exit(1)


def main() -> None:
    """Make the nodes, answer with the file that Rallypoint was imported from, and obey."""
    implementation, endpoint, run_id, bounds, mine, options = sys.argv[1:]
    threading.excepthook = end_process
    nodes = [make(implementation, endpoint, run_id, bounds, json.loads(options)) for _ in range(int(mine))]
    join = line_up(nodes)
    answer(getattr(sys.modules.get("rallypoint"), "__file__", None))
    for line in sys.stdin:
        order, *arguments = line.split()
        if order == "waiting":
            answer(sum(node.changed(0.0) for node in nodes))
        elif order == "regroup" and not nodes[0].changed(float(arguments[0])):
            answer(None)
        else:
            told = time.monotonic()
            answer((told, join()))
            join = line_up(nodes)


if __name__ == "__main__":
    main()
