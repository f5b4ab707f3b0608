"""A server in a process of its own, for tests that measure it: prints its port, and ends with its standard input.

python -m tests.stores.tcp_server_program [request and answer limit in bytes]
"""

from __future__ import annotations

import logging
import sys

from rallypoint.stores import StoreLimits, StoreServer, StoreServerCore, listen


def main() -> None:
    logging.basicConfig(format="%(message)s")
    limits = (
        StoreLimits(request_bytes=int(sys.argv[1]), unread_bytes=int(sys.argv[1]))
        if len(sys.argv) > 1
        else StoreLimits()
    )
    server = StoreServer(StoreServerCore(limits))
    server.start_in_thread(listen("127.0.0.1"))
    print(server.port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
