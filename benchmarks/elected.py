"""What an elected server costs on etcd v3: forming, and losing a node, the server, both, or etcd itself for a while.

An earlier version whose nodes have no record in etcd has a leader instead; where the server is meant, rank 0 is taken.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measurements import GIVE_UP_S, Setup, World, form, idle, lose, pause, split
from benchmarks.node import PLACE
from benchmarks.processes import Worker, descendant
from rallypoint.elastic.etcd_server import EtcdServer
from rallypoint.etcd_client import EtcdClient

BACKEND = "rallypoint:etcd-v3"
AWAY_S = 12.0
OPTIONS = {"join_timeout": GIVE_UP_S}


@contextmanager
def etcd() -> Iterator[str]:
    """One member of etcd: its endpoint."""
    server = EtcdServer()
    server.start()
    try:
        yield server.get_endpoint()
    finally:
        server.stop()


def forming(source: Path, shares: list[int]) -> dict[str, float]:
    """Seconds until the last of so many nodes has its rank, and how often etcd was written to for that."""
    nodes = sum(shares)
    with etcd() as endpoint:
        before = _revision(endpoint)
        took_s = form(Setup(BACKEND, endpoint, (nodes, nodes), OPTIONS, source), shares, GIVE_UP_S)
        return {"": took_s, ": writes": float(_revision(endpoint) - before)}


def idling(source: Path, nodes: int) -> dict[str, float]:
    """The share of a core that etcd uses for nodes that do nothing."""
    with etcd() as endpoint:
        setup = Setup(BACKEND, endpoint, (nodes, nodes), OPTIONS, source)
        return {"": idle(setup, split(nodes), descendant("etcd"))}


def losing(source: Path, nodes: int, *, server: bool, others: int) -> dict[str, float]:
    """Kill the serving node, or not, and so many others."""

    def victims(world: World) -> list[Worker]:
        serves = _server(endpoint, world)
        rest = [process for process in world.processes if process is not serves]
        return [*([serves] if server else []), *rest[:others]]

    with etcd() as endpoint:
        lost = others + server
        setup = Setup(PLACE, f"etcd://{endpoint}", (nodes - lost, nodes), OPTIONS, source)
        found = lose(setup, nodes, victims)
        return {": told": found.told_s, ": new world": found.world_s}


def pausing(source: Path) -> dict[str, float]:
    """Stop the serving node of four, and let it go on."""
    with etcd() as endpoint:
        setup = Setup(PLACE, f"etcd://{endpoint}", (3, 4), OPTIONS, source)
        without, back_s = pause(setup, 4, lambda world: _server(endpoint, world))
        return {": new world": without.world_s, ": back after SIGCONT": back_s}


def standstill(source: Path) -> dict[str, float]:
    """Stop etcd for a while, and kill a node meanwhile: how long after etcd is back the others have a new world."""
    with etcd() as endpoint:
        pid = descendant("etcd")
        away_s = 0.0

        def end(victim: Worker) -> None:
            nonlocal away_s
            began = time.monotonic()
            os.kill(pid, signal.SIGSTOP)
            try:
                victim.kill()
                time.sleep(AWAY_S)
            finally:
                away_s = time.monotonic() - began
                os.kill(pid, signal.SIGCONT)

        def victims(world: World) -> list[Worker]:
            serves = _server(endpoint, world)
            return [process for process in world.processes if process is not serves][:1]

        setup = Setup(PLACE, f"etcd://{endpoint}", (3, 4), OPTIONS, source)
        found = lose(setup, 4, victims, end=end)
        return {": new world": since_back(found.world_s, away_s)}


def since_back(world_s: float, away_s: float) -> float:
    """How long after etcd is back there was a new world, where both are counted from when it was stopped."""
    if world_s < away_s:
        raise RuntimeError(
            f"a world was told {away_s - world_s:.3f} s before etcd was back, and cannot be recorded there"
        )
    return world_s - away_s


def _revision(endpoint: str) -> int:
    with EtcdClient(endpoint) as client:
        return client.range("", prefix=True, count_only=True).revision


def _server(endpoint: str, world: World) -> Worker:
    """The process that serves."""
    with EtcdClient(endpoint) as client:
        found = client.get(f"/rallypoint/{world.run_id}/record")
    if found is None:
        return world.processes[0]
    port = json.loads(found.value)["body"]["claim"]["port"]
    return next(process for process in world.processes if process.listens(port))
