"""One client of a store server, in a process of its own.  Orders: an operation and how often; answers: seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from benchmarks.processes import answer
from benchmarks.store_server import open_store


def main() -> None:
    """Obey."""
    kind, port = sys.argv[1:]
    store = open_store(kind, int(port), is_master=False)
    store.set("key", "value")
    operations: dict[str, Callable[[], object]] = {
        "get": lambda: store.get("key"),
        "set": lambda: store.set("key", "value"),
        "add": lambda: store.add("number", 1),
        "compare_set": lambda: store.compare_set("key", "value", "value"),
    }
    answer("ready")
    for line in sys.stdin:
        name, times = line.split()
        operation = operations[name]
        began = time.monotonic()
        for _ in range(int(times)):
            operation()
        store.check(["key"])  # a set is not answered: without this, only its sending would be measured
        answer(time.monotonic() - began)


if __name__ == "__main__":
    main()
