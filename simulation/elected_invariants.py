"""What must be true in every virtual world that elects its server (rule 17), checked with each step."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rallypoint.client.view import State, View
from rallypoint.core.events import Lost
from rallypoint.core.model import Phase, Run
from rallypoint.location.held_claim import OTHERS_FIRST_S
from rallypoint.messages.requests import NodeMessage
from rallypoint.messages.types import Reason, RecordedWorld
from rallypoint.record import Record
from rallypoint.server.effects import Effects, RunChange
from simulation.check import complaints
from simulation.node_invariants import NodeInvariants

if TYPE_CHECKING:
    from simulation.agent import Agent
    from simulation.elected_cluster import ElectedCluster
    from simulation.virtual_process import VirtualProcess
from simulation.virtual_server import VirtualServer

PROMPT_S = 0.01
"""With longer delays than this, a node may be too late for the hold of a server that takes over."""
CLAIMS_A_FAULT = 8
"""How many claims a fault may lead to; each of at most twelve nodes may try once or twice."""


class ElectedInvariants(NodeInvariants):
    """What is remembered of a world in order to judge the next step."""

    def __init__(self, cluster: ElectedCluster) -> None:
        super().__init__(cluster)
        self.cluster = cluster
        self.recorded: set[str] = set()
        """Seal ids that were ever in the register."""
        self.closed: set[str] = set()
        """Incarnations that some node was told are closed."""
        self.finished: dict[str, set[int]] = {}
        """Ranks whose finishing was acknowledged, by seal id."""
        self.broken: set[str] = set()
        """Worlds that a server said are over."""
        self.epoch = 0
        self.forgot = False
        self.protected = ""
        self.last_seal = 0.0
        self.claims = 0
        self.faults = 1
        self.disturbed_at = 0.0
        self._grew_at = 0.0
        self._counted: set[str] = set()
        self._epochs: dict[str, tuple[str, int]] = {}
        self._written: dict[str, float] = {}
        self._refused: dict[str, str] = {}
        """The claim that had refused a process when it sent its own claim, which may arrive much later."""
        self._taken_over: dict[str, tuple[Record, RecordedWorld]] = {}

    # Told by the world --------------------------------------------------------------------------------------------

    def fixed_server_started(self) -> None:
        """There is no server of the world's own."""

    def fixed_server_acted(self, before: Run, run: Run, message: NodeMessage | None) -> None:
        """There is no server of the world's own."""

    def disturbed(self, gone: str = "") -> None:
        """Something happens to the nodes, the network or the register; `gone` names a process that only dies.

        Where that process has no part in the world any more, all others keep theirs, also if it was the server.
        """
        self.protected = self._whole_without(gone) if gone else ""
        self.faults += 1
        self.disturbed_at = self.cluster.time

    def newcomer(self) -> None:
        """A process starts: the world may end to let it in."""
        self.protected = ""
        self._grew_at = self.cluster.time

    def register_emptied(self) -> None:
        """The register forgot: nothing that depends on its memory can be promised."""
        self.forgot = True
        self.epoch = 0
        self._epochs.clear()
        self.closed.clear()
        self.finished.clear()

    # The register -------------------------------------------------------------------------------------------------

    def committed(self, peer: VirtualProcess, before: Record | None, record: Record) -> None:
        """Check a write that the register took."""
        if record.claim is not None and (before is None or before.claim is None or before.claim.id != record.claim.id):
            self._claimed(peer, before)
        if record.claim is not None:
            self._written[record.claim.id] = self.cluster.time
        self.require(record.epoch >= self.epoch, f"epoch {record.epoch} came after epoch {self.epoch}")
        self.epoch = record.epoch
        if before is not None:
            self.require(record.round >= before.round, f"round {record.round} came after round {before.round}")
            again = record.incarnation == before.incarnation and record.epoch == before.epoch
            if again and before.claim is not None and record.claim is not None:
                self.require(before.claim.id == record.claim.id, f"two servers have epoch {record.epoch}")
        if record.world is not None:
            self._world_recorded(before, record, record.world)
        if record.incarnation in self.closed and not self.forgot:
            self.require(record.closing is not None, f"incarnation {record.incarnation} is open again")
        moved_on = before is not None and before.incarnation != record.incarnation and not self.forgot
        if before is not None and moved_on and before.incarnation in self.closed:
            named = record.last is not None and record.last.incarnation == before.incarnation
            self.require(named, f"the record forgot how incarnation {before.incarnation} ended")

    def tries_to_claim(self, peer: VirtualProcess) -> None:
        """A process writes a claim."""
        self._refused[peer.process] = peer.election.refused_by
        self.require(
            peer.leaving is None or not peer.session.is_heard, f"{peer.name} claims although all that it said was heard"
        )

    def _claimed(self, peer: VirtualProcess, before: Record | None) -> None:
        self.claims += 1
        self.require(
            self.claims <= CLAIMS_A_FAULT * self.faults + 2 * len(self.cluster.agents),
            f"{self.claims} claims for {self.faults} faults",
        )
        old = before.claim if before is not None else None
        if old is None or before is None:
            return
        rested_s = self.cluster.time - self._written.get(old.id, 0.0)
        self.require(
            rested_s > 0.9 * old.rest_s
            or self.cluster.register.has_leases
            or self.forgot
            or self._refused.get(peer.process) == old.id
            or before.epoch > before.met,
            f"{peer.name} took a claim that was renewed {rested_s:.1f} s ago and may rest for {old.rest_s} s",
        )
        server = next((s for s in self.cluster.servers if s.claim.id == old.id), None)
        if server is None or not server.alive or server.peer.stopped:
            return
        quiet_s = self.cluster.time - self.disturbed_at
        self.require(
            quiet_s < 6 * self.cluster.longest_timeout_s,
            f"{peer.name} took the claim of {server.peer.name}, which lives, {quiet_s:.1f} s after the last fault",
        )

    def _world_recorded(self, before: Record | None, record: Record, world: RecordedWorld) -> None:
        self.recorded.add(world.seal_id)
        ranks = set(world.finished_ranks())
        missing = self.finished.get(world.seal_id, set()) - ranks
        self.require(
            not missing or record.closing is not None,
            f"ranks {sorted(missing)} of {world.seal_id} were told that their finishing counts, and the record forgot it",
        )
        old = before.world if before is not None else None
        if old is not None and before is not None and before.incarnation == record.incarnation:
            if old.seal_id == world.seal_id:
                kept = ranks >= set(old.finished_ranks()) or self.forgot
                self.require(kept, f"a finish in {world.seal_id} was taken back")
            else:
                grows = world.round > old.round or self.forgot
                self.require(grows, f"round {world.round} was recorded after round {old.round}")

    # Servers ------------------------------------------------------------------------------------------------------

    def parted(self, peer: VirtualProcess, others: list[VirtualProcess]) -> None:
        """A process is cut off from others: if it serves most of them, they have another server soon (rule 17e)."""
        world, server, settings = self.cluster, self.cluster.current, self.cluster.settings
        calm = world.register.is_reliable and world.network.reliable and not (world.hidden or world.refusing)
        if (
            server is None
            or server.peer is not peer
            or server.run.phase in (Phase.RECOVERING, Phase.CLOSED)
            or not calm
        ):
            return
        heard = server.coordinator.runs.known[world.run_id].state.life.signs
        cut_off = [other for other in others if other.id in heard and other.alive and not other.stopped]
        if len(cut_off) < 2 or 2 * len(cut_off) <= len(heard):
            return
        bound_s = 2 * world.longest_timeout_s + settings.reconnect_backoff_s + OTHERS_FIRST_S
        world.virtual_time.after(bound_s, partial(self._must_be_served, cut_off, self.disturbed_at, bound_s))

    def _must_be_served(self, cut_off: list[VirtualProcess], since: float, bound_s: float) -> None:
        here = [peer for peer in cut_off if peer.alive and peer.leaving is None]
        if self.disturbed_at != since or not any(peer.election_may_claim for peer in here):
            return
        if len(here) < len(cut_off):
            # One of them left meanwhile.  If it served them, the process that they cannot reach may have claimed after
            # it, and they may take that claim once they have tried it in vain (rule 17a).
            self.cluster.virtual_time.after(bound_s, partial(self._must_be_served, here, since, bound_s))
            return
        server = self.cluster.current
        for peer in here:
            served = peer.session.welcomed and self.cluster.serving(peer) is server
            self.require(served, f"{peer.name} cannot reach its server, and has no other: {peer.election.why}")

    def server_started(self, server: VirtualServer) -> None:
        """A process serves: what it starts with is what the record says, and nothing else."""
        record = server.record
        self.protected = self.protected or self._whole_world(record)
        if record.world is not None and record.closing is None:
            self._taken_over[server.claim.id] = (record, record.world)
        run = server.run
        self.require(run.incarnation == record.incarnation, "a server starts in the recorded incarnation")
        self.require(not run.active and not run.queue and not run.spares, "a server starts with an empty memory")

    def server_stopped(self, server: VirtualServer) -> None:
        """A process serves no longer."""
        self._taken_over.pop(server.claim.id, None)

    def server_acted(self, server: VirtualServer, effects: Effects) -> None:
        """Check one step of a server."""
        run = server.run
        paused_s, resumed_at = server.peer.last_pause
        unsure = paused_s > server.claim.rest_s and server.renewed_at < resumed_at
        self.require(
            not (unsure and effects.happenings),
            f"{server.peer.name} was paused for {paused_s:.1f} s and goes on before it knows that its claim stands",
        )
        for happening in effects.happenings:
            before, after = happening.before, happening.after
            if after is not before:
                wrong = next(complaints(after), None)
                self.require(wrong is None, f"a transition left a damaged run: {wrong}")
            if after.world is not None and after.phase is Phase.SEALED:
                self._sealed(before, after)
            if before.current is not None and after.current is None:
                self.broken.add(before.current.seal_id)
            if before.phase is Phase.RECOVERING and after.phase is not Phase.RECOVERING:
                self._recovered(server, happening)
        if run.phase is Phase.CLOSED and run.incarnation:
            self.closed.add(run.incarnation)

    def _sealed(self, before: Run, run: Run) -> None:
        world = run.world
        assert world is not None, "a sealed run has a world"
        if before.world is not None and before.world.seal_id == world.seal_id:
            return
        roster = (world.incarnation, world.round, tuple(node.id for node in world.members))
        known = self.rosters.get(world.seal_id)
        if known is None:
            self.require(
                run.bounds.min <= world.size <= run.bounds.max, f"a world of {world.size} for {run.bounds} was sealed"
            )
            self.require(len(set(roster[2])) == world.size, f"a node has two ranks in round {world.round}")
            self.rosters[world.seal_id] = roster
            self.last_seal = self.cluster.time
            return
        same = [a == b or b.startswith("rank-") for a, b in zip(known[2], roster[2], strict=True)]
        self.require(known[:2] == roster[:2] and all(same), f"seal id {world.seal_id} names two worlds")

    def _recovered(self, server: VirtualServer, happening: RunChange) -> None:
        """The differential check: what the new server knows is what was recorded and what the nodes announced."""
        before, after = happening.before, happening.after
        taken = self._taken_over.pop(server.claim.id, None)
        if taken is None or before.recorded is None:
            return
        record, recorded = taken
        finished = {rank for rank, heard in before.heard.items() if heard.finished} | set(recorded.finished_ranks())
        if after.incarnation != record.incarnation:
            gone = {loss.node_id for loss in happening.losses}
            gone |= {happening.leave.node_id} if happening.leave is not None else set()
            announced = [heard for heard in before.heard.values() if heard.announced and heard.node.id not in gone]
            here = [heard for heard in announced if not (heard.gone or heard.finished)]
            self.require(not here, f"incarnation {record.incarnation} ended although {len(here)} of it are here")
            return
        world = after.world
        if world is None or world.round > recorded.round:
            return  # everybody was back at once, and the next world is sealed already
        self.require(world.seal_id == recorded.seal_id, f"{world.seal_id} was recovered, not {recorded}")
        known = {rank for node_id in after.finished if (rank := after.ranks.get(node_id)) is not None}
        # The node that spoke last is not in `before`.
        same = known >= finished and len(known - finished) <= 1
        self.require(same, f"ranks {sorted(known)} have finished after the takeover, {finished} before")
        holds = {rank for rank, heard in before.heard.items() if heard.holds} | finished
        whole = len(holds) >= recorded.size - 1 and not recorded.broken
        if after.phase is Phase.SEALED:
            self.require(whole, f"{recorded.seal_id} was recovered whole, but only {sorted(holds)} hold it")

    # Nodes --------------------------------------------------------------------------------------------------------

    def agent_changed(self, agent: Agent, before: View) -> None:
        """Check one step of a node."""
        view = agent.view
        if view.world is not None and view.world is not before.world:
            self.node_got_world(agent, before)
        if view.state is State.CLOSED and before.state is not State.CLOSED:
            self.closed.add(view.incarnation)
        if view.state is State.FENCED and before.state is not State.FENCED and not self.forgot:
            record = self.cluster.register.record()
            last = record.last.incarnation if record is not None and record.last is not None else ""
            is_current = self.cluster.current is self.cluster.connections[agent.connection].life
            self.require(
                before.incarnation not in self.closed or before.incarnation != last or not is_current,
                f"{agent.name} was put out of {before.incarnation} instead of being told that it is closed",
            )
        over = view.state in (State.BROKEN, State.FENCED, State.CLOSED) and before.state is State.HOLDS
        if over and view.world is not None and not view.why.startswith("this node itself"):
            self.require(
                view.world.seal_id != self.protected,
                f"{agent.name} was told that {view.world.seal_id} is over, and only the server had changed: {view.why}",
            )

    def served(self, peer: VirtualProcess) -> None:
        """A server has taken a node in: its epoch is not below any that the node knew (rule 17i)."""
        serving = peer.session.serving
        incarnation, epoch = self._epochs.get(peer.process, ("", 0))
        self.require(
            incarnation != serving.incarnation or serving.epoch >= epoch or self.forgot,
            f"{peer.name} went back from epoch {epoch} to {serving.epoch}",
        )
        self._epochs[peer.process] = (serving.incarnation, serving.epoch)

    def heard(self, peer: VirtualProcess) -> None:
        """A server has acknowledged all that a node said."""
        view = peer.view
        server = self.cluster.serving(peer)
        if peer.close_asked:
            self._closing_heard(peer)
        if peer.leaving is Reason.GAVE_UP:
            self._giving_up_heard(peer, server)
        counts = view.world is not None and server.decided.finished.get(view.node.id) == view.world.rank
        finishes = (
            view.state is State.FINISHED and peer.leaving is Reason.FINISHED and peer.process not in self._counted
        )
        if view.world is not None and counts and finishes and not self._has_forgotten(view.world.seal_id):
            self._counted.add(peer.process)
            self.finished.setdefault(view.world.seal_id, set()).add(view.world.rank)

    def _has_forgotten(self, seal_id: str) -> bool:
        """Whether the register was emptied since it knew of a world: an acknowledgement may have been on its way then."""
        record = self.cluster.register.record()
        return self.forgot and (record is None or record.world is None or record.world.seal_id != seal_id)

    def _closing_heard(self, peer: VirtualProcess) -> None:
        """A request to close was acknowledged: the record says that this incarnation has ended, or another one runs."""
        asked, peer.close_asked = peer.close_asked, ""
        record = self.cluster.register.record()
        if record is None or self.forgot:
            return
        self.require(
            record.incarnation != asked or record.closing is not None,
            f"{peer.name} was told that {asked} is closed, but the record does not say so",
        )
        self.closed.add(asked)

    def _giving_up_heard(self, peer: VirtualProcess, server: VirtualServer) -> None:
        """The giving up of a member was acknowledged: where the run ends with it, the record says so."""
        run, record = server.decided, self.cluster.register.record()
        ended = run.closing is not None and run.closing.why.startswith(f"{peer.name} {Reason.GAVE_UP.value}")
        if ended and record is not None and record.incarnation == run.incarnation and not self.forgot:
            self.require(
                record.closing is not None, f"{peer.name} was told that its giving up counts before that was recorded"
            )

    def node_got_world(self, agent: Agent, before: View) -> None:
        """A node has a place: it was in the register before anybody heard of it (rule 17c)."""
        place = agent.view.world
        assert place is not None, "it has a place"
        self.require(place.seal_id in self.recorded, f"{agent.name} holds a world that was never recorded: {place}")
        super().node_got_world(agent, before)

    def check_loss(self, loss: Lost) -> None:
        """A loss is judged by what it leads to."""

    # When faults have ended ---------------------------------------------------------------------------------------

    def check_rest(self, quiet_s: float) -> None:
        """Long after the last fault one server serves all, and everybody is where they should be."""
        world = self.cluster
        alive = [peer for peer in world.peers if peer.alive]
        able = [peer for peer in alive if peer.election_may_claim]
        if not able:
            return
        server = world.current
        self.require(server is not None, f"nobody serves: {world.register.record()}")
        assert server is not None
        rivals = [s.peer.name for s in world.servers if s.alive and s is not server]
        self.require(not rivals, f"{server.peer.name} serves, and so do {rivals}")
        run, record = server.run, world.register.record()
        self.require(run.phase is not Phase.RECOVERING, "the server is still recovering")
        self.require(
            len(alive) == 1 or (record is not None and record.met == record.epoch),
            "nobody has met the server in the end",
        )
        self.require(
            world.time - self.last_seal >= quiet_s,
            f"a world was sealed {world.time - self.last_seal:.1f} s ago, long after the last fault",
        )
        recorded = record.world.seal_id if record is not None and record.world is not None else ""
        self.require(
            run.current is None or run.current.seal_id == recorded, f"the record does not name the world: {recorded}"
        )
        for peer in alive:
            self.require(peer.session.welcomed, f"{peer.name} has no server: {peer.election.why}")
        self.check_nodes_at_rest(alive, run)

    # Small things -------------------------------------------------------------------------------------------------

    def _whole_without(self, gone: str) -> str:
        """The seal id of the world that stays whole although this process dies; nothing where others may end it."""
        world, record = self.cluster, self.cluster.register.record()
        others = [peer for peer in world.peers if peer.alive and peer.name != gone]
        prompt = max(world.network.delay_s[1], world.register.delay_s[1]) < PROMPT_S
        # A node that the server keeps out for a while is let in by the next one.
        waits = any(peer.view.state is State.WAITING for peer in others)
        led = any(peer.election_may_claim and peer.leaving is None for peer in others)
        if record is None or not (prompt and led) or waits or world.parted or world.doomed:
            return ""
        return self._whole_world(record, gone)

    def _whole_world(self, record: Record, gone: str = "") -> str:
        """The seal id of the recorded world that all of its unfinished members hold, undisturbed; else nothing."""
        world = record.world
        if world is None or record.closing is not None or world.broken or world.seal_id in self.broken or self.forgot:
            return ""
        if not (self.cluster.register.is_reliable and self.cluster.network.reliable):
            return ""
        if self.cluster.hidden or self.cluster.refusing or any(p.alive and p.stopped for p in self.cluster.peers):
            return ""
        holders = [
            peer
            for peer in self.cluster.peers
            if peer.alive
            and peer.name != gone
            and peer.view.world is not None
            and peer.view.world.seal_id == world.seal_id
            and peer.view.state is State.HOLDS
            and not peer.stopping
            and peer.leaving is None
        ]
        ranks = {peer.view.world.rank for peer in holders if peer.view.world is not None}
        changed_at = max(self.disturbed_at, self._grew_at)
        quiet = self.cluster.time - changed_at > 2 * self.cluster.longest_timeout_s
        whole = ranks | set(world.finished_ranks()) == set(range(world.size))
        return world.seal_id if whole and quiet else ""
