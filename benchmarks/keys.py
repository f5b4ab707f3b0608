"""How fast a store answers: ours and torch's TCPStore, each server with its own clients, side by side in one run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.processes import Worker, workers

KINDS = ("torch", "rallypoint")
OPERATIONS = ("get", "set", "add", "compare_set")
GOALS = {"get": "at least 0.6", "add": "at least 0.4"}
TIMES = 5000
REPEATED = 5
CLIENTS = 4
CROWD = 1000
# With torch's look-ups of names, a thousand take minutes where nobody answers them.
LOOKED_UP = 200


def run(console: Console, output: Path) -> None:
    """One client, several clients, and a crowd of bare connections."""
    for clients in (1, CLIENTS):
        title = f"store operations a second, {clients} client{'s' if clients > 1 else ''}"
        table = Table("operation", "torch TCPStore", "rallypoint", "ratio", "goal", title=title, title_justify="left")
        rates = {kind: operations_a_second(kind, clients) for kind in KINDS}
        for name in OPERATIONS:
            theirs, ours = (rates[kind][name] for kind in KINDS)
            goal = GOALS.get(name, "") if clients == 1 else ""
            table.add_row(name, f"{theirs:,.0f}", f"{ours:,.0f}", f"{ours / theirs:.2f}", goal)
        console.print(table)
    table = Table("a crowd of bare connections", "torch TCPStore", "rallypoint", "ratio", "goal", title_justify="left")
    for what, connections, goal, looks_up in (
        ("connect", LOOKED_UP, "under 1", True),
        ("connect, look-ups of names switched off", CROWD, "", False),
        ("wake up", CROWD, "at most 2", False),
    ):
        measure = wake_up if what == "wake up" else connect
        theirs, ours = (measure(kind, connections, looks_up=looks_up) for kind in KINDS)
        table.add_row(
            f"{connections:,}: {what}", f"{theirs * 1000:.0f} ms", f"{ours * 1000:.0f} ms", f"{ours / theirs:.2f}", goal
        )
    console.print(table)


def operations_a_second(kind: str, clients: int) -> dict[str, float]:
    """All clients together, the best of several times."""
    server = Worker("benchmarks.store_server", kind)
    with workers(server):
        port = server.hear()
        crew = [Worker("benchmarks.store_client", kind, str(port)) for _ in range(clients)]
        with workers(*crew):
            for client in crew:
                client.hear()
            return {name: max(_rate(crew, name) for _ in range(REPEATED)) for name in OPERATIONS}


def _rate(crew: list[Worker], operation: str) -> float:
    for client in crew:
        client.tell(f"{operation} {TIMES}")
    return len(crew) * TIMES / max(float(client.hear()) for client in crew)


def connect(kind: str, connections: int, *, looks_up: bool) -> float:
    """Seconds to connect a crowd at one instant, until the last one has had its first answer."""
    with _crowd(kind, connections, looks_up=looks_up) as crew:
        return _obey(crew, "connect")


def wake_up(kind: str, connections: int, *, looks_up: bool) -> float:
    """Seconds to wake a crowd that waits for one key; the best of several times."""
    with _crowd(kind, connections, looks_up=looks_up) as crew:
        _obey(crew, "connect")
        return min(_obey(crew, "wake") for _ in range(REPEATED))


@contextmanager
def _crowd(kind: str, connections: int, *, looks_up: bool) -> Iterator[Worker]:
    server = Worker("benchmarks.store_server", kind, looks_up=looks_up)
    with workers(server):
        crew = Worker("benchmarks.waiters", str(server.hear()), str(connections))
        with workers(crew):
            crew.hear()
            yield crew


def _obey(worker: Worker, order: str) -> float:
    worker.tell(order)
    return float(worker.hear())
