"""Nodes that live by themselves at one server, and the harm that is done to all of them by the dice."""

from __future__ import annotations

import os
import random
from collections import Counter
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.node_processes import ControlledProcess, Event, Node, Processes, Server
from tests.support.run_invariants import World, check_ends, check_losses, check_places, recorded
from tests.support.waiting import until

NODES, MOST = "2:4", 4
CROWD = MOST + 1
"""One more than a world takes: somebody stands by, unless somebody was killed."""

PATIENCE_S = 90.0
HOLD_S = 5.0
"""Heartbeat time-out and largest pause between two attempts to connect, and some room."""
OPTIONS: dict[str, Any] = {
    "heartbeat_interval": 0.3,
    "heartbeat_timeout": 3.0,
    "last_call_timeout": 0.3,
    "join_timeout": PATIENCE_S,
    "is_host": False,
}
DECK = {"leave": 5, "kill": 4, "stop": 1, "kill server": 3, "stop server": 1}
"""What happens, and how often in so many steps, whatever the dice say."""


class Figures(NamedTuple):
    """What a process takes at some moment: memory, threads, open files."""

    round: int
    resident_kb: int
    threads: int
    files: int


def figures(process: ControlledProcess, round_: int) -> Figures:
    lines = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii").splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    files = len(os.listdir(f"/proc/{process.pid}/fd"))  # noqa: PTH208
    return Figures(round_, int(fields["VmRSS"].split()[0]), int(fields["Threads"]), files)


class RecordedNode(Node):
    """A node that writes down what happens to it, and lives by itself."""

    def __init__(self, name: str) -> None:
        ControlledProcess.__init__(self, "tests.support.recorded_node_program")
        self.name = name


