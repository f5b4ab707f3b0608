"""A virtual cluster: one server, some nodes, a network and time.  Everything in it follows from its seed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from rallypoint import protocol
from rallypoint.client.view import State, View
from rallypoint.core import transition
from rallypoint.core.model import Run
from rallypoint.messages.requests import Announced, CloseAsked, Joined, Left, NodeMessage
from rallypoint.messages.types import Bounds, Node, Role, Settings
from rallypoint.server.effects import Effects
from simulation.agent import Agent
from simulation.fixed_server import FixedServer
from simulation.invariants import InvariantChecker, Invariants
from simulation.network import Network
from simulation.virtual_time import Action, VirtualTime

if TYPE_CHECKING:
    from simulation.virtual_server import VirtualServer


@dataclass
class VirtualConnection:
    """One connection: its two ends, and how many of its first messages were sent and have arrived either way."""

    number: int
    agent: Agent | None
    life: FixedServer | VirtualServer
    opening: int = 1
    """How many messages of either side open it: two where the node is challenged."""
    greetings: int = 0
    heard: int = 0
    early: list[bytes] = field(default_factory=list)
    answers: int = 0
    told: int = 0
    held: list[bytes] = field(default_factory=list)
    dead: bool = False


class Cluster:
    """What the commands of a schedule or a scenario act upon."""

    def __init__(
        self,
        seed: int,
        bounds: Bounds,
        settings: Settings,
        *,
        durable: bool = False,
        talkative: bool = False,
    ) -> None:
        self.seed = seed
        self.bounds = bounds
        self.settings = settings
        self.shortest_timeout_s = self.longest_timeout_s = settings.heartbeat_timeout_s
        """The heartbeat time-outs of the nodes so far are from the one to the other; the founder's is the run's."""
        self.durable = durable
        self.run_id = "run"
        self.chance = random.Random(seed)
        self.virtual_time = VirtualTime()
        self.network = Network(random.Random(seed + 1))
        self.agents: dict[str, Agent] = {}
        self.by_id: dict[str, Agent] = {}
        self.connections: dict[int, VirtualConnection] = {}
        self.arrived: dict[int, float] = {}
        self.processes: Counter[str] = Counter()
        self.record: bytes | None = None
        self.log: list[str] = []
        self.talkative = talkative
        self.events: Counter[str] = Counter()
        self.messages: Counter[str] = Counter()
        self.octets: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self._mints = 0
        self.coordinator: FixedServer | None = None
        self.begin()

    def begin(self) -> None:
        """What there is before the first command: a server."""
        self.invariants: InvariantChecker = Invariants(self)
        self.start_server()

    # Time and identity --------------------------------------------------------------------------------------------

    @property
    def time(self) -> float:
        """The true time, which nobody in the cluster can see."""
        return self.virtual_time.time

    @property
    def run(self) -> Run | None:
        """What the server knows, while there is one."""
        return self.coordinator.run if self.coordinator else None

    @property
    def awake_time(self) -> float:
        """The time that the server has lived through, the times when it was stopped left out."""
        return self.time - (self.coordinator.stopped_s if self.coordinator else 0.0)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.virtual_time.run_until(self.time + seconds)

    def mint(self) -> str:
        """A text that was never used before: what a shell takes from a random source."""
        self._mints += 1
        return f"{self._mints}"

    def identity(self, node: Node, life: int) -> Node:
        """A process's next identity after it was fenced."""
        base = node.id.partition("'")[0]
        return msgspec.structs.replace(node, id=f"{base}{chr(39) * life}")

    # Processes ----------------------------------------------------------------------------------------------------

    def start(
        self,
        name: str,
        *,
        role: Role = Role.MEMBER,
        wanted_rank: int | None = None,
        topology: str = "",
        address: str = "",
        stop_s: float = 0.05,
        timeout_s: float = 600.0,
        rate: float = 1.0,
        bounds: Bounds | None = None,
        heartbeat_s: tuple[float, float] | None = None,
        **kind: Any,
    ) -> None:
        """Start a process of a node; an earlier one of that name must have ended.

        `heartbeat_s` are its interval and time-out, where they are not the others'; `kind` is what only some kinds of
        processes have.
        """
        assert name not in self.agents or not self.agents[name].alive, f"{name} is running"
        self.processes[name] += 1
        node = Node(
            id=f"{name}.{self.processes[name]}",
            name=name,
            address=address,
            store=(store := f"{name}:{self.processes[name]}"),
            store_secret=f"the secret of {store}",
            wanted_rank=wanted_rank,
            topology=topology,
            role=role,
        )
        settings = self.settings
        if heartbeat_s is not None:
            interval_s, silent_s = heartbeat_s
            settings = msgspec.structs.replace(settings, heartbeat_interval_s=interval_s, heartbeat_timeout_s=silent_s)
            self.shortest_timeout_s = min(self.shortest_timeout_s, silent_s)
            self.longest_timeout_s = max(self.longest_timeout_s, silent_s)
        view = View(node=node, bounds=bounds or self.bounds, settings=settings)
        agent = self.make_agent(view, rate=rate, stop_s=stop_s, timeout_s=timeout_s, **kind)
        self.agents[name] = self.by_id[node.id] = agent
        agent.begin()

    def make_agent(self, view: View, *, rate: float, stop_s: float, timeout_s: float) -> Agent:
        """A process for this node."""
        return Agent(self, view, self.chance.uniform(0, 1e6), rate, stop_s=stop_s, timeout_s=timeout_s)

    def end_process(self, agent: Agent, *, seen: bool) -> None:
        """A node's process ends; its connection's end is seen by the server unless the whole machine went."""
        agent.alive = False
        agent.was_seen = seen
        if seen:
            self.close_connection(agent.connection, self.network.delay())
        self.note(agent.name, "exits" if seen else "vanishes")

    def flap(self, agent: Agent, late_s: float) -> None:
        """A connection breaks and is made anew; the server hears of the end of the old one late."""
        connection = agent.connection
        if agent.session.is_open:
            self.close_connection(connection, late_s)
            agent.when_running(lambda: agent.connection_lost(connection))

    def start_server(self) -> None:
        """Start the server; without a record it knows nothing."""
        assert self.coordinator is None, "the server is running"
        self.invariants.fixed_server_started()
        self.coordinator = FixedServer(self, self.chance.uniform(0, 1e6), self.record)
        self.coordinator.tick()

    def crash_server(self) -> None:
        """kill -9: what it knew is gone, and every connection with it."""
        assert self.coordinator is not None, "the server is not running"
        self.coordinator.alive = False
        self.coordinator = None
        for agent in self.agents.values():
            if agent.alive and agent.session.is_open:
                self.hang_up(agent.connection)

    def close(self, by: str) -> None:
        """An administrator closes the run."""
        if self.coordinator is None:
            return
        connection = self.open_connection(None)
        hello = protocol.MAGIC + protocol.frame(protocol.Hello(protocol.VERSION))
        ask = protocol.AskClose(1, self.run_id, f"{by} closed it")
        self._deliver(self.connections[connection], hello + protocol.frame(ask))

    # Messages -----------------------------------------------------------------------------------------------------

    def reachable(self, agent: Agent) -> bool:
        """Whether a new connection to the server would be made now."""
        return self.coordinator is not None and agent.name not in self.network.cut

    def open_connection(self, agent: Agent | None) -> int:
        """A new connection to the server."""
        assert self.coordinator is not None, "who connects has seen that the server is there"
        connection = VirtualConnection(len(self.connections) + 1, agent, self.coordinator)
        self.connections[connection.number] = connection
        self.coordinator.when_running(lambda: connection.life.open(connection.number))
        return connection.number

    def close_connection(self, number: int, delay_s: float) -> None:
        """A node's end of a connection closes; the server hears of it so much later."""
        connection = self.connections.get(number)
        if connection is not None:
            self.virtual_time.after(delay_s, lambda: self._at_server(connection, lambda: connection.life.end(number)))

    def hang_up(self, number: int) -> None:
        """The server's end of a connection closes."""
        agent = self.connections[number].agent
        if agent is not None:
            self.virtual_time.after(
                self.network.delay(), lambda: agent.when_running(lambda: agent.connection_lost(number))
            )

    def send_to_server(self, agent: Agent, data: bytes) -> None:
        """A node sends; the bytes are those of production."""
        connection = self.connections[agent.connection]
        self._count("to the server", data)
        if connection.greetings < connection.opening:
            # A connection is made and its first bytes arrive, or it is not made at all.
            connection.greetings += 1
            self.virtual_time.after(self.network.delay(), lambda: self._greet(connection, data))
            return
        for delay in self.deliveries(connection, to_node=False):
            self.virtual_time.after(delay, lambda: self._deliver(connection, data))

    def deliveries(self, connection: VirtualConnection, *, to_node: bool) -> Iterator[float]:
        """The delays with which copies of a message on this connection arrive."""
        assert connection.agent is not None, "only nodes are cut off"
        return self.network.deliveries(connection.agent.name, to_node=to_node)

    def is_cut(self, connection: VirtualConnection) -> bool:
        """Whether nothing passes on this connection."""
        return connection.agent is not None and connection.agent.name in self.network.cut

    def _greet(self, connection: VirtualConnection, data: bytes) -> None:
        if self.is_cut(connection):
            connection.dead = True  # what opens a connection is never lost alone: all of it is
            return
        connection.heard += 1
        self._at_server(connection, lambda: connection.life.receive(connection.number, data))
        if connection.heard == connection.opening:
            for early in connection.early:
                self._deliver(connection, early)

    def _deliver(self, connection: VirtualConnection, data: bytes) -> None:
        if connection.dead or self.is_cut(connection):
            return
        if connection.agent is not None and connection.heard < connection.opening:
            connection.early.append(data)
            return
        self._at_server(connection, lambda: connection.life.receive(connection.number, data))

    def _at_server(self, connection: VirtualConnection, action: Action) -> None:
        if self.hears(connection):
            connection.life.when_running(action)

    def hears(self, connection: VirtualConnection) -> bool:
        """Whether the server of this connection is still there."""
        return connection.life is self.coordinator

    def send_to_node(self, number: int, data: bytes) -> None:
        """The server sends."""
        connection = self.connections[number]
        agent = connection.agent
        if agent is None or not agent.alive:
            return
        self._count("to nodes", data)
        if connection.answers < connection.opening:
            connection.answers += 1
            self.virtual_time.after(self.network.delay(), lambda: self._welcome(connection, data))
            return
        for delay in self.deliveries(connection, to_node=True):
            self.virtual_time.after(delay, lambda: self._hand_over(connection, data))

    def _welcome(self, connection: VirtualConnection, data: bytes) -> None:
        connection.told += 1
        if connection.agent is not None:
            self._give(connection, connection.agent, data)
        if connection.told == connection.opening:
            for held in connection.held:
                self._hand_over(connection, held)

    def _hand_over(self, connection: VirtualConnection, data: bytes) -> None:
        agent = connection.agent
        if connection.told < connection.opening:
            connection.held.append(data)
        elif agent is not None:
            self._give(connection, agent, data)

    def _give(self, connection: VirtualConnection, agent: Agent, data: bytes) -> None:
        agent.when_running(lambda: agent.receive(connection.number, data))

    def _count(self, way: str, data: bytes) -> None:
        self.messages[way] += 1
        self.octets[way] += len(data)

    def find(self, node_id: str) -> Agent | None:
        """The process that has, or once had, this identity."""
        return self.by_id.get(node_id.partition("'")[0])

    # What is written down and checked -----------------------------------------------------------------------------

    def note(self, who: str, what: str) -> None:
        """A line of the log, where the cluster keeps one."""
        if self.talkative:
            self.log.append(f"{self.time:8.3f} {who}: {what}")

    def fixed_server_acted(self, before: Run, after: Run, effects: Effects, data: bytes | None) -> None:
        """The server took an input."""
        message = _message(data) if data is not None else None
        if message is not None:
            routine = isinstance(message, Announced) and after is before
            self.events["heartbeat" if routine else type(message).__name__] += 1
        for happening in effects.happenings:
            self.invariants.require("a fault of Rallypoint" not in happening.why, happening.why)
            if happening.why:
                self.note("server", happening.why)
            for loss in happening.losses:
                self.events["Lost"] += 1
                self.invariants.check_loss(loss)
        # Several inputs may have waited for one record: each step of them is judged.
        for happening in effects.happenings[:-1]:
            self.invariants.fixed_server_acted(before, happening.after, None)
            before = happening.after
        self.invariants.fixed_server_acted(before, after, message)

    def agent_changed(self, agent: Agent, before: View) -> None:
        """A node's view changed."""
        view = agent.view
        if self.talkative and (view.state is not before.state or (view.world is not before.world)):
            place = view.world if view.state is State.HOLDS else None
            where = f" round {place.round} as rank {place.rank} of {place.size}, store {place.store}" if place else ""
            why = f" ({view.why})" if view.why else ""
            self.note(agent.name, f"{view.state.value}{where}{why}")
        self.invariants.agent_changed(agent, before)

    def situation(self) -> str:
        """Where the run stands, in the words of the core."""
        if self.coordinator is None:
            return "the server is away"
        return transition.situation(self.coordinator.run, self.coordinator.now)


def _message(data: bytes) -> NodeMessage | None:
    """The message in these bytes, for the invariants."""
    reader = protocol.Reader()
    opening = b"" if data.startswith(protocol.MAGIC) else protocol.MAGIC
    said = [protocol.read(body, protocol.FROM_NODE) for body in reader.feed(opening + data)]
    return next((m for m in said if isinstance(m, (Joined, Announced, Left, CloseAsked))), None)
