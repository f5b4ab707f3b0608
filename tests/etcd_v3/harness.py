"""Nodes on real etcd as processes that tests command and listen to, and etcd as an observer sees it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rallypoint.etcd import estate
from rallypoint.etcd.board import Board, decode_board
from rallypoint.etcd.keys import Keys
from rallypoint.etcd.leading import Word
from rallypoint.etcd_client import Change, EtcdClient, KeyValue, User
from tests.etcd.servers import Cluster
from tests.etcd.servers import Member as EtcdServer
from tests.faults.harness import Actor, Node, Stage
from tests.faults.harness import by_rank as nodes_by_rank
from tests.waiting import until

__all__ = [
    "PREFIX",
    "EtcdNode",
    "EtcdStage",
    "Observer",
    "by_rank",
    "first",
    "leader_of",
    "observing",
    "undisturbed",
]

PREFIX = "/test"


class EtcdNode(Node):
    """A node that joins through etcd."""

    def __init__(self, name: str, *, before: Sequence[str] = ()) -> None:
        Actor.__init__(self, "tests.etcd_v3.node", before=before)
        self.name = name

    def join(self, endpoint: str, nodes: str | int, run: str = "run", **options: Any) -> None:
        """Join; unless told otherwise with a lease of two seconds."""
        self.order("join", endpoint=endpoint, run=run, nodes=str(nodes), options={"node_name": self.name, **options})

    def standing(self) -> dict[str, Any]:
        return self.ask("standing", "standing")

    def way(self) -> dict[str, Any]:
        """Which member of etcd it asks, and how often it has fetched a token."""
        return self.ask("way", "way")

    def undisturbed(self) -> None:
        """It has been told nothing, and holds its world."""
        assert self.standing()["state"] == "HOLDS", self.account()
        assert self.heard("changed") == [], self.account()


def renewed(nodes: Sequence[EtcdNode]) -> None:
    """Wait until the lease of each node has been renewed once more."""
    for node in nodes:
        node.order("lease")
    for node in nodes:
        assert node.expect("renewed")["gained"], node.account()


def undisturbed(nodes: Sequence[EtcdNode]) -> None:
    """The lease of each node has been renewed since, and nobody was told anything."""
    renewed(nodes)
    for node in nodes:
        node.undisturbed()


class EtcdStage(Stage):
    """Makes nodes on etcd."""

    def nodes(self, *names: str, before: Sequence[str] = ()) -> list[EtcdNode]:  # type: ignore[override]
        nodes = [EtcdNode(name, before=before) for name in names]
        self.actors += nodes
        for node in nodes:
            node.expect("ready")
        return nodes

    def node(self, name: str, *, before: Sequence[str] = ()) -> EtcdNode:
        return self.nodes(name, before=before)[0]


def by_rank(nodes: Sequence[EtcdNode], **wanted: Any) -> list[EtcdNode]:
    """The nodes in the order of the ranks that they get; all of them in one world."""
    ranks = {node.name: rank for rank, node in enumerate(nodes_by_rank(nodes, **wanted))}
    return sorted(nodes, key=lambda node: ranks[node.name])


class Observer:
    """Somebody who takes no part in a run and looks at what is in etcd."""

    def __init__(self, endpoints: str, run: str, user: User | None = None) -> None:
        self.client = EtcdClient(endpoints, timeout_s=30.0, user=user)
        self.keys = Keys(PREFIX, run)
        self.run = run
        self.since = 1

    def board(self) -> Board | None:
        found = self.client.get(self.keys.board)
        return None if found is None else decode_board(found.value, self.run)

    def leader(self) -> str:
        """The id of the node that leads; empty where nobody does."""
        found = self.client.get(self.keys.leader)
        return "" if found is None else found.value.decode()

    def leading(self, nodes: Sequence[EtcdNode]) -> EtcdNode:
        """Wait until one of these nodes leads; which."""
        names = {node.name: node for node in nodes}
        until(lambda: self.leader().partition(".")[0] in names, f"one of {sorted(names)} leads")
        return names[self.leader().partition(".")[0]]

    def everything(self) -> tuple[KeyValue, ...]:
        """All keys of the run."""
        return self.client.range(self.keys.run, prefix=True).kvs

    def is_empty(self) -> bool:
        return not self.everything()

    def is_quiet(self, for_s: float) -> bool:
        """Whether nothing of the run changes for so long."""
        with self.client.watch(self.keys.run, prefix=True) as changes:
            return changes.get(timeout_s=for_s) is None

    def words(self) -> int:
        """How many nodes say something."""
        return len(self.client.range(self.keys.said, prefix=True, keys_only=True).kvs)

    def word(self, node: EtcdNode) -> Word:
        """What a node said last; an empty word where it says nothing."""
        found = self.client.range(self.keys.node(f"{node.name}."), prefix=True).kvs
        said = estate.saying_of(self.keys, found[0]) if found else None
        return said if isinstance(said, Word) else Word("", b"", 0, 0)

    def finished(self) -> int:
        """How many members have finished, as the board has it."""
        board = self.board()
        return 0 if board is None else board.finished

    def boards(self) -> list[Board]:
        """All boards of the run since a revision that nobody compacts."""
        found: list[Board] = []
        now = self.client.get(self.keys.board)
        assert now is not None, "there is a board"
        with self.client.watch(self.keys.board, revision=self.since) as watch:
            heard = 0
            while heard < now.mod_revision:
                change = watch.get(timeout_s=30.0)
                assert isinstance(change, Change), change
                heard = change.revision
                if not change.is_delete:
                    found.append(decode_board(change.value, self.run))
        return found

    def changes(self, since: int) -> Iterator[Change]:
        """All that has happened to the run's keys from a revision on up to now, in order; nobody has compacted it."""
        # A last change that is sure to come: a watch does not tell that there is no more.
        mark = f"{self.keys.runs}marks/{self.run}"
        end = self.client.put(mark, b"").revision
        with self.client.watch(self.keys.runs, prefix=True, revision=since) as watch:
            while True:
                change = watch.get(timeout_s=30.0)
                assert isinstance(change, Change), change
                if change.revision >= end:
                    break
                if change.key.startswith(self.keys.run.encode()):
                    yield change
        self.client.delete(mark)


@contextmanager
def observing(endpoints: str, run: str, user: User | None = None) -> Iterator[Observer]:
    """An observer that goes with the block."""
    observer = Observer(endpoints, run, user)
    try:
        yield observer
    finally:
        observer.client.close()


def fresh_run() -> str:
    """A run id that nobody else has."""
    return f"run-{secrets.token_hex(4)}"


def first(member: EtcdServer, cluster: Cluster) -> str:
    """The endpoints with this one first: it is the one that nodes talk to."""
    return ",".join(sorted(cluster.endpoints.split(","), key=lambda endpoint: endpoint != member.endpoint))


def leader_of(cluster: Cluster) -> EtcdServer:
    """Wait until one member leads, as all of them see it; which."""
    found: list[EtcdServer] = []

    def is_known() -> bool:
        with EtcdClient(cluster.endpoints, timeout_s=10.0) as client:
            statuses = [health.status for health in client.health()]
        leaders = {status.leader for status in statuses if status is not None}
        if len(leaders) != 1:
            return False
        found[:] = [
            member
            for member, status in zip(cluster.members, statuses, strict=True)
            if status is not None and status.header is not None and status.header.member_id in leaders
        ]
        return bool(found)

    until(is_known, "one member of etcd leads")
    return found[0]
