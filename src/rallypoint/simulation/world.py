"""A virtual world: one authority, some nodes, a network and time.  Everything in it follows from its seed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

import msgspec

from rallypoint.core import authority as host
from rallypoint.core import codec, transition
from rallypoint.core.events import Announced, CloseAsked, Message
from rallypoint.core.model import Bounds, Node, Role, Run, Settings
from rallypoint.core.node import State, View
from rallypoint.core.notices import Said
from rallypoint.core.ranks import POLICIES, RankPolicy
from rallypoint.simulation.agent import Agent
from rallypoint.simulation.clockwork import Action, Clockwork
from rallypoint.simulation.coordinator import Coordinator
from rallypoint.simulation.invariants import Invariants
from rallypoint.simulation.network import Network


class World:
    """What the commands of a schedule or a scenario act upon."""

    def __init__(
        self,
        seed: int,
        bounds: Bounds,
        settings: Settings,
        *,
        durable: bool = False,
        talkative: bool = False,
        policies: Mapping[str, RankPolicy] = POLICIES,
    ) -> None:
        self.seed = seed
        self.bounds = bounds
        self.settings = settings
        self.durable = durable
        self.policies = policies
        self.run_id = "run"
        self.chance = random.Random(seed)
        self.clockwork = Clockwork()
        self.network = Network(random.Random(seed + 1))
        self.agents: dict[str, Agent] = {}
        self.by_id: dict[str, Agent] = {}
        self.arrived: dict[tuple[str, int], float] = {}
        self.processes: Counter[str] = Counter()
        self.record: bytes | None = None
        self.lines: list[str] = []
        self.talkative = talkative
        self.events: Counter[str] = Counter()
        self.messages: Counter[str] = Counter()
        self.octets: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.invariants = Invariants(self)
        self._mints = 0
        self.coordinator: Coordinator | None = None
        self.start_authority()

    # Time and identity --------------------------------------------------------------------------------------------

    @property
    def time(self) -> float:
        """The true time of this world, which nobody in it can see."""
        return self.clockwork.time

    @property
    def run(self) -> Run | None:
        """What the authority knows, while there is one."""
        return self.coordinator.state.run if self.coordinator else None

    @property
    def awake_time(self) -> float:
        """The time that the authority has lived through, the times when it was stopped left out."""
        return self.time - (self.coordinator.stopped_s if self.coordinator else 0.0)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.clockwork.run_until(self.time + seconds)

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
    ) -> None:
        """Start a process of a node; an earlier one of that name must have ended."""
        assert name not in self.agents or not self.agents[name].alive, f"{name} is running"
        self.processes[name] += 1
        node = Node(
            id=f"{name}.{self.processes[name]}",
            name=name,
            address=address,
            store=f"{name}:{self.processes[name]}",
            wanted_rank=wanted_rank,
            topology=topology,
            role=role,
        )
        view = View(node=node, bounds=bounds or self.bounds, settings=self.settings)
        agent = Agent(self, view, self.chance.uniform(0, 1e6), rate, stop_s=stop_s, timeout_s=timeout_s)
        self.agents[name] = self.by_id[node.id] = agent
        agent.begin()

    def end_process(self, agent: Agent, *, seen: bool) -> None:
        """A node's process ends; its connection's end is seen by the authority unless the whole machine went."""
        agent.alive = False
        if seen and agent.connected:
            self._end_connection(agent, self.network.delay())
        self.note(agent.name, "exits" if seen else "vanishes")

    def flap(self, agent: Agent, late_s: float) -> None:
        """A connection breaks and is made anew; the authority hears of the end of the old one late."""
        connection = agent.connection
        if agent.connected:
            self._end_connection(agent, late_s)
            agent.when_running(lambda: agent.connection_lost(connection))

    def _end_connection(self, agent: Agent, delay_s: float) -> None:
        life, node_id, connection = self.coordinator, agent.id, agent.connection

        def arrive() -> None:
            if life is not None and life is self.coordinator:
                life.when_running(lambda: life.connection_ended(node_id, connection))

        self.clockwork.after(delay_s, arrive)

    def start_authority(self) -> None:
        """Start the authority; without a record it knows nothing."""
        assert self.coordinator is None, "the authority is running"
        self.invariants.authority_started()
        self.coordinator = Coordinator(self, self.chance.uniform(0, 1e6), self.record)
        self.coordinator.tick()

    def crash_authority(self) -> None:
        """kill -9: what it knew is gone, and every connection with it."""
        assert self.coordinator is not None, "the authority is not running"
        self.coordinator.alive = False
        self.coordinator = None
        for agent in self.agents.values():
            if agent.alive and agent.connected:
                self.clockwork.after(self.network.delay(), self._lose_connection(agent))

    @staticmethod
    def _lose_connection(agent: Agent) -> Action:
        connection = agent.connection
        return lambda: agent.when_running(lambda: agent.connection_lost(connection))

    def close(self, by: str) -> None:
        """Somebody closes the run."""
        if self.coordinator is not None:
            life = self.coordinator
            life.when_running(lambda: life.receive(by, 1, CloseAsked(by=by)))

    # Messages -----------------------------------------------------------------------------------------------------

    def reachable(self, agent: Agent) -> bool:
        """Whether a new connection to the authority would be made now."""
        return self.coordinator is not None and agent.name not in self.network.cut

    def send_to_authority(self, agent: Agent, message: Message) -> None:
        """A node sends; the bytes are those of production."""
        data, node_id, connection, life = codec.encode_message(message), agent.id, agent.connection, self.coordinator
        self._count("to the authority", data)

        def arrive() -> None:
            if life is not None and life is self.coordinator and agent.name not in self.network.cut:
                life.when_running(lambda: life.receive(node_id, connection, codec.decode_message(data)))

        for delay in self.network.deliveries(agent.name, to_node=False):
            self.clockwork.after(delay, arrive)

    def send_to_node(self, node_id: str, said: Said) -> None:
        """The authority sends."""
        agent = self.find(node_id)
        if agent is None or not agent.alive or not agent.connected:
            return
        data, connection = codec.encode_message(said), agent.connection
        self._count("to nodes", data)

        def arrive() -> None:
            if agent.id == node_id and agent.connected and agent.connection == connection:
                agent.when_running(lambda: agent.hear(codec.decode_notice(data)) if agent.id == node_id else None)

        for delay in self.network.deliveries(agent.name, to_node=True):
            self.clockwork.after(delay, arrive)

    def _count(self, way: str, data: bytes) -> None:
        self.messages[way] += 1
        self.octets[way] += len(data)

    def pong(self, node_id: str, connection: int) -> None:
        """The authority answers whatever a node sends, so that the node knows that it is there."""
        agent = self.find(node_id)
        if agent is not None and agent.alive:
            for delay in self.network.deliveries(agent.name, to_node=True):
                self.clockwork.after(delay, lambda: agent.when_running(lambda: agent.pong(connection)))

    def find(self, node_id: str) -> Agent | None:
        """The process that has, or once had, this identity."""
        return self.by_id.get(node_id.partition("'")[0])

    # What is written down and checked -----------------------------------------------------------------------------

    def note(self, who: str, what: str) -> None:
        """A line of the log, in worlds that keep one."""
        if self.talkative:
            self.lines.append(f"{self.time:8.3f} {who}: {what}")

    def authority_acted(self, before: Run, output: host.Output, message: Message | None) -> None:
        """The authority took an input."""
        if message is not None:
            routine = isinstance(message, Announced) and output.authority.run is before
            self.events["heartbeat" if routine else type(message).__name__] += 1
        for loss in output.losses:
            self.events["Lost"] += 1
            self.invariants.judge_loss(loss)
        if output.why:
            self.note("authority", output.why)
        self.invariants.authority_acted(before, output, message)

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
            return "the authority is away"
        return transition.situation(self.coordinator.state.run, self.coordinator.now)
