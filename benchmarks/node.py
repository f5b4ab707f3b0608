"""Some nodes in one process, as threads, for any implementation of PyTorch's interface.

Orders, one a line: `join` (all of them at once), `watch` (until one is told to join again), `rejoin`.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from benchmarks.processes import answer

SOON_S = 0.02


def make(implementation: str, endpoint: str, run_id: str, low: int, high: int) -> Any:
    """A handler of torch's, as `torch:c10d`, or of ours, as `rallypoint:rallypoint`."""
    owner, _, backend = implementation.partition(":")
    config = {"last_call_timeout": 1}
    if owner == "torch":
        from torch.distributed.elastic.rendezvous import RendezvousParameters, registry

        return registry.get_rendezvous_handler(
            RendezvousParameters(backend, endpoint, run_id, low, high, local_addr="127.0.0.1", **config)
        )
    import rallypoint

    return rallypoint.get_rendezvous_handler(
        rallypoint.RendezvousParameters(backend, endpoint, run_id, low, high, local_addr="127.0.0.1", **config)
    )


def join_all(handlers: list[Any]) -> list[tuple[float, int, int]]:
    """Let every node join at this instant: seconds, rank and size of each."""
    places: list[tuple[float, int, int]] = []
    began = time.monotonic()

    def join(handler: Any) -> None:
        info = handler.next_rendezvous()
        places.append((time.monotonic() - began, info.rank, info.world_size))

    threads = [threading.Thread(target=join, args=(handler,)) for handler in handlers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return places


def watch(handler: Any, limit_s: float) -> float:
    """How long it takes until the node is told to join again; -1 where it is not."""
    began = time.monotonic()
    while time.monotonic() - began < limit_s:
        if handler.num_nodes_waiting() > 0:
            return time.monotonic() - began
        time.sleep(SOON_S)
    return -1.0


def main() -> None:
    """Make the nodes, say that they are there, and obey."""
    implementation, endpoint, run_id, low, high, mine = sys.argv[1:]
    handlers = [make(implementation, endpoint, run_id, int(low), int(high)) for _ in range(int(mine))]
    answer("ready")
    for order in sys.stdin:
        if order.strip() == "join":
            answer(join_all(handlers))
        else:
            answer(watch(handlers[0], float(order.split()[1])))


if __name__ == "__main__":
    main()
