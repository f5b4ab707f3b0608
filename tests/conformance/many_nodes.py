"""Many nodes as threads of one process: `python -m tests.conformance.many_nodes COUNT TOTAL ENDPOINT torch|ours|reference`.

It says `ready`, waits for a line, lets all of its nodes join c10d, and says `formed` with their ranks and the seconds.
`reference` is torch's own rendezvous, for comparison.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from typing import Any

ROOTS = ("rallypoint.elastic", "torch.distributed.elastic.rendezvous")


def say(event: str, **details: Any) -> None:
    """One line for the test to read."""
    print(json.dumps({"event": event, **details}), flush=True)


def main() -> None:
    count, total, endpoint, kind = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    api, registry = (importlib.import_module(f"{ROOTS[kind == 'reference']}.{name}") for name in ("api", "registry"))
    if kind == "ours":
        from rallypoint.torch_bridge import stores_c10d

        stores_c10d.has_torch = lambda: False
    options: dict[str, Any] = {"local_addr": "127.0.0.1", "is_host": False, "join_timeout": 300}
    handlers = [
        registry.get_rendezvous_handler(api.RendezvousParameters("c10d", endpoint, "run", total, total, **options))
        for _ in range(count)
    ]
    ranks: list[int] = []
    say("ready")
    sys.stdin.readline()
    began = time.monotonic()
    threads = [threading.Thread(target=lambda h=h: ranks.append(h.next_rendezvous().rank)) for h in handlers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    say("formed", ranks=ranks, seconds=time.monotonic() - began)
    sys.stdin.readline()
    os._exit(0)


if __name__ == "__main__":
    main()
