"""Answers to questions about a run; reading only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

from rallypoint.core import transition
from rallypoint.core.authority import Authority
from rallypoint.core.model import Run
from rallypoint.server.protocol import (
    PAGE_SIZE,
    AskPeers,
    AskRuns,
    AskStatus,
    Done,
    NodeLine,
    Peer,
    Peers,
    RunLine,
    Runs,
    Status,
)


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
    return Runs(ask.number, len(known), tuple(line(known[name].run, now) for name in names))


def status(ask: AskStatus, authority: Authority | None, now: float, messages: Mapping[str, int]) -> Status | Done:
    """Where a run stands."""
    if authority is None:
        return Done(ask.number, False, f"there is no run {ask.run_id!r}")
    run = authority.run
    nodes = tuple(islice(_nodes(run), PAGE_SIZE))
    return Status(ask.number, line(run, now), str(run.bounds), nodes, dict(messages))


def line(run: Run, now: float) -> RunLine:
    """A run in a line."""
    return RunLine(run.run_id, run.phase.value, run.round, run.live, transition.situation(run, now))


def find(run: Run, name: str) -> str | None:
    """The id of the node with this id or name; the newest where several have the name."""
    return next((node.id for node in reversed(list(_nodes(run))) if name in (node.id, node.name)), None)


def _nodes(run: Run) -> Iterator[NodeLine]:
    members = run.world.members if run.world is not None else ()
    holding = "holds its world" if run.current is not None else "awaited back"
    for rank in sorted(run.active.values()):
        node = members[rank]
        yield NodeLine(node.name, node.id, holding, rank, node.address)
    tables = {"waiting": (run.returned, run.queue), "kept out": (run.paused,), "standing by": (run.spares,)}
    for standing, group in tables.items():
        for table in group:
            for waiter in table.values():
                yield NodeLine(waiter.node.name, waiter.node.id, standing, None, waiter.node.address)
    for node_id in run.finished:
        yield NodeLine(node_id.partition(".")[0], node_id, "finished")
