"""Answers to questions about runs; reading only."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from rallypoint.core.model import Run
from rallypoint.protocol import (
    PAGE_SIZE,
    UNKNOWN_RUN,
    Answer,
    Ask,
    AskHeard,
    AskPeers,
    AskRuns,
    AskStatus,
    Done,
    Peer,
    Peers,
    Runs,
    Status,
)
from rallypoint.report import kept_out_of, line_of, nodes_of
from rallypoint.server.runs import HostedRun


def answer(
    ask: Ask, run_id: str, known: Mapping[str, HostedRun], now: float, messages: Mapping[str, int], *, is_node: bool
) -> Answer:
    """The answer to a question; `run_id` is the run of the node that asks."""
    if isinstance(ask, AskPeers):
        hosted = known.get(run_id)
        return peers(ask, hosted.run if hosted is not None else None)
    if isinstance(ask, AskHeard):
        return Done(ask.number, True)
    if is_node:
        return Done(ask.number, False, "a node does not administer its run")
    if isinstance(ask, AskRuns):
        return runs(ask, known, now)
    assert isinstance(ask, AskStatus), "a close and an eviction are no questions"
    return status(ask, known.get(ask.run_id), now, messages)


def peers(ask: AskPeers, run: Run | None) -> Peers | Done:
    """A page of the roster of the world that the node holds."""
    world = run.world if run is not None else None
    if world is None or world.seal_id != ask.seal_id:
        return Done(ask.number, False, "that world is over: join again to learn who is in the next one")
    members = world.members[ask.start : ask.start + PAGE_SIZE]
    page = tuple(Peer(ask.start + i, node.name, node.address, node.topology) for i, node in enumerate(members))
    return Peers(ask.number, world.size, page)


def runs(ask: AskRuns, known: Mapping[str, HostedRun], now: float) -> Runs:
    """The first runs by name."""
    names = sorted(known)[:PAGE_SIZE]
    return Runs(ask.number, len(known), tuple(line_of(known[name].run, known[name].time(now)) for name in names))


def status(ask: AskStatus, hosted: HostedRun | None, now: float, messages: Mapping[str, int]) -> Status | Done:
    """Where a run stands."""
    if hosted is None:
        return Done(ask.number, False, f"there is no run {ask.run_id!r}", UNKNOWN_RUN)
    run, run_now = hosted.run, hosted.time(now)
    nodes = tuple(islice(nodes_of(run), PAGE_SIZE))
    out = tuple(islice(kept_out_of(run, run_now), PAGE_SIZE))
    return Status(ask.number, line_of(run, run_now), str(run.bounds), nodes, dict(messages), out)
