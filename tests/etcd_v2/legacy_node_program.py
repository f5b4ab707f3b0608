"""A node of the older etcd protocol, torch's or ours, in a process of its own.

It joins, shares its name through the round's store, prints the world that it is in as a line of JSON, and joins again
whenever somebody waits.  It ends when its input does, by shutting down.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any


def main() -> None:
    """Arguments: library, endpoint, run id, name, min, max, last call, the directory of all runs."""
    library, endpoint, run_id, name, least, most, last_call, prefix = sys.argv[1:]
    handler = make_handler(library, endpoint, run_id, int(least), int(most), int(last_call), prefix)
    done = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        done.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    say({"ready": name})
    while not done.is_set():
        info = handler.next_rendezvous()
        info.store.set(f"name/{info.rank}", name)
        names = [info.store.get(f"name/{rank}").decode() for rank in range(info.world_size)]
        counted = info.store.add("counted", 1)
        info.store.wait(["MASTER_PORT"])
        say({"rank": info.rank, "names": names, "counted": counted, "port": info.bootstrap_store_info.master_port})
        while not done.wait(0.05) and handler.num_nodes_waiting() == 0:
            pass
    say({"shut down": handler.shutdown()})


def make_handler(library: str, endpoint: str, run_id: str, least: int, most: int, last_call: int, prefix: str) -> Any:
    """A handler of either library."""
    if library == "torch":
        from torch.distributed.elastic.rendezvous import RendezvousParameters as Parameters
        from torch.distributed.elastic.rendezvous.etcd_rendezvous import create_rdzv_handler as create
    else:
        from rallypoint.elastic.api import RendezvousParameters as Parameters
        from rallypoint.elastic.etcd_rendezvous import create_rdzv_handler as create
    return create(
        Parameters(
            *("etcd", endpoint, run_id, least, most),
            local_addr="127.0.0.1",
            timeout=120,
            last_call_timeout=last_call,
            etcd_prefix=prefix,
        )
    )


def say(what: Any) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main()
