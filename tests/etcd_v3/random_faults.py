"""Nodes on etcd that live by themselves, and the harm that is done to them and to the members of etcd by the dice."""

from __future__ import annotations

import random
from collections import Counter
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from tests.support.etcd_node_processes import OPTIONS, EtcdNode, EtcdProcesses, Observer, observing
from tests.support.etcd_servers import Cluster, Member
from tests.support.etcd_tools import status_of
from tests.support.run_invariants import Event, recorded
from tests.support.waiting import until

NODES = "2:4"
MOST = 4
CROWD = MOST + 1
"""One more than a world takes: somebody stands by, unless somebody was killed."""

PATIENCE_S = 60.0
DECK = {"leave": 5, "kill": 3, "server": 3, "member": 3, "stop": 1}
"""What happens, and how often in so many steps, whatever the dice say."""


class NodeGroup:
    """Nodes that join again by themselves, and come back when they are killed."""

    def __init__(
        self, processes: EtcdProcesses, cluster: Cluster, run: str, folder: Path, *, kills_members: bool
    ) -> None:
        self.processes, self.cluster, self.run, self.folder = processes, cluster, run, folder
        self.kills_members = kills_members
        self.alive: list[EtcdNode] = []
        self.killed: dict[str, float] = {}
        self.down: Member | None = None
        self.count = 0
        self.before: dict[str, int] = {}

    def arrive(self, count: int) -> None:
        """So many new processes, each with a record of its own."""
        names = [f"n{self.count + number}" for number in range(count)]
        self.count += count
        for node in self.processes.nodes(*names):
            node.ask("record", "recording", path=str(self.folder / f"{node.name}.jsonl"))
            self.join(node)
            self.alive.append(node)

    def join(self, node: EtcdNode) -> None:
        self.before[node.name] = len(node.heard("placed"))
        node.order(
            "join_and_live",
            endpoint=self.cluster.endpoints,
            run=self.run,
            nodes=NODES,
            options={**OPTIONS, "node_name": node.name, "join_timeout": PATIENCE_S},
        )

    def kill(self, node: EtcdNode) -> None:
        self.killed[node.name] = datetime.now(timezone.utc).timestamp()  # as records have it, on one machine
        node.kill()
        self.alive.remove(node)

    def stalls(self, node: EtcdNode) -> int:
        """How often this process stood still up to now, by its own record."""
        return sum(event["kind"] == "stalled" for event in recorded(self.folder).get(node.name, ()))

    def has_stalled(self, node: EtcdNode, before: int) -> bool:
        return self.stalls(node) > before

    def end(self, member: Member) -> None:
        """Kill a member of etcd, or tell it to end where that release does not survive it."""
        assert member.process is not None, "one at a time is down"
        if self.kills_members:
            member.kill()
        else:
            member.stop()
        self.down = member

    def restore(self) -> None:
        """The member of etcd that was killed comes back."""
        if self.down is not None:
            self.down.start()
            self.down.wait()
            self.down = None
            until(self.agree, "the members of etcd agree on what was written", PATIENCE_S)

    def agree(self) -> bool:
        """Whether all members of etcd count the same revision: what a watch that moves to another one stands on."""
        return len({status_of(self.cluster, member).revision for member in self.cluster.members}) == 1

    @property
    def round(self) -> int:
        return max((self.place(node)["round"] for node in self.alive), default=0)

    def place(self, node: EtcdNode) -> Event:
        """Its last place since it joined."""
        places = node.heard("placed")[self.before[node.name] :]
        return places[-1] if places else {"fence": "", "round": 0, "size": 0}

    @property
    def members(self) -> list[EtcdNode]:
        """Who is in the newest world; the others stand by, or are on their way."""
        newest = max((self.place(node) for node in self.alive), key=lambda place: int(place["round"]))
        return [node for node in self.alive if newest["round"] and self.place(node)["fence"] == newest["fence"]]

    def is_beyond(self, round_: int, nodes: list[EtcdNode]) -> bool:
        return all(self.place(node)["round"] > round_ for node in nodes)

    def account(self) -> str:
        """What every node has to say, and what is in etcd."""
        with observing(self.cluster.endpoints, self.run) as observer:
            found = observer.client.range(observer.keys.run, prefix=True)
            keys = [f"{kv.key.decode()} {kv.create_revision}..{kv.mod_revision}" for kv in found.kvs]
            state = f"revision {found.revision}: {keys}; {observer.record()}"
        for node in self.alive:
            node.ask("confess", "confessed")
        return "\n\n".join([state, *(f"{node.name} {node.account()}" for node in self.alive)])

    def is_together(self) -> bool:
        """Whether as many of those who live as fit into one world are in it, and nobody else is."""
        for node in self.alive:
            assert not node.heard("error"), self.account()
        members = self.members
        size = min(len(self.alive), MOST)
        return len(members) == size and bool(self.place(members[0])["size"] == size)

    def meet(self) -> None:
        until(self.is_together, "all are together", PATIENCE_S)


def play(group: NodeGroup, observer: Observer, seed: int, rounds: int) -> Counter[str]:
    """Do harm until there were so many rounds; what was done, and how often."""
    chance, done = random.Random(seed), Counter[str]()
    deck: list[str] = []
    group.arrive(CROWD)
    group.meet()
    while group.round < rounds:
        if not deck:
            deck = [what for what, count in DECK.items() for _ in range(count)]
            chance.shuffle(deck)
        what = deck.pop()
        done[what] += 1
        if what in ("leave", "stop"):
            group.meet()  # only who is in a world is missed
        node = chance.choice(group.members if what in ("leave", "stop") else group.alive)
        if what == "server":
            node = observer.server(group.alive)
        if what in ("kill", "server"):
            group.kill(node)
            if chance.random() < 0.3 and len(group.alive) > 2:
                group.kill(chance.choice(group.alive))
        elif what == "leave":
            node.ask("withdraw", "left")
            group.join(node)
        elif what == "stop":
            stalls = group.stalls(node)
            node.pause()
            others, before = [other for other in group.alive if other is not node], group.round
            until(partial(group.is_beyond, before, others), "it is missed", PATIENCE_S)
            node.resume()
            until(partial(group.has_stalled, node, stalls), "it has written down that it stood still", PATIENCE_S)
        elif what == "member":
            group.restore()
            group.end(chance.choice(group.cluster.members))
        if len(group.alive) < 3 or (len(group.alive) < CROWD and chance.random() < 0.7):
            group.arrive(CROWD - len(group.alive))
        if chance.random() < 0.7:
            group.meet()
    group.restore()
    if len(group.alive) < CROWD:
        group.arrive(CROWD - len(group.alive))
    group.meet()
    return done
