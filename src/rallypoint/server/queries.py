"""Answers to questions about a run; reading only."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from rallypoint.core.authority import Authority
from rallypoint.core.model import Run
from rallypoint.protocol import (
    PAGE_SIZE,
    AskPeers,
    AskRuns,
    AskStatus,
    Done,
    Peer,
    Peers,
    Runs,
    Status,
)
from rallypoint.report import line_of, nodes_of


def peers(ask: AskPeers, run: Run | None) -> Peers | Done:
    """A page of the roster of the world that the node holds."""
    world = run.world if run is not None else None
    if world is None or world.seal_id != ask.seal_id:
        return Done(ask.number, False, "that world is over: join again to learn who is in the next one")
    members = world.members[ask.start : ask.start + PAGE_SIZE]
    page = tuple(Peer(ask.start + i, node.name, node.address, node.topology) for i, node in enumerate(members))
    return Peers(ask.number, world.size, page)


def runs(ask: AskRuns, known: Mapping[str, Authority], now: float) -> Runs:
    """The first runs by name."""
    names = sorted(known)[:PAGE_SIZE]
    return Runs(ask.number, len(known), tuple(line_of(known[name].run, now) for name in names))


def status(ask: AskStatus, authority: Authority | None, now: float, messages: Mapping[str, int]) -> Status | Done:
    """Where a run stands."""
    if authority is None:
        return Done(ask.number, False, f"there is no run {ask.run_id!r}")
    run = authority.run
    nodes = tuple(islice(nodes_of(run), PAGE_SIZE))
    return Status(ask.number, line_of(run, now), str(run.bounds), nodes, dict(messages))
