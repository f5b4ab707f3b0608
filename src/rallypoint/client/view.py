"""A rendezvous as one node sees it, sans-IO: what it says, what it makes of what it hears, what it answers from memory.

`now` is the node's own monotonic clock, never compared with another's.
"""

from __future__ import annotations

import enum

import msgspec

from rallypoint.messages import notices
from rallypoint.messages.notices import KeepWaiting, NodeNotice, Placed, RunClosed, StandBy
from rallypoint.messages.requests import Announced, Joined, Left, Seat, Standing
from rallypoint.messages.types import MOST_SEEN, Bounds, Ending, Node, Reason, Settings


class State(enum.Enum):
    """Where a node stands, as far as it knows."""

    IDLE = "idle"
    WAITING = "waiting"
    SPARE = "standing by"
    HOLDS = "holds its world"
    BROKEN = "its world is broken"
    FINISHED = "finished"
    CLOSED = "the run is closed"
    REFUSED = "refused"
    FENCED = "out of its world"


_STANDINGS = {State[standing.name]: standing for standing in Standing}
_ASKING = (State.WAITING, State.SPARE)
LONGEST_WHY = 1024


class View(msgspec.Struct, frozen=True, kw_only=True):
    """All that a node knows of its run."""

    node: Node
    bounds: Bounds
    settings: Settings = Settings()
    state: State = State.IDLE
    incarnation: str = ""
    world: Placed | None = None
    round_seen: int = 0
    waiting: int = 0
    why: str = ""
    ending: Ending = Ending.FAILED
    stood_by: bool = False
    deadline: float | None = None
    """When the join times out; None while standing by as a spare (rule 13)."""
    out_since: float | None = None
    was_paused: bool = False
    """Whether its world is broken because this node itself was paused, and not because it was told so."""


def join(view: View, now: float, timeout_s: float) -> tuple[View, Joined]:
    """Ask for a place in the next world; the deadline covers all that happens until then (rule 13)."""
    if view.state in (State.CLOSED, State.REFUSED, State.FENCED, State.FINISHED):
        raise ValueError(f"a node that is {view.state.name} cannot join: {view.why}")
    asking = _change(view, state=State.WAITING, waiting=0, deadline=now + timeout_s, why="the server has not answered")
    return asking, Joined(view.node, view.bounds, view.settings, view.incarnation, _seat(view), view.round_seen)


def announce(view: View) -> Announced | None:
    """What the node says on a new connection and with each heartbeat (rule 14); None where it has nothing to say."""
    standing = _STANDINGS.get(view.state)
    if standing is None:
        return None
    run = (view.node, view.bounds, standing, view.settings, view.incarnation)
    why = view.why[:LONGEST_WHY] if standing is Standing.CLOSED else ""
    return Announced(*run, _seat(view), view.round_seen, view.waiting, view.ending, why)


def leave(view: View, reason: Reason, why: str = "") -> tuple[View, Left]:
    """Leave for good.  Only a node that holds its world can have finished in it."""
    if reason is Reason.FINISHED and view.state is not State.HOLDS:
        reason = Reason.WITHDREW
    after = _change(view, state=State.FINISHED if reason is Reason.FINISHED else State.IDLE, deadline=None)
    return after, Left(view.node.id, reason, view.world.seal_id if view.world else "", why[:LONGEST_WHY])


def hear(view: View, said: NodeNotice) -> View:
    """Take what the server said.  Whatever names another world than the node's own is ignored (rule 6a)."""
    if isinstance(said, Placed):
        return _placed(view, said)
    if isinstance(said, (KeepWaiting, StandBy)):
        return _told_to_wait(view, said)
    if isinstance(said, RunClosed):
        return _told_closed(view, said)
    if isinstance(said, notices.Refused):
        return _change(view, state=State.REFUSED, why=said.why) if view.state in _ASKING else view
    if view.world is None or said.seal_id != view.world.seal_id:
        return view
    if isinstance(said, notices.Fenced):
        fenced = view.state in (State.HOLDS, State.BROKEN, *_ASKING)
        return _change(view, state=State.FENCED, why=said.why) if fenced else view
    if view.state is not State.HOLDS:
        return view
    if isinstance(said, notices.WaitingCount):
        return _change(view, waiting=said.count)
    assert isinstance(said, notices.Broken), f"every notice is handled, {said!r} too"
    return _change(view, state=State.BROKEN, why=said.why)


