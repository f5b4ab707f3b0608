"""What the list of faults does not count: who leaves and who comes when, and whose writes arrive after its death."""

from __future__ import annotations

import pytest

from rallypoint.client.view import State
from rallypoint.core.model import Phase
from rallypoint.messages.types import Reason
from rallypoint.record import Record
from simulation import schedule
from simulation.cluster import Cluster
from simulation.commands import perform
from simulation.elected_cluster import ElectedCluster
from simulation.elected_invariants import ElectedInvariants
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


def test_a_giving_up_that_was_acknowledged_is_in_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 17c: where all are needed it ends the run, and whoever gave up is not told before that is recorded."""
    gave_up: dict[VirtualProcess, str] = {}
    recorded: list[str] = []
    leave, heard = VirtualProcess.leave, ElectedInvariants.heard

    def leaves(process: VirtualProcess, reason: Reason) -> None:
        world, bounds = process.view.world, process.elected.bounds
        holds = process.view.state is State.HOLDS and bounds.min == bounds.max and process.leaving is None
        if reason is Reason.GAVE_UP and holds and world is not None:
            gave_up[process] = world.seal_id
        leave(process, reason)

    def is_heard(invariants: ElectedInvariants, process: VirtualProcess) -> None:
        heard(invariants, process)
        seal_id, cluster = gave_up.pop(process, ""), invariants.cluster
        record, run = cluster.register.record(), cluster.serving(process).run
        if not seal_id or record is None or invariants.forgot:
            return
        invariants.require(process.id not in run.active, f"{process.name} gave up, and counts as a member still")
        if run.phase is Phase.CLOSED and run.incarnation == record.incarnation:
            invariants.require(record.closing is not None, f"{process.name} gave up, and the record does not say so")
            recorded.append(seal_id)

    monkeypatch.setattr(VirtualProcess, "leave", leaves)
    monkeypatch.setattr(ElectedInvariants, "heard", is_heard)
    for seed in range(1, 600, 2):
        if schedule.setup(seed)[0].bounds.min == schedule.setup(seed)[0].bounds.max:
            assert schedule.play(seed).failure == ""
    assert recorded, "it has happened"
