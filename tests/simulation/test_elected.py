"""Worlds that elect their server: what a round costs the register, and what a schedule of them promises."""

from __future__ import annotations

import pytest

from rallypoint.core.model import Phase
from rallypoint.messages.types import Bounds, Settings
from simulation.commands import FAULTS, perform
from simulation.elected_cluster import ElectedCluster
from simulation.schedule import play, setup

QUICK = Settings(heartbeat_interval_s=60.0, heartbeat_timeout_s=180.0)
"""No beat falls into the time that a world takes to form."""


def formed(nodes: int, *, leases: bool = False) -> ElectedCluster:
    """So many nodes start at once and meet in one world."""
    cluster = ElectedCluster(1, Bounds(nodes, nodes), QUICK, has_leases=leases)
    for number in range(nodes):
        perform(cluster, f"start n{number}")
    perform(cluster, "advance 3")
    assert cluster.run is not None
    assert cluster.run.phase is Phase.SEALED
    return cluster


@pytest.mark.parametrize("leases", [False, True])
def test_a_round_costs_the_register_the_same_few_writes_however_many_nodes_there_are(leases: bool) -> None:
    """Rule 17c: a claim, that it was met, and the seal."""
    few, many = formed(2, leases=leases).register.writes, formed(60, leases=leases).register.writes
    assert max(few, many) <= 3


def test_a_record_does_not_grow_with_the_nodes() -> None:
    few, many = formed(2).register.medium.read(), formed(60).register.medium.read()
    assert few is not None
    assert many is not None
    assert len(many.value) < len(few.value) + 40


def test_half_of_the_seeds_elect_their_server_on_both_kinds_of_register() -> None:
    made = [setup(seed)[0] for seed in range(100)]
    assert sum(each.elected for each in made) == 50
    assert {each.leases for each in made if each.elected} == {True, False}


def test_every_kind_of_fault_happens_within_a_few_hundred_schedules() -> None:
    seen = set()
    for seed in range(60):
        seen |= {kind for kind, count in play(seed).faults.items() if count}
    assert set(FAULTS) - seen == set()
