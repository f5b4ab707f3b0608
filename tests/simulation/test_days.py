"""A day of heartbeats in virtual time: a run in which nothing happens stays as it is, and takes no more than in its first hours."""

from __future__ import annotations

import gc
import sys

import pytest

from rallypoint.client.view import State
from rallypoint.messages.types import Bounds, Role, Settings
from simulation.cluster import Cluster

HOUR_S = 3600.0


def blocks() -> int:
    """How many pieces of memory Python has given out, to whatever."""
    gc.collect()
    return sys.getallocatedblocks()


@pytest.mark.parametrize(("hours", "nodes"), [(2, 4), pytest.param(24, 8, marks=pytest.mark.soak)])
def test_a_run_in_which_nothing_happens_stays_as_it_is(hours: int, nodes: int) -> None:
    """Although clocks go at different speeds, somebody stands by, and delays vary."""
    cluster = Cluster(7, Bounds(2, nodes), Settings())
    for number in range(nodes):
        cluster.start(f"node{number}", rate=1.0 + 0.0005 * (number - nodes / 2))
    cluster.start("spare", role=Role.SPARE)
    cluster.advance(60.0)
    members = [agent for agent in cluster.agents.values() if agent.name != "spare"]
    places = [agent.view.world for agent in members]
    assert None not in places
    joins = cluster.events["Joined"]
    cluster.advance(hours * HOUR_S / 10)
    beats, taken = cluster.events["heartbeat"], blocks()
    cluster.advance(hours * HOUR_S * 9 / 10)
    assert [agent.view.world for agent in members] == places
    assert {agent.view.state for agent in members} == {State.HOLDS}
    assert cluster.agents["spare"].view.state is State.SPARE
    assert cluster.events["Joined"] == joins
    assert cluster.events["heartbeat"] - beats > nodes * hours * HOUR_S * 9 / 10 / Settings().heartbeat_timeout_s
    assert blocks() < taken * 1.01
