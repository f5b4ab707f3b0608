"""Schedules: seeded sequences of commands that a cluster must come through.

A schedule chooses as it goes, from what is running and what is broken, and writes down what it chose: the commands and
the seed are all that is needed to see the same cluster again.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from rallypoint.client.view import State
from rallypoint.core.model import Phase
from rallypoint.messages.types import Bounds, Settings
from simulation.agent import Agent
from simulation.cluster import Cluster
from simulation.commands import perform
from simulation.elected_cluster import ElectedCluster
from simulation.node_invariants import BrokenInvariantError

MIN_EVENTS = 60
MIN_FAULT_KINDS = 3
MIN_COMMANDS = 15
MAX_COMMANDS = 400
ELECTED_EVENTS = 150
"""What nodes learn counts as well where the server is elected, since there is more than one that takes events."""
REST_S = 24.0
QUIET_S = 6.0
PARTED = 0.4
"""How many of the clusters that elect their server end with one that most nodes cannot reach."""
PARTED_S = 9.0
VANISHED = 0.25
"""How many of the servers that are replaced in the end go without a word."""
FINISHED_S = 5.5
"""How long a server serves on that has finished: a process stays for `CLOSE_S` at most."""
REPLACED_S = (3.0, 14.0)
"""How long it takes to replace a server that was killed, or that went without a word."""

HEARTBEATS = ["0.4:1.5", "1.0:4.0"]
"""Intervals and time-outs of nodes that have their own."""

Do = Callable[[str], None]

# Shorter than in production, so that a minute of virtual time holds many rounds; the proportions are the same.
SETTINGS = Settings(
    last_call_s=1.0,
    regroup_s=3.0,
    closed_ttl_s=10.0,
    heartbeat_interval_s=0.8,
    heartbeat_timeout_s=2.5,
    reconnect_backoff_s=0.5,
    outage_grace_s=20.0,
    crash_pause_s=0.2,
    crash_pause_limit_s=2.0,
)


@dataclass
class Setup:
    """What a cluster is made from."""

    seed: int
    bounds: Bounds
    settings: Settings = SETTINGS
    durable: bool = False
    elected: bool = False
    leases: bool = False

    def cluster(self, *, talkative: bool = False) -> Cluster:
        """The cluster before anything happens in it."""
        if self.elected:
            return ElectedCluster(self.seed, self.bounds, self.settings, has_leases=self.leases, talkative=talkative)
        return Cluster(self.seed, self.bounds, self.settings, durable=self.durable, talkative=talkative)


@dataclass
class Played:
    """How a schedule went."""

    setup: Setup
    nodes: int
    commands: list[str] = field(default_factory=list)
    events: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    rounds: int = 0
    failure: str = ""


def setup(seed: int) -> tuple[Setup, int, random.Random]:
    """What a seed stands for: the cluster's make-up, the number of nodes, and the source of all further choices."""
    chance = random.Random(f"rallypoint/{seed}")
    nodes = chance.randint(1, 12)
    high = chance.randint(min(2, nodes), nodes)
    low = high if chance.random() < 0.25 else chance.randint(1, min(high // 2 + 1, high))
    made = Setup(seed, Bounds(low, high), durable=chance.random() < 0.3)
    if _queues(seed):
        nodes, made.bounds = max(nodes, 4), Bounds(1, 1)
    if seed % 2:
        made.elected, made.leases = True, chance.random() < 0.5
    return made, nodes, chance


def play(seed: int) -> Played:
    """Play one schedule to its end, and say whether an invariant broke."""
    made, nodes, chance = setup(seed)
    cluster = made.cluster()
    played = Played(made, nodes)

    def do(command: str) -> None:
        played.commands.append(command)
        perform(cluster, command)

    try:
        _play(cluster, nodes, chance, do)
        if isinstance(cluster, ElectedCluster) and chance.random() < PARTED:
            _part_the_server(cluster, nodes, chance, do)
        end_faults(cluster, do)
        cluster.invariants.check_rest(QUIET_S)
        if isinstance(cluster, ElectedCluster):
            _replace_the_server(cluster, chance, do)
    except BrokenInvariantError as exc:
        played.failure = str(exc)
    except AssertionError as exc:
        played.failure = f"at {cluster.time:.3f} s: assertion failed: {exc}"
    if isinstance(cluster, ElectedCluster):
        cluster.faults["rivals"] += cluster.had_rivals
    played.events, played.faults, played.rounds = cluster.events, cluster.faults, len(cluster.invariants.rosters)
    return played


def end_faults(cluster: Cluster, do: Do) -> None:
    """Mend everything that is broken, and give the run time to come to rest."""
    do("network loss=0 twice=0 delay=0.001")
    for agent in list(cluster.agents.values()):
        if agent.name in _apart(cluster):
            do(f"heal {agent.name}")
        if agent.alive and agent.stopped:
            do(f"resume {agent.name}")
    rest_s = REST_S
    if isinstance(cluster, ElectedCluster):
        rest_s += cluster.register.delay_s[1]  # what is on its way to the register arrives all the same
        do("register back loss=0 stale=0 late=0 delay=0.001:0.003")
    elif cluster.coordinator is None:
        do("restart")
    elif cluster.coordinator.stopped:
        do("resume server")
    do(f"advance {rest_s:.0f}")


def significant(events: Counter[str]) -> int:
    """How many events a run took that were more than a heartbeat."""
    return sum(count for kind, count in events.items() if kind != "heartbeat")


def _play(cluster: Cluster, nodes: int, chance: random.Random, do: Do) -> None:
    names = [f"n{i}" for i in range(nodes)]
    with_crash = chance.random() < 0.4
    for name in chance.sample(names, chance.randint(min(cluster.bounds.min, nodes), nodes)):
        do(_start(name, cluster, chance))
        do(f"advance {chance.uniform(0.0, 0.1):.3f}")
    do(f"advance {chance.uniform(0.5, 3.0):.3f}")
    for number in range(MAX_COMMANDS):
        kinds = sum(count > 0 for count in cluster.faults.values())
        events = ELECTED_EVENTS if isinstance(cluster, ElectedCluster) else MIN_EVENTS
        enough = significant(cluster.events) >= events and kinds >= MIN_FAULT_KINDS
        paused = cluster.faults["together"] or nodes == 1 or not _pauses_together(cluster.seed)
        if enough and number >= MIN_COMMANDS and (cluster.faults["crash"] or not with_crash) and paused:
            return
        command = _choose(cluster, names, chance, with_crash)
        if command:
            do(command)
        do(f"advance {_pause_s(chance):.3f}")


def _pause_s(chance: random.Random) -> float:
    kind = chance.random()
    if kind < 0.5:
        return chance.uniform(0.001, 0.2)
    return chance.uniform(0.2, 1.5) if kind < 0.93 else chance.uniform(1.5, 6.0)


def _choose(cluster: Cluster, names: list[str], chance: random.Random, with_crash: bool) -> str:
    """The next command: something to break, or something to mend."""
    running = [a for a in cluster.agents.values() if a.alive]
    if _queues(cluster.seed) and running and chance.random() < 0.8:
        return _while_it_is_recorded(cluster, running, chance)
    idle = [name for name in names if name not in cluster.agents or not cluster.agents[name].alive]
    options: list[tuple[float, str]] = []
    if idle:
        options.append((6.0, _start(chance.choice(idle), cluster, chance)))
    if running:
        options += _to_a_node(chance.choice(running), chance)
    holders = [a for a in running if a.view.state is State.HOLDS and not a.stopped]
    if holders:
        often = 1.5 if isinstance(cluster, ElectedCluster) else 0.5
        options += [(often, f"finish {chance.choice(holders).name}"), (2.0, f"fail {chance.choice(holders).name}")]
    options += _to_mend(cluster, running, chance)
    if _pauses_together(cluster.seed):
        options += _with_the_server(cluster, running, chance)
    if isinstance(cluster, ElectedCluster):
        options += _to_the_register(cluster, running, chance, with_crash)
    elif cluster.coordinator is None:
        options.append((5.0, "restart"))
    elif cluster.coordinator.stopped:
        options.append((4.0, "resume server"))
    else:
        closed = cluster.run is not None and cluster.run.phase is Phase.CLOSED
        crash = (6.0 if closed else 1.5) if with_crash else 0.0
        options += [(0.7, "pause server"), (0.0 if closed else 0.3, "close"), (crash, "crash")]
    if chance.random() < 0.15:
        options.append((8.0, _weather(chance)))
    return chance.choices([command for _, command in options], [weight for weight, _ in options])[0]


def _to_a_node(agent: Agent, chance: random.Random) -> list[tuple[float, str]]:
    name = agent.name
    return [
        (1.5, f"kill {name}"),
        (0.8, f"vanish {name}"),
        (0.0 if agent.stopped else 1.0, f"pause {name}"),
        (0.8, f"cut {name}"),
        (0.5, f"mute {name}"),
        (1.5, f"flap {name} {chance.choice([0.01, 0.1, 1.0, 3.0]):.2f}"),
        (0.8, f"resend {name}"),
        (0.5, f"withdraw {name}"),
        (0.3, f"give-up {name}"),
    ]


def _to_mend(cluster: Cluster, running: list[Agent], chance: random.Random) -> list[tuple[float, str]]:
    stopped = [a.name for a in running if a.stopped]
    apart = sorted(_apart(cluster))
    options = [(2.0, f"resume {chance.choice(stopped)}")] if stopped else []
    return options + ([(2.0, f"heal {chance.choice(apart)}")] if apart else [])


def _has_unequal_heartbeats(seed: int) -> bool:
    """Whether some nodes of a schedule have other heartbeat settings than the rest, the founder perhaps among them."""
    return seed % 5 == 4


def _pauses_together(seed: int) -> bool:
    """Whether a schedule stops the server and a node at once, and lets them go on at once."""
    return seed % 7 == 3


def _with_the_server(cluster: Cluster, running: list[Agent], chance: random.Random) -> list[tuple[float, str]]:
    """The server's process and another node's are stopped together; all that is stopped goes on together."""
    stopped = [agent.name for agent in running if agent.stopped]
    server = ""
    if isinstance(cluster, ElectedCluster):
        server = cluster.current.peer.name if cluster.current is not None else ""
    elif cluster.coordinator is not None:
        server = "server"
        stopped += ["server"] * cluster.coordinator.stopped
    others = [agent.name for agent in running if not agent.stopped and agent.name != server]
    options = [(3.0, f"resume {' '.join(stopped)}")] if len(stopped) > 1 else []
    if server and server not in stopped and others:
        options.append((3.0, f"pause {server} {chance.choice(others)}"))
    return options


def _queues(seed: int) -> bool:
    """Whether a schedule has one place for many, and a register so slow that inputs queue behind the writes."""
    return seed % 16 == 1


def _while_it_is_recorded(cluster: Cluster, running: list[Agent], chance: random.Random) -> str:
    """The member is evicted, and the one after it, while a write of the record is in flight."""
    if isinstance(cluster, ElectedCluster) and cluster.register.delay_s[1] < 0.5:
        return "register back loss=0 stale=0 late=0 delay=0.3:0.6"
    return f"evict {chance.choice(running).name}"


def _apart(cluster: Cluster) -> set[str]:
    """Who cannot be reached in some way."""
    apart = cluster.network.cut | cluster.network.deaf
    if isinstance(cluster, ElectedCluster):
        apart = apart.union(*cluster.parted) | cluster.hidden | cluster.refusing | cluster.register.cut
    return apart


def _to_the_register(
    cluster: ElectedCluster, running: list[Agent], chance: random.Random, with_rivals: bool
) -> list[tuple[float, str]]:
    """What happens to the register and to the process that serves; in some schedules often enough for two of them."""
    register, server = cluster.register, cluster.current
    forgets = cluster.seed % 3 == 0
    options = [(0.3, "close"), (0.4 * forgets, "register empty"), (0.5, "register touch")]
    options.append((3.0, "register back") if register.is_away else (0.6, "register away"))
    trouble = [
        "loss=0 stale=0 late=0 delay=0.001:0.003",
        f"loss={chance.choice([0.1, 0.4])}",
        f"stale={chance.choice([0.2, 0.6])}",
        f"late={chance.choice([0.2, 1.0, 4.0])}",
        "delay=2:10",
        "delay=0.05:0.3",
    ]
    options.append((1.0, f"register {chance.choice(trouble)}"))
    if running:
        name = chance.choice(running).name
        options += [(0.4, f"hide {name}"), (0.4, f"unplug {name}"), (0.3, f"refuse {name}")]
        options.append((0.2, f"evict {name} {4 * (cluster.seed % 2)}"))
    if server is not None:
        name, often = server.peer.name, 3.0 if with_rivals else 0.7
        options += [(often, f"{verb} {name}") for verb in ("kill", "pause", "unplug")]
        options += [(often / 2, f"{verb} {name}") for verb in ("vanish", "freeze", "cut", "withdraw", "hide")]
        options.append((often / 2, f"doom {name} {chance.choice(['record', 'tell'])}"))
        others = [agent.name for agent in running if agent is not server.peer]
        if others and with_rivals:
            options.append((often, f"refuse {chance.choice(others)}"))
    return options


def _part_the_server(cluster: ElectedCluster, nodes: int, chance: random.Random, do: Do) -> None:
    """When all is well, the host of the server is cut off from most of the nodes, and not from the register (17e).

    Last of all, so that what a seed stood for before is what it stands for now.
    """
    for number in range(nodes):
        name = f"n{number}"
        if name not in cluster.agents or not cluster.agents[name].alive:
            do(_start(name, cluster, chance))
    end_faults(cluster, do)
    server = cluster.current
    if server is None:
        return
    others = [agent.name for agent in cluster.agents.values() if agent.alive and agent is not server.peer]
    chance.shuffle(others)
    most = (len(others) + 1) // 2 + 1
    if most <= len(others):
        do(f"part {server.peer.name} {' '.join(others[: chance.randint(most, len(others))])}")
        do(f"advance {PARTED_S:.0f}")


def _replace_the_server(cluster: ElectedCluster, chance: random.Random, do: Do) -> None:
    """At rest, the server dies in a process that has no part in the world, or has finished: nobody's world ends (17f)."""
    server = cluster.current
    holders = [peer for peer in cluster.peers if peer.alive and peer.view.state is State.HOLDS]
    if server is None or not any(peer is not server.peer for peer in holders):
        return
    name, vanishes = server.peer.name, chance.random() < VANISHED
    if server.peer in holders:
        do(f"finish {name}")
        do(f"advance {FINISHED_S}")
    if server.alive:
        do(f"{'vanish' if vanishes else 'kill'} {name}")
        do(f"advance {REPLACED_S[vanishes]:.0f}")


def _weather(chance: random.Random) -> str:
    """Another kind of network."""
    return chance.choice(
        [
            "network loss=0 twice=0 delay=0.001",
            f"network loss={chance.choice([0.02, 0.1, 0.3])}",
            f"network twice={chance.choice([0.1, 0.5])}",
            f"network delay=0.001:{chance.choice([0.05, 0.3, 1.0])}",
        ]
    )


def _start(name: str, cluster: Cluster, chance: random.Random) -> str:
    words = [f"start {name}"]
    if chance.random() < 0.12:
        words.append("spare")
    if chance.random() < 0.15:
        words.append(f"rank={chance.randrange(cluster.bounds.max + 1)}")
    if chance.random() < 0.2:
        words.append(f"topology={chance.choice('ab')}/{chance.choice('xy')}")
    if chance.random() < 0.3:
        words.append(f"stop={chance.choice([0.0, 0.5, 2.0])}")
    if chance.random() < 0.15:
        words.append(f"timeout={chance.choice([3.0, 10.0])}")
    if chance.random() < 0.2:
        words.append(f"rate={chance.choice([0.98, 1.02])}")
    if isinstance(cluster, ElectedCluster) and chance.random() < 0.2:
        words.append(f"rest={chance.choice([1.0, 6.0])}")
    if _has_unequal_heartbeats(cluster.seed) and chance.random() < 0.4:
        words.append(f"heartbeat={chance.choice(HEARTBEATS)}")
    if isinstance(cluster, ElectedCluster) and name != "n0" and chance.random() < 0.08:
        words.append("guest")
    return " ".join(words)
