"""What an administrator asks for, as an event of the run, and the sentence that answers it."""

from __future__ import annotations

import msgspec

from rallypoint import protocol, wording
from rallypoint.core import evictions
from rallypoint.core.events import Evicted, EvictionLifted
from rallypoint.core.model import Run, kept_out
from rallypoint.errors import RendezvousError
from rallypoint.messages.requests import CloseAsked
from rallypoint.protocol import AskClose, AskEvict, AskLift
from rallypoint.report import node_to_evict, nodes_of
from rallypoint.server.runs import HostedRun


class NotOrderedError(RendezvousError):
    """What was asked for cannot be done; `reason` is the protocol's name for why, if it has one."""

    def __init__(self, why: str, reason: str) -> None:
        super().__init__(why)
        self.reason = reason


class Order(msgspec.Struct, frozen=True):
    """What is to happen to a run, and what the administrator is told when it has."""

    event: CloseAsked | Evicted | EvictionLifted
    answer: str = ""


def order_of(ask: AskClose | AskEvict | AskLift, hosted: HostedRun | None, now: float) -> Order:
    """The order; a RendezvousError says why there is none."""
    if hosted is None:
        raise NotOrderedError(f"there is no run {ask.run_id!r}", protocol.UNKNOWN_RUN)
    closing = hosted.run.closing
    if closing is not None and not isinstance(ask, AskLift):
        raise NotOrderedError(
            f"run {ask.run_id!r} is closed already, as {closing.ending.value}: {closing.why}", protocol.CLOSED
        )
    if isinstance(ask, AskClose):
        return Order(CloseAsked(by="an administrator", why=ask.why or "an administrator closed it"))
    if isinstance(ask, AskLift):
        return _lifting(ask, hosted.run, hosted.time(now))
    return _eviction(ask, hosted.run, hosted.time(now))


def refusal(ask: AskClose | AskEvict | AskLift, error: RendezvousError) -> protocol.Done:
    """The answer where there is no order."""
    return protocol.Done(ask.number, False, str(error), error.reason if isinstance(error, NotOrderedError) else "")


def _eviction(ask: AskEvict, run: Run, now: float) -> Order:
    node = node_to_evict(run, ask.node, now)
    if node is None:
        there = [line.name for line in nodes_of(run) if line.id not in run.finished]
        raise RendezvousError(
            f"there is no node {ask.node!r} in run {ask.run_id!r} (it has {wording.names(there, len(there))})"
        )
    for_s = evictions.lasts_s(run, node) if ask.for_s is None else ask.for_s
    rest = f"is kept out for {wording.duration(for_s)}" if for_s else "may come straight back"
    evicted = Evicted(node, for_s, ask.why)
    return Order(evicted, f"node {ask.node!r} was evicted from run {ask.run_id!r} and {rest}")


def _lifting(ask: AskLift, run: Run, now: float) -> Order:
    out = [eviction.node for eviction in kept_out(run, now)]
    if not any(ask.node in (node.name, node.id) for node in out):
        names = wording.names((node.name for node in out), len(out))
        raise RendezvousError(
            f"node {ask.node!r} is not kept out of run {ask.run_id!r} by an eviction ({names} {wording.are(len(out))})"
        )
    return Order(EvictionLifted(ask.node), f"node {ask.node!r} may join run {ask.run_id!r} again")
