"""What must be true in every virtual world, checked with each step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from rallypoint.client.view import State, View
from rallypoint.core.events import Lost
from rallypoint.core.model import Phase, Run
from rallypoint.messages.requests import Announced, Joined, Left, NodeMessage, Standing
from rallypoint.messages.types import Reason
from rallypoint.server.clock import LOOK_S
from simulation.check import complaints
from simulation.node_invariants import NodeInvariants

if TYPE_CHECKING:
    from simulation.agent import Agent
    from simulation.cluster import Cluster


FEW = 64
"""In worlds of more nodes the whole run is checked only when its phase changes, so that a step stays cheap."""


class InvariantChecker(Protocol):
    """What every kind of world has: something that is told what happens, and says when it must not have happened."""

    rosters: dict[str, tuple[str, int, tuple[str, ...]]]

    def require(self, holds: bool, otherwise: str) -> None:
        """Say when something happened that must not."""

    def fixed_server_started(self) -> None:
        """A new life of the server."""

    def fixed_server_acted(self, before: Run, run: Run, message: NodeMessage | None) -> None:
        """The server took an input."""

    def check_loss(self, loss: Lost) -> None:
        """The server gave a node up."""

    def agent_changed(self, agent: Agent, before: View) -> None:
        """A node's view changed."""

    def disturbed(self, gone: str = "") -> None:
        """Something happens to the nodes; `gone` names a process that only dies."""

    def check_rest(self, quiet_s: float) -> None:
        """Long after the last fault everybody is where they should be."""


