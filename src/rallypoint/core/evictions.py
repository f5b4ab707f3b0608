"""Evictions (rule 9a): an administrator gives a node up, and it stays out for a while.

A run keeps out any node that comes under the evicted node's name from its address.  Such a node is in no table of the run;
each of its heartbeats is answered with the reason, and the first one after the eviction has ended is a join.
"""

from __future__ import annotations

import msgspec

from rallypoint.core import explain
from rallypoint.core.changes import Notice, Step, change, tell
from rallypoint.core.model import Eviction, Phase, Run, kept_out, takes_part
from rallypoint.messages.notices import Fenced, KeepWaiting
from rallypoint.messages.requests import Announced, Joined, Standing
from rallypoint.messages.types import Node

FIRST_S = 30.0
"""How long the first eviction of a node lasts where nobody says how long; each further one lasts twice as long."""
LONGEST_S = 3600.0


def lasts_s(run: Run, node: Node) -> float:
    """How long the next eviction of a node lasts where nobody says how long."""
    past = run.evictions.get(_key(node))
    return FIRST_S if past is None else min(LONGEST_S, FIRST_S * 2.0 ** min(past.count, 60))


def note(run: Run, node: Node, for_s: float, why: str, now: float) -> tuple[Run, Eviction]:
    """Remember an eviction; a later one of the same node takes the place of an earlier one."""
    past = run.evictions.get(_key(node))
    eviction = Eviction(node, now + for_s, past.count + 1 if past is not None else 1, why)
    return _ending(change(run, evictions=run.evictions.set(_key(node), eviction)), now), eviction


def lift(run: Run, name: str, now: float) -> Step:
    """Let a node in again, by its name or id: its evictions are forgotten."""
    lifted = [eviction.node for eviction in kept_out(run, now) if name in (eviction.node.name, eviction.node.id)]
    for node in lifted:
        run = change(run, evictions=run.evictions.without(_key(node)))
    return Step(_ending(run, now), (), f"an administrator lets {lifted[0].name} in again") if lifted else Step(run)


def notice(run: Run, eviction: Eviction, now: float) -> tuple[Notice, ...]:
    """What an evicted node is told at once; `run` is as it was before."""
    node, world = eviction.node, run.world or run.highest
    if node.id in run.ranks and world is not None:
        return tell(node.id, Fenced(world.seal_id, explain.kept_out(eviction, now)))
    return tell(node.id, _wait(run, eviction, run.incarnation, now)) if eviction.until > now else ()


def against(run: Run, said: Joined | Announced, now: float) -> Eviction | None:
    """The eviction that keeps this node out, if any.  A node of a closed run is to hear that it is closed."""
    node = said.node
    eviction = run.evictions.get(_key(node))
    if eviction is None or eviction.until <= now:
        return None
    if isinstance(said, Announced) and said.standing in (Standing.FINISHED, Standing.CLOSED):
        return None
    if run.phase is Phase.CLOSED and (run.live or (said.incarnation and said.incarnation == run.incarnation)):
        return None
    if said.seat is not None:
        # In a world of this run there may be others of its name; the run knows them, and fences those it does not know.
        return eviction if node.id == eviction.node.id else None
    return None if takes_part(run, node.id) or node.id in run.finished else eviction


def keep_out(run: Run, said: Joined | Announced, eviction: Eviction, now: float) -> Step:
    """Answer a node that is kept out."""
    node, seat = said.node, said.seat
    if seat is not None:
        why = explain.kept_out(eviction, now)
        return Step(run, tell(node.id, Fenced(seat.seal_id, why)), why)
    # The name of an incarnation that is over, or that may not go on, would tie it to that (rules 1, 17f).
    goes_on = run.phase in (Phase.GATHERING, Phase.SEALED) and run.live
    answer = tell(node.id, _wait(run, eviction, run.incarnation if goes_on else said.incarnation, now))
    if node.id == eviction.node.id and not isinstance(said, Joined):
        return Step(run, answer)
    seen = msgspec.structs.replace(eviction, node=node)
    return Step(change(run, evictions=run.evictions.set(_key(node), seen)), answer, explain.kept_out(seen, now))


def _wait(run: Run, eviction: Eviction, incarnation: str, now: float) -> KeepWaiting:
    last_round = run.world.round if run.world is not None else 0
    return KeepWaiting(incarnation, last_round, explain.kept_out(eviction, now), eviction.until - now)


def _key(node: Node) -> tuple[str, str]:
    return node.name, node.address


def _ending(run: Run, now: float) -> Run:
    return change(run, evictions_end=max((eviction.until for eviction in kept_out(run, now)), default=None))
