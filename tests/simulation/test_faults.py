"""What the list of faults does not count: who leaves and who comes when, and whose writes arrive after its death."""

from __future__ import annotations

import pytest

from rallypoint.core.model import Phase
from rallypoint.record import Record
from simulation import schedule
from simulation.cluster import Cluster
from simulation.commands import perform
from simulation.elected_cluster import ElectedCluster
from simulation.virtual_process import VirtualProcess

SEEDS = range(1, 120, 2)
"""Those of clusters that elect their server."""
EXITS = ("finish", "withdraw", "give-up")


def situation_of(cluster: ElectedCluster, name: str) -> str:
    """What a command finds that concerns this process."""
    server = cluster.current
    if server is not None and server.peer.name == name:
        return "it serves"
    return "nobody serves" if server is None else "another one serves"


def coming(cluster: ElectedCluster) -> str:
    """What a node finds that starts now."""
    record, run = cluster.register.record(), cluster.run
    if record is not None and (record.closing is not None or record.last is not None):
        return "after a close"
    if run is not None and run.phase is Phase.RECOVERING:
        return "while the server recovers"
    return "while nobody serves" if record is not None and run is None else "at another time"


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    """What happened in some schedules: a command or an event, and in which situation."""
    found: set[tuple[str, str]] = set()
    committed = ElectedCluster.committed

    def performed(cluster: Cluster, line: str) -> None:
        assert isinstance(cluster, ElectedCluster), "these seeds elect their server"
        verb, *words = line.split()
        if verb == "start":
            found.add((verb, coming(cluster)))
        elif verb in (*EXITS, "mute"):
            found.add((verb, situation_of(cluster, words[0])))
        perform(cluster, line)

    def written(cluster: ElectedCluster, peer: VirtualProcess, before: Record | None, record: Record) -> None:
        if not peer.alive:
            found.add(("write", "after its writer's death"))
        committed(cluster, peer, before, record)

    monkeypatch.setattr("simulation.schedule.perform", performed)
    monkeypatch.setattr(ElectedCluster, "committed", written)
    for seed in SEEDS:
        assert schedule.play(seed).failure == ""
    return found


def test_nodes_come_and_go_and_writes_arrive_in_every_situation(seen: set[tuple[str, str]]) -> None:
    wanted = {("write", "after its writer's death")}
    wanted |= {("start", when) for when in ("after a close", "while the server recovers", "while nobody serves")}
    wanted |= {(exit_, who) for exit_ in EXITS for who in ("it serves", "another one serves", "nobody serves")}
    # A process that hears nothing of others, and one that serves and hears nothing: what is lost has one direction.
    wanted |= {("mute", who) for who in ("it serves", "another one serves")}
    assert wanted - seen == set()
