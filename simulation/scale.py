"""One round with very many nodes: what it costs, in time, messages and bytes a node."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass

from rallypoint.client.view import State
from rallypoint.messages.types import Bounds, Settings
from simulation.cluster import Cluster


@dataclass
class Figures:
    """What a round cost."""

    nodes: int
    seconds: float
    cpu_s: float
    """The part of these seconds in which this process computed: what other processes take does not count."""
    messages_a_node: float
    octets_a_node: float


def form(nodes: int) -> Figures:
    """Let so many nodes come to a fresh server, until each has its rank; all of it in production's code."""
    cluster = Cluster(0, Bounds(nodes, nodes), Settings(heartbeat_interval_s=60.0, heartbeat_timeout_s=300.0))
    gc.collect()
    gc.disable()  # a hundred thousand virtual processes in one real one would be looked through again and again
    started, cpu_started_s = time.perf_counter(), time.process_time()
    for number in range(nodes):
        cluster.start(f"node{number}")
    cluster.advance(1.0)
    seconds, cpu_s = time.perf_counter() - started, time.process_time() - cpu_started_s
    gc.enable()
    placed = [agent.view.world for agent in cluster.agents.values() if agent.view.state is State.HOLDS]
    ranks = sorted(place.rank for place in placed if place is not None)
    if ranks != list(range(nodes)):
        raise AssertionError(f"{len(ranks)} of {nodes} nodes have a rank")
    messages, octets = sum(cluster.messages.values()), sum(cluster.octets.values())
    return Figures(nodes, seconds, cpu_s, messages / nodes, octets / nodes)
