"""How fast a store answers: ours and torch's TCPStore, each server with its own clients, side by side in one run."""

from __future__ import annotations

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
    table = Table(
        f"{CROWD:,} connections", "torch TCPStore", "rallypoint", "ratio", "goal", title="a crowd", title_justify="left"
    )
    crowds = [crowd(kind) for kind in KINDS]
    for what, goal, (theirs, ours) in zip(
        ("connect", "wake up"), ("under 1", "at most 2"), zip(*crowds, strict=True), strict=True
    ):
        table.add_row(what, f"{theirs * 1000:.0f} ms", f"{ours * 1000:.0f} ms", f"{ours / theirs:.2f}", goal)
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


def crowd(kind: str) -> tuple[float, float]:
    """Seconds to connect a crowd at one instant, and to wake all of it; of the latter, the best of several times."""
    server = Worker("benchmarks.store_server", kind)
    with workers(server):
        crew = Worker("benchmarks.waiters", str(server.hear()), str(CROWD))
        with workers(crew):
            crew.hear()
            return _obey(crew, "connect"), min(_obey(crew, "wake") for _ in range(REPEATED))


def _obey(worker: Worker, order: str) -> float:
    worker.tell(order)
    return float(worker.hear())
