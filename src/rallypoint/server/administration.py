"""Questions about runs, with their answers; and what an administrator asks for, as an event of the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TypeVar

import msgspec

from rallypoint import protocol, wording
from rallypoint.core import evictions
from rallypoint.core.events import Evicted, EvictionLifted
from rallypoint.core.model import Run, kept_out
from rallypoint.errors import RendezvousError
from rallypoint.messages.requests import CloseAsked
from rallypoint.protocol import PAGE_SIZE, Answer, Ask, AskClose, AskEvict, AskLift, Done
from rallypoint.report import kept_out_of, line_of, node_to_evict, nodes_of
from rallypoint.server import run_state
from rallypoint.server.run_state import Output, RunState
from rallypoint.server.runs import HostedRun
from rallypoint.tokens import AccessRole

T = TypeVar("T")

ORDERS = (AskClose, AskEvict, AskLift)
"""What changes a run; everything else only asks."""

PEERS_PAGE_BYTES, ADMIN_PAGE_BYTES = 48 * 1024, 256 * 1024
"""What a page of nodes may take, so that its message is not larger than a node, or an administrator, reads."""


class Order(msgspec.Struct, frozen=True):
    """What is to happen to a run, and what the administrator is told when it has."""

    event: CloseAsked | Evicted | EvictionLifted
    answer: str = ""

    @property
    def evicted(self) -> str:
        """The node that is given up by it, if one is."""
        return self.event.node.id if isinstance(self.event, Evicted) else ""

    def change(self, state: RunState, now: float, mint: str) -> Output:
        """What the order does to the run."""
        return run_state.apply(state, self.event, now, mint)


def refusal(ask: Ask, hello: protocol.Hello | None) -> Done | None:
    """The answer to a caller that may not ask this: a viewer that wants a change, or one whose token is for another run."""
    assert hello is not None, "a question follows a hello"
    if hello.node_id:
        return None
    if isinstance(ask, protocol.AskVerdict):
        return Done(ask.number, False, "only a node reports how its workers failed")
    is_limited = hello.role is AccessRole.VIEWER or (hello.run_id and hello.role is not AccessRole.ADMIN)
    if is_limited and isinstance(ask, ORDERS):
        return Done(ask.number, False, "a viewer looks at runs and changes none: this takes an admin's token")
    if (
        hello.run_id
        and isinstance(ask, (AskClose, AskEvict, AskLift, protocol.AskStatus))
        and ask.run_id != hello.run_id
    ):
        return Done(ask.number, False, f"the token is for the run {hello.run_id!r}, not for {ask.run_id!r}")
    return None


def answer(
    ask: Ask, run_id: str, known: Mapping[str, HostedRun], now: float, messages: Mapping[str, int], *, is_node: bool
) -> Answer:
    """The answer to a question; `run_id` is the run of the node that asks, or the only one that an administrator sees."""
    if isinstance(ask, protocol.AskPeers):
        return _peers(ask, known.get(run_id))
    if isinstance(ask, protocol.AskHeard):
        return Done(ask.number, True)
    if is_node:
        return Done(ask.number, False, "a node does not administer its run")
    if isinstance(ask, protocol.AskRuns):
        names = sorted(known) if not run_id else [name for name in known if name == run_id]
        lines = (line_of(known[name].run, known[name].time(now)) for name in names)
        return protocol.Runs(ask.number, len(names), _page(lines, ADMIN_PAGE_BYTES))
    assert isinstance(ask, protocol.AskStatus), "a close and an eviction are no questions"
    hosted = known.get(ask.run_id)
    if hosted is None:
        return _unknown_run(ask)
    run, run_now = hosted.run, hosted.time(now)
    nodes, out = _page(nodes_of(run), ADMIN_PAGE_BYTES), _page(kept_out_of(run, run_now), ADMIN_PAGE_BYTES)
    return protocol.Status(ask.number, line_of(run, run_now), str(run.bounds), nodes, dict(messages), out)


def _peers(ask: protocol.AskPeers, hosted: HostedRun | None) -> protocol.Peers | Done:
    """A page of the roster of the world that the node holds."""
    world = hosted.run.world if hosted is not None else None
    if world is None or world.seal_id != ask.seal_id:
        return Done(ask.number, False, "that world is over: join again to learn who is in the next one")
    members = enumerate(world.members[ask.start : ask.start + PAGE_SIZE], ask.start)
    page = (protocol.Peer(rank, node.name, node.address, node.topology) for rank, node in members)
    return protocol.Peers(ask.number, world.size, _page(page, PEERS_PAGE_BYTES))


def _page(lines: Iterable[T], room: int) -> tuple[T, ...]:
    """The first lines, as many as a message has room for; at least one, if there is one."""
    page: list[T] = []
    for line in islice(lines, PAGE_SIZE):
        room -= len(msgspec.json.encode(line)) + 1
        if room < 0 and page:
            break
        page.append(line)
    return tuple(page)


def order_of(ask: AskClose | AskEvict | AskLift, hosted: HostedRun | None, now: float) -> Order | Done:
    """The order; or the answer that says why there is none."""
    if hosted is None:
        return _unknown_run(ask)
    closing = hosted.run.closing
    if closing is not None and not isinstance(ask, AskLift):
        why = f"run {ask.run_id!r} is closed already, as {closing.ending.value}: {closing.why}"
        return Done(ask.number, False, why, protocol.CLOSED)
    if isinstance(ask, AskClose):
        return Order(CloseAsked(by="an administrator", why=ask.why or "an administrator closed it"))
    try:
        if isinstance(ask, AskLift):
            return _lifting(ask, hosted.run, hosted.time(now))
        return _eviction(ask, hosted.run, hosted.time(now))
    except RendezvousError as exc:
        return Done(ask.number, False, str(exc))


def _unknown_run(ask: protocol.AskStatus | AskClose | AskEvict | AskLift) -> Done:
    return Done(ask.number, False, f"there is no run {ask.run_id!r}", protocol.UNKNOWN_RUN)


def _eviction(ask: AskEvict, run: Run, now: float) -> Order:
    node = node_to_evict(run, ask.node, now)
    if node is None:
        there = [line.name for line in nodes_of(run) if line.id not in run.finished]
        known = wording.names(there, len(there))
        raise RendezvousError(f"there is no node {ask.node!r} in run {ask.run_id!r} (it has {known})")
    for_s = evictions.lasts_s(run, node) if ask.for_s is None else ask.for_s
    rest = f"is kept out for {wording.duration(for_s)}" if for_s else "may come straight back"
    return Order(Evicted(node, for_s, ask.why), f"node {ask.node!r} was evicted from run {ask.run_id!r} and {rest}")


def _lifting(ask: AskLift, run: Run, now: float) -> Order:
    out = [eviction.node for eviction in kept_out(run, now)]
    if not any(ask.node in (node.name, node.id) for node in out):
        are = f"{wording.names((node.name for node in out), len(out))} {wording.are(len(out))}"
        raise RendezvousError(f"node {ask.node!r} is not kept out of run {ask.run_id!r} by an eviction ({are})")
    return Order(EvictionLifted(ask.node), f"node {ask.node!r} may join run {ask.run_id!r} again")
