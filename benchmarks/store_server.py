"""A store server in a process of its own: `torch` or `rallypoint`.  It says its port, and serves until it is killed."""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.processes import answer
from rallypoint.server.sockets import file_limit


def open_store(kind: str, port: int, *, is_master: bool) -> Any:
    """A TCPStore of torch's or of ours."""
    if kind == "torch":
        from torch.distributed import TCPStore

        return TCPStore("127.0.0.1", port, None, is_master, wait_for_workers=False)
    from rallypoint.stores import TcpStore

    return TcpStore("127.0.0.1", port, None, is_master, wait_for_workers=False)


if __name__ == "__main__":
    file_limit(raised=True)
    store = open_store(sys.argv[1], 0, is_master=True)
    answer(store.port)
    sys.stdin.read()
