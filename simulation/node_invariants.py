"""What must be true of the nodes of every virtual world, whoever serves them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rallypoint.client.view import State, View
from rallypoint.core.model import Phase, Run, find_waiter
from rallypoint.messages.types import Role

if TYPE_CHECKING:
    from simulation.agent import Agent
    from simulation.cluster import Cluster


class BrokenInvariantError(AssertionError):
    """Something happened that must never happen."""


class NodeInvariants:
    """The worlds that were sealed, and what nodes make of them."""

    def __init__(self, watched: Cluster) -> None:
        self.watched = watched
        self.rosters: dict[str, tuple[str, int, tuple[str, ...]]] = {}
        """Incarnation, round and members of each world, by seal id."""

    def node_got_world(self, agent: Agent, before: View) -> None:
        """A node has a place: it is the one that was sealed for it, and above the one that it had."""
        place = agent.view.world
        assert place is not None, "it has a place"
        roster = self.rosters.get(place.seal_id)
        self.require(roster is not None, f"{agent.name} holds a world that nobody sealed: {place}")
        assert roster is not None, "checked before"
        incarnation, number, members = roster
        self.require(
            (incarnation, number, len(members)) == (place.incarnation, place.round, place.size),
            f"{agent.name} knows its world by another name: {place}",
        )
        self.require(members[place.rank] == agent.id, f"{agent.name} has the rank of {members[place.rank]}: {place}")
        self.require(place.store_secret == f"the secret of {place.store}", f"{agent.name} has no use for {place}")
        old = before.world
        if old is not None and old.incarnation == place.incarnation and before.node.id == agent.id:
            self.require(place.round > old.round, f"{agent.name} went back from round {old.round} to {place.round}")

    def check_nodes_at_rest(self, alive: Sequence[Agent], run: Run) -> None:
        """Every node holds the current world or waits for a reason, and no node waits in vain."""
        for agent in alive:
            self._check_at_rest(agent, run)
        members = [a for a in alive if a.view.node.role is Role.MEMBER and a.view.bounds == run.bounds]
        if run.phase is Phase.GATHERING and not run.ending_started:
            able = [a for a in members if a.id not in run.paused]
            self.require(
                len(able) < run.bounds.min,
                f"{len(able)} nodes wait although {run.bounds.min} suffice: {self.watched.situation()}",
            )
        if run.current is not None and not run.ending_started:
            idle = [a.name for a in members if a.id in run.queue]
            self.require(
                not idle or run.current.size == run.bounds.max,
                f"{idle} wait although there is room: {self.watched.situation()}",
            )

    def _check_at_rest(self, agent: Agent, run: Run) -> None:
        view, current = agent.view, run.current
        if view.state is State.HOLDS:
            self.require(
                current is not None and view.world is not None and view.world.seal_id == current.seal_id,
                f"{agent.name} holds {view.world}, which is not current: {self.watched.situation()}",
            )
            self.require(agent.id in run.active, f"{agent.name} holds a world that it was given up from")
            return
        self.require(
            view.state in (State.WAITING, State.SPARE),
            f"{agent.name} is neither in the world nor waiting, but {view.state.value}",
        )
        self.require(bool(view.why), f"{agent.name} waits without a reason")
        self.require(find_waiter(run, agent.id) is not None, f"{agent.name} waits, and the server does not know")

    def require(self, holds: bool, otherwise: str) -> None:
        """Say at which time something happened that must not."""
        if not holds:
            raise BrokenInvariantError(f"at {self.watched.time:.3f} s: {otherwise}")