class Invariants(NodeInvariants):
    """What is remembered of a world in order to judge the next step."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.cluster = cluster
        self.ended_worlds: set[str] = set()
        self.closed: set[str] = set()
        self.round_floor = 0
        self.protected: str | None = None
        self.last_seal = 0.0

    # When the server acts --------------------------------------------------------------------------------------

    def fixed_server_started(self) -> None:
        """A new life of the server: what it cannot know cannot be held against it."""
        if not self.cluster.durable:
            self.closed.clear()
            self.round_floor = 0
        self.protected = self._whole_world()

    def disturbed(self, gone: str = "") -> None:
        """Something happens to the nodes: a world need not survive the server's restart any more."""
        self.protected = None

    def fixed_server_acted(self, before: Run, run: Run, message: NodeMessage | None) -> None:
        """Check one step of the server."""
        if isinstance(message, (Joined, Announced)) and message.seat is not None:
            self.round_floor = max(self.round_floor, message.seat.round if self._ours(message, run) else 0)
        if isinstance(message, Announced) and message.standing is Standing.CLOSED and message.incarnation:
            self._heard_closed(message, run)
        if not run.incarnation and not run.round:
            self.round_floor = 0  # nobody was left, and the run was forgotten
        if run is before:
            return
        if run.live <= FEW or run.phase is not before.phase:
            wrong = next(complaints(run), None)
            self.require(wrong is None, f"a transition left a damaged run: {wrong}")
        self._closed_stays_closed(before, run)
        if run.world is not None and (before.world is None or before.world.seal_id != run.world.seal_id):
            self._new_world(before, run)
        if before.current is not None and run.current is not before.current:
            self._world_ended(before, run, message)

    def _new_world(self, before: Run, run: Run) -> None:
        world = run.world
        assert world is not None
        roster = (world.incarnation, world.round, tuple(node.id for node in world.members))
        recovers = before.phase is Phase.RECOVERING or not before.incarnation
        if recovers and world.seal_id in self.rosters:
            # The server knew nothing of the run, and was told of this world by its members.
            known = self.rosters[world.seal_id]
            finished = {world.members[rank].id for node_id, rank in run.finished.items() if node_id in run.ranks}
            unheard = sum(a != b and b not in finished for a, b in zip(known[2], roster[2], strict=True))
            self.require(
                known[:2] == roster[:2] and (run.current is None or not unheard),
                f"a recovered world differs from the sealed one: {known} and {roster}",
            )
            if run.current is None:
                self.ended_worlds.add(world.seal_id)
            return
        self.require(world.seal_id not in self.rosters, f"seal id {world.seal_id} was used twice")
        self.require(len(set(roster[2])) == world.size, f"a node has two ranks in round {world.round}")
        self.require(
            run.bounds.min <= world.size <= run.bounds.max,
            f"a world of {world.size} was sealed where {run.bounds} are asked for",
        )
        self.require(world.round > self.round_floor, f"round {world.round} was used again")
        self.round_floor = world.round
        self.rosters[world.seal_id] = roster
        self.last_seal = self.cluster.time

    def _world_ended(self, before: Run, run: Run, message: NodeMessage | None) -> None:
        ended = before.current
        assert ended is not None
        self.ended_worlds.add(ended.seal_id)
        if isinstance(message, Left) and message.reason is Reason.FINISHED and message.seal_id == ended.seal_id:
            self.require(run.phase is Phase.CLOSED, f"{message.node_id} finished, and the world broke")
        if isinstance(message, Joined) and message.incarnation == ended.incarnation:
            asked = message.seat.seal_id if message.seat else ""
            self.require(asked == ended.seal_id, f"a join after {asked!r} broke the world {ended.seal_id}")

    def _closed_stays_closed(self, before: Run, run: Run) -> None:
        if run.phase is Phase.CLOSED and run.incarnation:
            self.closed.add(run.incarnation)
        elif run.incarnation and run.incarnation != before.incarnation:
            self.require(run.incarnation not in self.closed, f"closed incarnation {run.incarnation} came back")
        self.require(
            run.phase is Phase.CLOSED or run.incarnation not in self.closed,
            f"incarnation {run.incarnation} is open again after it was closed",
        )

    def _heard_closed(self, message: Announced, run: Run) -> None:
        self.closed.add(message.incarnation)
        self.require(
            run.incarnation != message.incarnation or run.phase is Phase.CLOSED,
            f"{message.node.name} knows that {message.incarnation} is closed, but the server goes on",
        )

    # When a node's view changes -----------------------------------------------------------------------------------

    def agent_changed(self, agent: Agent, before: View) -> None:
        """Check one step of a node."""
        view = agent.view
        if view.world is not None and view.world is not before.world:
            self.node_got_world(agent, before)
        if before.state is not State.HOLDS or view.world is None or view.out_since is not None:
            return
        if view.state is State.FENCED:
            self.require(
                view.world.seal_id != self.protected or self._max_know_of_no_world(view.world.seal_id),
                f"{agent.name} was put out, although only the server had restarted: {view.why}",
            )
        if view.state is State.BROKEN and not view.why.startswith("this node itself"):
            self.require(
                self._is_over(view.world.seal_id),
                f"{agent.name} was told that {view.world.seal_id} is broken, but it never broke",
            )

    # When faults have ended ---------------------------------------------------------------------------------------

    def check_rest(self, quiet_s: float) -> None:
        """Long after the last fault everybody is where they should be, and stays there."""
        world, run = self.cluster, self.cluster.run
        assert run is not None
        self.require(run.phase is not Phase.RECOVERING, "the server is still recovering")
        self.require(
            world.time - self.last_seal >= quiet_s,
            f"a world was sealed {world.time - self.last_seal:.1f} s ago, long after the last fault",
        )
        alive = [agent for agent in world.agents.values() if agent.alive]
        self.check_nodes_at_rest(alive, run)

    # Small things -------------------------------------------------------------------------------------------------

    def check_loss(self, loss: Lost) -> None:
        """The server gave a node up: one whose newest connection is up must have been silent for long."""
        world, agent = self.cluster, self.cluster.find(loss.node_id)
        if agent is None or agent.id != loss.node_id or not agent.alive or agent.stopped or not agent.session.connected:
            return
        if agent.view.state in (State.IDLE, State.REFUSED, State.FENCED):
            return
        heard_s = world.awake_time - world.arrived.get(agent.connection, float("-inf"))
        # A stall of less than two looks is not told from an ordinary delay, and there may be two of them.
        self.require(
            heard_s > world.shortest_timeout_s - 4 * LOOK_S,
            f"{agent.name} was given up although it was heard on its newest connection {heard_s:.2f} s ago: {loss.why}",
        )

    def _whole_world(self) -> str | None:
        """The seal id of the world that all of its members hold, undisturbed."""
        agents = [a for a in self.cluster.agents.values() if a.alive]
        held = {a.view.world.seal_id for a in agents if a.view.world and a.view.state is State.HOLDS and not a.stopping}
        if len(held) != 1 or not self.cluster.network.reliable or any(a.stopped for a in agents):
            return None
        seal_id = held.pop()
        ids = {a.id for a in agents if a.view.state is State.HOLDS and not a.stopping}
        whole = set(self.rosters[seal_id][2]) == ids and seal_id not in self.ended_worlds
        return seal_id if whole and not self._may_be_passed_over(seal_id) else None

    def _may_be_passed_over(self, seal_id: str) -> bool:
        """Whether all of an older world are here: a server without a record that hears them first goes on from it (rule 14)."""
        speakers: dict[str, set[str]] = {}
        for agent in self.cluster.agents.values():
            if agent.alive and agent.view.world is not None and agent.view.world.seal_id != seal_id:
                speakers.setdefault(agent.view.world.seal_id, set()).add(agent.id)
        return not self.cluster.durable and any(set(self.rosters[old][2]) <= ids for old, ids in speakers.items())

    def _is_over(self, seal_id: str) -> bool:
        """Whether a world has ended, or another came after it, or a server that forgot heard of a higher one."""
        recovering = self.cluster.run is None or self.cluster.run.phase is Phase.RECOVERING
        later = seal_id != next(reversed(self.rosters)) or self._has_rival(seal_id)
        return seal_id in self.ended_worlds or later or recovering

    def _has_rival(self, seal_id: str) -> bool:
        """Whether another world has the same round number: a server without a record takes the one that it hears of first."""
        number = self.rosters[seal_id][1]
        rounds = [round for other, (_, round, _) in self.rosters.items() if other != seal_id]
        return not self.cluster.durable and max(rounds, default=0) >= number

    def _max_know_of_no_world(self, seal_id: str) -> bool:
        """The one way past the hold (rule 14): max nodes that never heard of a world."""
        others = [a for a in self.cluster.agents.values() if a.alive and a.id not in self.rosters[seal_id][2]]
        return len(others) >= self.cluster.bounds.max

    @staticmethod
    def _ours(message: Joined | Announced, run: Run) -> bool:
        return not run.incarnation or message.incarnation == run.incarnation or not message.incarnation
