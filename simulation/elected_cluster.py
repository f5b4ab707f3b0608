"""A virtual cluster without a server of its own: its node processes elect a server through a virtual register."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from rallypoint import protocol
from rallypoint.client.view import View
from rallypoint.core import transition
from rallypoint.core.model import Run
from rallypoint.messages.types import Bounds, Settings
from rallypoint.record import Claim, Record
from rallypoint.server.effects import Effects
from rallypoint.tokens import AccessRole, Side, Token
from simulation.agent import Agent
from simulation.cluster import Cluster, VirtualConnection
from simulation.elected_invariants import ElectedInvariants
from simulation.register import VirtualRegister
from simulation.virtual_process import VirtualProcess
from simulation.virtual_server import VirtualServer

LOCAL_S = 0.0001


class ElectedCluster(Cluster):
    """Some processes, a network between them, and a register."""

    def __init__(
        self,
        seed: int,
        bounds: Bounds,
        settings: Settings,
        *,
        has_leases: bool = False,
        talkative: bool = False,
    ) -> None:
        self._has_leases = has_leases
        super().__init__(seed, bounds, settings, durable=True, talkative=talkative)

    def begin(self) -> None:
        """What there is before the first command: an empty register."""
        self.ports = 0
        self.had_rivals = False
        """Whether two servers were alive at once."""
        self.servers: list[VirtualServer] = []
        self.hidden: set[str] = set()
        """Processes whose server cannot be reached at the address that it gives."""
        self.doomed: dict[str, str] = {}
        """Processes that die when their next write is recorded, or when what it says was told; which of the two."""
        self.refusing: set[str] = set()
        """Processes whose connections to others are refused on the way."""
        self.parted: set[frozenset[str]] = set()
        """Pairs of processes between which nothing passes, also not the end of a connection."""
        self.register = VirtualRegister(self.virtual_time, random.Random(self.seed + 2), self._has_leases)
        self.elected_invariants = ElectedInvariants(self)
        self.invariants = self.elected_invariants
        self._watching: list[tuple[VirtualProcess, Any]] = []
        self._told_admins: dict[int, bytes] = {}

    @property
    def peers(self) -> list[VirtualProcess]:
        """The processes that were started, the latest of each name."""
        return [agent for agent in self.agents.values() if isinstance(agent, VirtualProcess)]

    @property
    def run(self) -> Run | None:
        """What the server knows that the register names, if it lives."""
        server = self.current
        return server.run if server is not None else None

    @property
    def current(self) -> VirtualServer | None:
        """The server that the register names, if it lives."""
        record = self.register.record()
        if record is None or record.claim is None:
            return None
        claim_id = record.claim.id
        return next((server for server in self.servers if server.alive and server.claim.id == claim_id), None)

    # Processes ----------------------------------------------------------------------------------------------------

    def make_agent(
        self,
        view: View,
        *,
        rate: float,
        stop_s: float,
        timeout_s: float,
        rest_s: float | None = None,
        may_claim: bool = True,
    ) -> VirtualProcess:
        """A process for this node, which may come to serve."""
        peer = VirtualProcess(
            self,
            view,
            self.chance.uniform(0, 1e6),
            rate,
            stop_s=stop_s,
            timeout_s=timeout_s,
            rest_s=rest_s or view.settings.heartbeat_timeout_s,
            may_claim=may_claim,
        )
        self.elected_invariants.newcomer()
        if self._has_leases:
            self.virtual_time.after(0.0, lambda: self._keep_lease(peer))
        return peer

    def end_process(self, agent: Agent, *, seen: bool) -> None:
        """A process ends, and its server with it; others see that unless the whole machine went."""
        super().end_process(agent, seen=seen)
        assert isinstance(agent, VirtualProcess), "every process here is one"
        if seen and agent.server is not None:
            for connection in self.connections.values():
                if connection.life is agent.server:
                    self.hang_up(connection.number)

    def close(self, by: str) -> None:
        """A node calls set_closed()."""
        peer = next((p for p in self.peers if p.alive and not p.stopped and p.session.welcomed), None)
        if peer is not None:
            peer.close_run()

    def meet_doom(self, peer: VirtualProcess, point: str) -> None:
        """A process dies at this point, where that is its fate."""
        if self.doomed.get(peer.name) == point and peer.alive:
            del self.doomed[peer.name]
            self.end_process(peer, seen=True)

    def evict(self, name: str, for_s: float) -> None:
        """An administrator gives a node up and keeps it out for a while, by the secret of the claim."""
        server = self.current
        if server is None or server.peer.stopped:
            return
        connection = VirtualConnection(len(self.connections) + 1, None, server)
        self.connections[connection.number] = connection
        server.open(connection.number)
        hello = protocol.Hello(protocol.VERSION, role=AccessRole.ADMIN)
        server.receive(connection.number, protocol.MAGIC + protocol.frame(hello))
        for body in protocol.Reader().feed(self._told_admins.pop(connection.number, b"")):
            message = protocol.read(body, protocol.FROM_SERVER)
            assert isinstance(message, protocol.Challenge), "an administrator is challenged"
            key = Token(server.claim.secret.encode()).for_run("", hello.role)
            proof = protocol.Proof(key.prove(Side.CLIENT, *protocol.named(hello, message.nonce)))
            ask = protocol.AskEvict(1, self.run_id, name, for_s)
            server.receive(connection.number, protocol.frame(proof) + protocol.frame(ask))

    def send_to_node(self, number: int, data: bytes) -> None:
        """A server sends to a node, or to an administrator."""
        if self.connections[number].agent is None:
            self._told_admins[number] = self._told_admins.get(number, b"") + data
        else:
            super().send_to_node(number, data)

    def _keep_lease(self, peer: VirtualProcess) -> None:
        """The thread that renews a lease: it stops when the loop beside it has not run for half of a time-out."""
        if not peer.alive:
            return
        ttl_s, server = peer.view.settings.heartbeat_timeout_s, peer.server
        ran = not peer.stopped or (peer.frozen and peer.stopped_now_s < ttl_s / 2)
        if server is not None and server.serves and ran:
            self.register.keep(server.claim.id, server.claim.rest_s)
        self.virtual_time.after(ttl_s / 6, lambda: self._keep_lease(peer))

    # Connections --------------------------------------------------------------------------------------------------

    def free_port(self) -> int:
        """A port to serve on.  There are few, so that a port is reused while a record still names its old server."""
        self.ports += 1
        return 1 + self.ports % 3

    def reach(self, peer: VirtualProcess, claim: Claim) -> VirtualServer | str:
        """What becomes of a new connection to a claim's address: the server, or how it fails."""
        name = claim.addresses[0]
        host = self.agents.get(name)
        if peer is host:
            mine = peer.server
            return mine if mine is not None and mine.claim.id == claim.id else "refused"
        cut = self.network.cut
        if peer.name in cut or name in cut or name in self.hidden or frozenset((peer.name, name)) in self.parted:
            return "silent"
        if peer.name in self.refusing:
            return "refused"
        serving = [s for s in self.servers if s.alive and s.peer.name == name and s.claim.port == claim.port]
        if serving:
            return serving[-1]
        return "silent" if host is not None and not host.alive and not host.was_seen else "refused"

    def open_connection_to(self, peer: VirtualProcess, server: VirtualServer) -> int:
        """A new connection to a server."""
        opening = 1 if peer.session.token is None else 2
        connection = VirtualConnection(len(self.connections) + 1, peer, server, opening)
        self.connections[connection.number] = connection
        server.when_running(lambda: server.open(connection.number))
        return connection.number

    def serving(self, peer: VirtualProcess) -> VirtualServer:
        """The server that a process is, or was last, connected to."""
        server = self.connections[peer.connection].life
        assert isinstance(server, VirtualServer), "every server here is one"
        return server

    def hears(self, connection: VirtualConnection) -> bool:
        """Whether the server of this connection is still there."""
        return connection.life.alive

    def deliveries(self, connection: VirtualConnection, *, to_node: bool) -> Iterator[float]:
        """Within a process nothing is lost; between two, whatever the network does to either."""
        client, server = self._ends(connection)
        if client is server:
            yield LOCAL_S
            return
        hearer = client.name if to_node else server.name
        if not (server.name in self.network.cut or hearer in self.network.deaf or self._is_parted(connection)):
            yield from self.network.deliveries(client.name, to_node=False)

    def is_cut(self, connection: VirtualConnection) -> bool:
        """Whether nothing passes on this connection."""
        client, server = self._ends(connection)
        return client is not server and (
            bool({client.name, server.name} & self.network.cut) or self._is_parted(connection)
        )

    def close_connection(self, number: int, delay_s: float) -> None:
        """A node's end of a connection closes; the server does not hear of it where nothing passes."""
        connection = self.connections.get(number)
        if connection is None or not self._is_parted(connection):
            super().close_connection(number, delay_s)

    def hang_up(self, number: int) -> None:
        """A server's end of a connection closes; the node does not hear of it where nothing passes."""
        if not self._is_parted(self.connections[number]):
            super().hang_up(number)

    def _is_parted(self, connection: VirtualConnection) -> bool:
        return connection.agent is not None and frozenset(end.name for end in self._ends(connection)) in self.parted

    @staticmethod
    def _ends(connection: VirtualConnection) -> tuple[Agent, VirtualProcess]:
        assert connection.agent is not None, "a process connects"
        assert isinstance(connection.life, VirtualServer), "to a server"
        return connection.agent, connection.life.peer

    # The register -------------------------------------------------------------------------------------------------

    def committed(self, peer: VirtualProcess, before: Record | None, record: Record) -> None:
        """A write is in the register."""
        self.elected_invariants.committed(peer, before, record)
        self.meet_doom(peer, "record")
        if self.register.has_leases:
            watching, self._watching = self._watching, []
            for watcher, _ in watching:
                self._tell_changed(watcher)
            for server in self.servers:
                if server.alive and server.peer is not peer:
                    self._tell_changed(server.peer)

    def watch(self, peer: VirtualProcess, token: Any) -> None:
        """A process wants to hear of changes since this token."""
        if self.register.same(token):
            self._watching.append((peer, token))
        else:
            self._tell_changed(peer)

    def _tell_changed(self, peer: VirtualProcess) -> None:
        def tell() -> None:
            peer.do(peer.election.changed(peer.now))

        if peer.name not in self.register.cut and not self.register.is_away:
            self.virtual_time.after(self.chance.uniform(*self.register.delay_s), lambda: peer.when_running(tell))

    # What is written down and checked -----------------------------------------------------------------------------

    def server_started(self, server: VirtualServer) -> None:
        """A process serves from now on."""
        self.had_rivals = self.had_rivals or any(other.alive for other in self.servers)
        self.servers.append(server)
        self.events["Served"] += 1
        self.note(server.peer.name, f"serves with epoch {server.epoch}")
        self.elected_invariants.server_started(server)

    def server_stopped(self, server: VirtualServer) -> None:
        """A process serves no longer."""
        self.elected_invariants.server_stopped(server)

    def server_acted(self, server: VirtualServer, effects: Effects) -> None:
        """A server took an input."""
        for happening in effects.happenings:
            self.invariants.require("a fault of Rallypoint" not in happening.why, happening.why)
            if happening.why:
                self.note(f"server on {server.peer.name}", happening.why)
            self.events["RunChange"] += 1
            for loss in happening.losses:
                self.events["Lost"] += 1
                self.elected_invariants.check_loss(loss)
        self.elected_invariants.server_acted(server, effects)

    def agent_changed(self, agent: Agent, before: View) -> None:
        """A node's view changed."""
        self.events["View"] += agent.view.state is not before.state
        super().agent_changed(agent, before)

    def situation(self) -> str:
        """Where the run stands, in the words of the server that the register names."""
        server = self.current
        if server is None:
            return f"nobody serves; the register has {self.register.record()}"
        hosted = server.coordinator.runs.known[self.run_id]
        return transition.situation(hosted.run, hosted.time(server.peer.now))