class Crowd:
    """One run at one server: its nodes come back when they are killed, and so does the server, with what it wrote down."""

    def __init__(self, processes: Processes, folder: Path, deck: dict[str, int], seed: int) -> None:
        self.processes, self.folder = processes, folder
        self.chance, self.deck = random.Random(seed), deck
        self.alive: list[RecordedNode] = []
        self.coming: list[RecordedNode] = []
        self.killed: dict[str, float] = {}
        self.before: dict[str, int] = {}
        self.count = self.servers = self.highest = 0
        self.done: Counter[str] = Counter()
        self.taken: list[Figures] = []
        self.server = self._serve(0)

    def _serve(self, port: int) -> Server:
        self.servers += 1
        record = self.folder / f"server{self.servers}.jsonl"
        return self.processes.server(port=port, hold_s=HOLD_S, state=self.folder / "state", record=record)

    # Its nodes --------------------------------------------------------------------------------------------------------

    def fetch(self, count: int) -> None:
        """Let so many processes start, which are to join later."""
        while len(self.coming) < count:
            node = RecordedNode(f"n{self.count}")
            self.count += 1
            self.processes.actors.append(node)
            self.coming.append(node)

    def arrive(self, count: int) -> None:
        self.fetch(count)
        for _ in range(count):
            node = self.coming.pop(0)
            node.expect("ready")
            node.ask("record", "recording", path=str(self.folder / f"{node.name}.jsonl"))
            self.join(node)
            self.alive.append(node)
        self.fetch(2)

    def join(self, node: RecordedNode) -> None:
        self.before[node.name] = len(node.heard("placed"))
        node.join(self.server.endpoint, NODES, do="join_and_live", **OPTIONS)

    def kill(self, node: RecordedNode) -> None:
        self.killed[node.name] = datetime.now(timezone.utc).timestamp()  # as records have it, on one machine
        node.kill()
        self.alive.remove(node)
        self.processes.actors.remove(node)

    def stalls(self, node: RecordedNode) -> int:
        """How often this process stood still up to now, by its own record."""
        return sum(event["kind"] == "stalled" for event in recorded(self.folder, node.name).get(node.name, ()))

    def place(self, node: RecordedNode) -> Event:
        """Its last place since it joined."""
        places = node.heard("placed")[self.before[node.name] :]
        return places[-1] if places else {"fence": "", "round": 0, "size": 0}

    @property
    def round(self) -> int:
        self.highest = max(self.highest, *(self.place(node)["round"] for node in self.alive))
        return self.highest

    @property
    def members(self) -> list[RecordedNode]:
        """Who is in the newest world; the others stand by, or are on their way."""
        newest = max((self.place(node) for node in self.alive), key=lambda place: int(place["round"]))
        return [node for node in self.alive if newest["round"] and self.place(node)["fence"] == newest["fence"]]

    def is_together(self) -> bool:
        """Whether as many of those who live as fit into one world are in it, and nobody else is."""
        for node in self.alive:
            assert not node.heard("error"), node.account()
        members, size = self.members, min(len(self.alive), MOST)
        return len(members) == size and bool(self.place(members[0])["size"] == size)

    def meet(self) -> None:
        until(self.is_together, "all are together", PATIENCE_S)

    def is_beyond(self, round_: int, nodes: list[RecordedNode]) -> bool:
        return all(self.place(node)["round"] > round_ for node in nodes)

    # The harm ---------------------------------------------------------------------------------------------------------

    def play(self, rounds: int, *, samples: int = 20) -> None:
        """Do harm until there were so many rounds, and look at the server now and then."""
        deck: list[str] = []
        self.arrive(CROWD)
        self.meet()
        while self.round < rounds:
            if not deck:
                deck = [what for what, count in self.deck.items() for _ in range(count)]
                self.chance.shuffle(deck)
            self.do(deck.pop())
            if len(self.alive) < 3 or (len(self.alive) < CROWD and self.chance.random() < 0.7):
                self.arrive(CROWD - len(self.alive))
            if self.chance.random() < 0.7:
                self.meet()
            if self.round >= len(self.taken) * rounds / samples:
                self.look()
        self.arrive(CROWD - len(self.alive))
        self.look()

    def look(self) -> None:
        """What the server takes, once all are there again."""
        self.arrive(CROWD - len(self.alive))
        self.meet()
        self.taken.append(figures(self.server, self.round))

    def do(self, what: str) -> None:
        self.done[what] += 1
        if what in ("leave", "stop", "stop server"):
            self.meet()  # only who is in a world is missed
        node = self.chance.choice(self.members if what in ("leave", "stop") else self.alive)
        if what == "kill":
            self.kill(node)
            if self.chance.random() < 0.3 and len(self.alive) > 2:
                self.kill(self.chance.choice(self.alive))
        elif what == "leave":
            node.ask("withdraw", "left")
            self.join(node)
        elif what == "stop":
            stalls, before = self.stalls(node), self.round
            node.pause()
            others = [other for other in self.alive if other is not node]
            until(partial(self.is_beyond, before, others), "it is missed", PATIENCE_S)
            node.resume()
            until(lambda: self.stalls(node) > stalls, "it has written down that it stood still", PATIENCE_S)
        elif what == "kill server":
            self.server.kill()
            self.processes.actors.remove(self.server)
            if self.chance.random() < 0.3 and len(self.alive) > 2:
                self.kill(node)
            self.server = self._serve(self.server.port)
        elif what == "stop server":
            self.server.pause()
            members, seconds = self.members, self.chance.choice([0.0, 1.0, 3.0])
            for each in members:
                each.order("outage", seconds=seconds)
            for each in members:
                each.expect("outage")
            self.server.resume()

    # The verdict ------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Nothing happened that must never happen, by what everybody wrote down."""
        records = recorded(self.folder)
        worlds = known_worlds(records, told_by=self.servers)
        check_places(records, worlds)
        check_ends(records, worlds, self.killed)
        check_losses(records, self.killed)


def known_worlds(records: dict[str, list[Event]], *, told_by: int) -> dict[str, World]:
    """Every world that was sealed, by its seal id; a server that is killed may have sealed one and not written that down."""
    worlds: dict[str, World] = {}
    events = [event for name in sorted(records) for event in records[name]]
    for event in events:
        details = event["details"]
        if event["kind"] == "sealed":
            # A server that finds a world as it was, when it starts, says so once more.
            worlds.setdefault(details["seal_id"], World(details["round"], len(details["members"])))
    sealed = len(worlds)
    for event in events:
        if event["kind"] == "placed":
            details = event["details"]
            worlds.setdefault(details["seal_id"], World(details["round"], details["size"]))
    assert len(worlds) - sealed < told_by, "a world was told that no server had sealed"
    rounds = [world.round for world in worlds.values()]
    assert len(set(rounds)) == len(rounds), "a new world has a new round"
    return worlds