def reborn(view: View, node: Node) -> View:
    """After being fenced: the same process under a new identity, with no memory of the world it was in (rule 9)."""
    return View(node=node, bounds=view.bounds, settings=view.settings)


def disconnected(view: View, now: float) -> View:
    """The server is away: an outage, not a loss (rule 14)."""
    return view if view.out_since is not None else _change(view, out_since=now)


def connected(view: View) -> View:
    """The server is back."""
    return _change(view, out_since=None)


def passed(view: View, now: float) -> View:
    """Time passed: a node that holds a world stops trusting it when the server is away for too long (rules 9, 14)."""
    if view.state is not State.HOLDS or view.out_since is None or in_outage(view, now):
        return view
    why = f"the server has been away for more than {view.settings.outage_grace_s:.0f} s"
    return _change(view, state=State.BROKEN, why=why)


def paused(view: View, pause_s: float) -> View:
    """This node itself was paused: the others may have gone on without it, so it stops trusting its world (rule 9)."""
    if view.state is not State.HOLDS:
        return view
    return _change(view, state=State.BROKEN, was_paused=True, why=f"this node itself was paused for {pause_s:.1f} s")


def in_outage(view: View, now: float) -> bool:
    """Whether the server is away, and not yet for so long that the node stops trusting its world."""
    return view.out_since is not None and now - view.out_since < view.settings.outage_grace_s


def num_nodes_waiting(view: View, now: float) -> int:
    """Rule 6b, from memory: above 0 when the node should join again; after a pause of its own in an outage too (rule 9)."""
    if in_outage(view, now) and not (view.was_paused and view.state is State.BROKEN):
        return 0
    if view.state in (State.BROKEN, State.FENCED):
        return 1
    return view.waiting if view.state is State.HOLDS else 0


def _placed(view: View, said: Placed) -> View:
    if view.state not in _ASKING:
        return view
    if view.world is not None and (said.incarnation != view.incarnation or said.round <= view.world.round):
        return view
    place = {
        "incarnation": said.incarnation,
        "world": said,
        "round_seen": max(view.round_seen, min(said.round, MOST_SEEN)),
    }
    unset = {"waiting": 0, "stood_by": False, "deadline": None, "was_paused": False}
    return _change(view, state=State.HOLDS, why=said.remark, **place, **unset)


def _told_to_wait(view: View, said: KeepWaiting | StandBy) -> View:
    if view.state not in _ASKING:
        return view
    incarnation = said.incarnation if view.world is None else view.incarnation
    told = _change(
        view, incarnation=incarnation, round_seen=max(view.round_seen, min(said.round, MOST_SEEN)), why=said.why
    )
    return _change(told, state=State.SPARE, stood_by=True, deadline=None) if isinstance(said, StandBy) else told


def _told_closed(view: View, said: RunClosed) -> View:
    ours = said.incarnation == view.incarnation or (view.world is None and view.state in _ASKING)
    if not ours or view.state in (State.IDLE, State.REFUSED, State.FENCED):
        return view
    how = {"incarnation": said.incarnation, "ending": said.ending, "why": said.why}
    return _change(view, state=State.CLOSED, waiting=0, deadline=None, **how)


def _seat(view: View) -> Seat | None:
    world = view.world
    return None if world is None else Seat(world.round, world.seal_id, world.size, world.rank, world.mac)


def _change(view: View, **fields: object) -> View:
    return msgspec.structs.replace(view, **fields)
