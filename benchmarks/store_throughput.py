"""How fast a store answers: ours and torch's TCPStore, each server with its own clients, in turns.

Where the kernel puts two processes that talk to each other decides more than what they do, and it changes its mind.  So
one client has its place: beside its server on one core, or on another one.  And the two kinds take turns, in slices of a
fraction of a second; what counts is the median of the ratios.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.processes import Worker, cpu_s

KINDS = ("torch", "rallypoint")
GOALS = {"get": "at least 0.6", "add": "at least 0.4"}
# How often in a slice, by all clients together: as long as a tenth of a second, about.
OPERATIONS = {"get": 800, "set": 8000, "add": 1200, "compare_set": 1200}
SLICES = 21
# The cores of the server and of its one client.
PLACES = {"beside its server": (0, 0), "on another core": (0, 1)}
CLIENTS = 4
CROWD = 1000
CROWDS = 9
# With torch's look-ups of names, a thousand take minutes where nobody answers them.
LOOKED_UP = 200


class Measured(NamedTuple):
    """A figure of torch's and of ours, in each of many turns."""

    theirs: list[float]
    ours: list[float]

    @property
    def ratios(self) -> list[float]:
        """Ours to theirs, turn by turn."""
        return [ours / theirs for theirs, ours in zip(*self, strict=True)]

    def row(self, shown: Callable[[float], str]) -> tuple[str, ...]:
        """The medians, the median of the ratios, and between what half of the ratios lie."""
        ratios = self.ratios
        low, _, high = quantiles(ratios, n=4) if len(ratios) > 1 else (ratios[0],) * 3
        return (*(shown(median(figures)) for figures in self), f"{median(ratios):.2f}", f"{low:.2f} to {high:.2f}")


COLUMNS = ("torch TCPStore", "rallypoint", "ratio", "half of them", "goal")


def run(console: Console, output: Path) -> None:
    """One client, several clients, and many bare connections."""
    for where, places in PLACES.items():
        console.print(_operations(f"1 client, {where}", 1, places))
    console.print(_operations(f"{CLIENTS} clients", CLIENTS))
    console.print(_many_connections())


def _operations(who: str, clients: int, places: tuple[int, int] | None = None) -> Table:
    title = f"store operations a second, {who}"
    title += "; and what they cost in microseconds of processor time, server + client"
    table = Table("operation", *COLUMNS, "cost, torch", "rallypoint", title=title, title_justify="left")
    with ExitStack() as stack:
        stores = [StoreAndClients(stack, kind, clients) for kind in KINDS]
        if places is not None:
            for store in stores:
                pin(store.server.process.pid, places[0])
                pin(store.clients[0].process.pid, places[1])
        for name, times in OPERATIONS.items():
            for store in stores:
                store.rate(name, times)  # warm
                store.count()
            rates = in_turns([partial(store.rate, name, times) for store in stores], SLICES)
            spent = (f"{server:.0f} + {client:.0f}" for server, client in (store.count() for store in stores))
            table.add_row(name, *rates.row(lambda rate: f"{rate:,.0f}"), GOALS.get(name, ""), *spent)
    return table


def pin(pid: int, place: int) -> None:
    """Let a process, with all its threads, run on one of the cores that there are."""
    cores = sorted(os.sched_getaffinity(0))
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), {cores[place % len(cores)]})


def in_turns(measures: list[Callable[[], float]], turns: int) -> Measured:
    """Measure one after the other, many times; who begins changes."""
    figures: list[list[float]] = [[] for _ in measures]
    for turn in range(turns):
        order = range(len(measures))
        for index in order if turn % 2 else reversed(order):
            figures[index].append(measures[index]())
    return Measured(*figures)


class StoreAndClients:
    """A server and its clients, each in a process of its own."""

    def __init__(self, stack: ExitStack, kind: str, clients: int) -> None:
        self.server = stack.enter_context(Worker("benchmarks.store_server", kind))
        port = str(self.server.hear())
        self.clients = [stack.enter_context(Worker("benchmarks.store_client", kind, port)) for _ in range(clients)]
        for client in self.clients:
            client.hear()
        self._done = 0
        self._spent = (0.0, 0.0)

    def rate(self, operation: str, times: int) -> float:
        """Operations a second of all clients together."""
        each = times // len(self.clients)
        for client in self.clients:
            client.tell(f"{operation} {each}")
        self._done += each * len(self.clients)
        return each * len(self.clients) / max(float(client.hear()) for client in self.clients)

    def count(self) -> tuple[float, float]:
        """Microseconds of processor time that an operation has taken since this was last asked: server, client."""
        spent = cpu_s(self.server.process.pid), sum(cpu_s(client.process.pid) for client in self.clients)
        done, self._done = self._done, 0
        before, self._spent = self._spent, spent
        return (1e6 * (spent[0] - before[0]) / done, 1e6 * (spent[1] - before[1]) / done)


def _many_connections() -> Table:
    table = Table("many bare connections", *COLUMNS, title_justify="left")
    for what, order, connections, turns, goal in (
        ("connect, each name looked up", "connect", LOOKED_UP, 1, "under 1"),
        ("connect, no names looked up", "connect", CROWD, CROWDS, "under 1"),
        ("wake up", "wake", CROWD, CROWDS, "at most 2"),
    ):
        with ExitStack() as stack:
            looks_up = what.endswith("each name looked up")
            groups = [stack.enter_context(_connections(kind, connections, looks_up=looks_up)) for kind in KINDS]
            if not looks_up:
                for group in groups:
                    _obey(group, "connect")  # and warm
            seconds = in_turns([partial(_obey, group, order) for group in groups], turns)
        table.add_row(f"{connections:,}: {what}", *seconds.row(lambda s: f"{s * 1000:.0f} ms"), goal)
    return table


@contextmanager
def _connections(kind: str, connections: int, *, looks_up: bool) -> Iterator[Worker]:
    with (
        Worker("benchmarks.store_server", kind, looks_up=looks_up) as server,
        Worker("benchmarks.store_connections", str(server.hear()), str(connections)) as clients,
    ):
        clients.hear()
        yield clients


def _obey(worker: Worker, order: str) -> float:
    worker.tell(order)
    return float(worker.hear())
