"""Many rounds while nodes and members of etcd are killed at random; what every process recorded breaks no invariant."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rallypoint.etcd_client import EtcdClient
from tests.etcd.servers import Cluster, Member
from tests.etcd_client.stage import etcd
from tests.etcd_v3.harness import EtcdNode, EtcdStage, Observer, observing, until
from tests.etcd_v3.test_campaign import check_boards

NODES = "2:4"
CROWD = 4
PATIENCE_S = 60.0

Event = dict[str, Any]


class Crowd:
    """Nodes that join again by themselves, and come back when they are killed."""

    def __init__(self, stage: EtcdStage, cluster: Cluster, run: str, folder: Path, *, kills_members: bool) -> None:
        self.stage, self.cluster, self.run, self.folder = stage, cluster, run, folder
        self.kills_members = kills_members
        self.alive: list[EtcdNode] = []
        self.down: Member | None = None
        self.count = 0
        self.before: dict[str, int] = {}

    def arrive(self, count: int) -> None:
        """So many new processes, each with a record of its own."""
        names = [f"n{self.count + number}" for number in range(count)]
        self.count += count
        for node in self.stage.nodes(*names):
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
            options={"node_name": node.name, "join_timeout": PATIENCE_S},
        )

    def kill(self, node: EtcdNode) -> None:
        node.kill()
        self.alive.remove(node)

    def end(self, member: Member) -> None:
        """Kill a member of etcd.

        etcd 3.5.0 to 3.5.2 lose what they have applied when they are killed, and count other revisions than the other
        members from then on: what is written there is in no watch that moves over.  They are told to end in order.
        """
        assert member.process is not None, "one at a time is down"
        if not self.kills_members:
            member.process.terminate()
            member.process.wait()
        member.kill()
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
        revisions = set()
        for member in self.cluster.members:
            with EtcdClient(member.endpoint, timeout_s=10.0) as client:
                revisions.add(client.range("x", serializable=True).revision)
        return len(revisions) == 1

    @property
    def round(self) -> int:
        return max((self.place(node)["round"] for node in self.alive), default=0)

    def place(self, node: EtcdNode) -> Event:
        return next(reversed(node.heard("placed")), {"fence": "", "round": 0, "size": 0})

    def is_beyond(self, round_: int, nodes: list[EtcdNode]) -> bool:
        return all(self.place(node)["round"] > round_ for node in nodes)

    def account(self) -> str:
        """What every node has to say, and what is in etcd."""
        with observing(self.cluster.endpoints, self.run) as observer:
            found = observer.client.range(observer.keys.run, prefix=True)
            keys = [f"{kv.key.decode()} {kv.create_revision}..{kv.mod_revision}" for kv in found.kvs]
            state = f"revision {found.revision}: {keys}; {observer.board()}; led by {observer.leader()}"
        for node in self.alive:
            node.ask("confess", "confessed")
        return "\n\n".join([state, *(f"{node.name} {node.account()}" for node in self.alive)])

    def is_together(self) -> bool:
        """Whether all who live are in one world, and nobody else is."""
        for node in self.alive:
            assert not node.heard("error"), self.account()
            if len(node.heard("placed")) == self.before[node.name]:
                return False
        places = [self.place(node) for node in self.alive]
        sizes = {place["size"] for place in places}
        return len({place["fence"] for place in places}) == 1 and sizes == {len(self.alive)}


def play(crowd: Crowd, seed: int, rounds: int) -> dict[str, int]:
    """Do harm until there were so many rounds; what was done, and how often."""
    chance, done = random.Random(seed), defaultdict[str, int](int)
    crowd.arrive(CROWD)
    until(crowd.is_together, "all are together", PATIENCE_S)
    while crowd.round < rounds:
        what = chance.choices(["kill", "leave", "member", "stop"], [25, 60, 12, 3])[0]
        done[what] += 1
        node = chance.choice(crowd.alive)
        if what == "kill":
            crowd.kill(node)
            if chance.random() < 0.3 and len(crowd.alive) > 2:
                crowd.kill(chance.choice(crowd.alive))
        elif what == "leave":
            until(crowd.is_together, "all are together", PATIENCE_S)
            node.ask("withdraw", "left")
            crowd.join(node)
        elif what == "stop":
            node.pause()
            others, before = [other for other in crowd.alive if other is not node], crowd.round
            until(partial(crowd.is_beyond, before, others), "it is missed", PATIENCE_S)
            node.resume()
        else:
            crowd.restore()
            crowd.end(chance.choice(crowd.cluster.members))
        if len(crowd.alive) < CROWD and chance.random() < 0.7:
            crowd.arrive(CROWD - len(crowd.alive))
        if chance.random() < 0.7:
            until(crowd.is_together, "all are together", PATIENCE_S)
    crowd.restore()
    if len(crowd.alive) < CROWD:
        crowd.arrive(CROWD - len(crowd.alive))
    until(crowd.is_together, "all are together in the end", PATIENCE_S)
    return done


def check(records: dict[str, list[Event]]) -> None:
    """The invariants of the simulation, from what each process wrote down."""
    rounds: dict[int, str] = {}
    members: dict[str, list[str]] = {}
    ranks: dict[str, dict[int, str]] = defaultdict(dict)
    sizes: dict[str, int] = {}

    def named(round_: int, seal_id: str) -> None:
        assert rounds.setdefault(round_, seal_id) == seal_id, f"round {round_} has two worlds"

    for name, events in records.items():
        held = ""
        highest = 0
        for event in events:
            details = event["details"]
            if event["kind"] == "sealed":
                assert details["seal_id"] not in members, "a world is sealed once"
                members[details["seal_id"]] = details["members"]
                named(details["round"], details["seal_id"])
            elif event["kind"] == "broken":
                assert details["seal_id"], "every notice names its world"
                named(details["round"], details["seal_id"])
            elif event["kind"] == "placed":
                assert not held, f"{name} holds two worlds"
                assert details["round"] > highest, "rounds only grow"
                held, highest = details["seal_id"], details["round"]
                named(details["round"], held)
                assert ranks[held].setdefault(details["rank"], details["node"]) == details["node"], "a rank given twice"
                assert sizes.setdefault(held, details["size"]) == details["size"]
            elif event["kind"] == "over":
                assert details["seal_id"] == held, f"{name} was told of a world that it is not in"
                held = ""
    assert len(set(rounds.values())) == len(rounds), "a world has one round"
    for seal_id, given in ranks.items():
        assert set(given) <= set(range(sizes[seal_id]))
        assert len(set(given.values())) == len(given), "a node has one rank"
        if seal_id in members:
            assert len(members[seal_id]) == sizes[seal_id]
            assert all(members[seal_id][rank] == node for rank, node in given.items())
    whole = [seal_id for seal_id, given in ranks.items() if set(given) == set(range(sizes[seal_id]))]
    assert len(whole) > len(ranks) / 2, "most worlds were taken up by all of their members"


def recorded(folder: Path) -> dict[str, list[Event]]:
    """What each process wrote down; a killed one may have been in the middle of a line."""
    records = {}
    for path in sorted(folder.glob("*.jsonl")):
        *lines, rest = path.read_text(encoding="utf-8").split("\n")
        del rest
        records[path.stem] = [json.loads(line) for line in lines]
    return records


@pytest.mark.parametrize(
    ("version", "seed", "rounds"),
    [
        ("3.4", 1, 30),
        *(pytest.param(version, seed, 200, marks=pytest.mark.soak) for version, seed in (("3.4", 2), ("3.5", 3))),
    ],
)
def test_rounds_under_random_kills(
    stage: EtcdStage, run: str, tmp_path: Path, version: str, seed: int, rounds: int
) -> None:
    with etcd(version, 3) as cluster, observing(cluster.endpoints, run) as observer:
        crowd = Crowd(stage, cluster, run, tmp_path, kills_members=version != "3.5")
        done = play(crowd, seed, rounds)
        assert done["kill"] >= rounds / 20
        assert done["member"] >= 1
        records = recorded(tmp_path)
        check(records)
        check_boards(observer.boards())
        told_closed(crowd, observer)


def told_closed(crowd: Crowd, observer: Observer) -> None:
    """In the end the run is closed, and everybody hears of it."""
    crowd.alive[0].ask("close", "closed")
    for node in crowd.alive:
        node.expect("ended")
    board = observer.board()
    assert board is not None
    assert board.ended is not None


def event(kind: str, **details: Any) -> Event:
    return {"kind": kind, "details": details}


def test_the_check_finds_what_is_wrong() -> None:
    """Each record that it lets pass with one thing changed is caught."""

    def placed(seal_id: str, round_: int, rank: int, node: str) -> Event:
        return event("placed", seal_id=seal_id, round=round_, rank=rank, size=2, node=node)

    sealed = event("sealed", seal_id="s1", round=1, members=["a", "b"])
    good = {"a": [sealed, placed("s1", 1, 0, "a"), event("over", seal_id="s1")], "b": [placed("s1", 1, 1, "b")]}
    check(good)
    more_of_a = {
        "holds two worlds": [sealed, placed("s1", 1, 0, "a"), placed("s2", 2, 0, "a")],
        "rounds only grow": [*good["a"], placed("s0", 0, 0, "a")],
        "has two worlds": [*good["a"], event("broken", seal_id="s9", round=1)],
        "a world is sealed once": [sealed, sealed],
        "a rank given twice": [sealed, placed("s1", 1, 1, "a")],
        "that it is not in": [sealed, placed("s1", 1, 0, "a"), event("over", seal_id="s7")],
        "a world has one round": [*good["a"], placed("s1", 2, 0, "a")],
    }
    for complaint, events in more_of_a.items():
        with pytest.raises(AssertionError, match=complaint):
            check({**good, "a": events})
