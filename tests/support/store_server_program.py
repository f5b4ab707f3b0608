"""A c10d store as a process of its own: `python -m tests.support.store_server_program torch|ours PORT`."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from typing import Any

from rallypoint.stores import StoreServer, listen
from rallypoint.torch_bridge import stores_c10d


def main() -> None:
    kind, port = sys.argv[1], int(sys.argv[2])
    listener = listen("127.0.0.1", port)
    port = listener.getsockname()[1]
    held: Any
    if kind == "torch":
        held = stores_c10d.tcp_store("127.0.0.1", port, timedelta(seconds=60), listener)
    else:
        held = StoreServer()
        held.start_in_thread(listener)
    print(json.dumps({"event": "serving", "port": port}), flush=True)
    sys.stdin.read()
    del held


if __name__ == "__main__":
    main()
