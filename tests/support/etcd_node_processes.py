"""Nodes on real etcd as processes that tests command and listen to, and etcd as an observer sees it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from rallypoint.etcd_client import EtcdClient, KeyChange, KeyValue, User
from rallypoint.location.registers.etcd_v3_keys import RecordKeys
from rallypoint.record import Record, decode
from tests.support.etcd_servers import Cluster
from tests.support.etcd_servers import Member as EtcdServer
from tests.support.etcd_tools import status_of
from tests.support.node_processes import ControlledProcess, Node, Processes
from tests.support.node_processes import by_rank as nodes_by_rank
from tests.support.waiting import until

PREFIX = "/test"
LEASE_TTL_S = 2
"""The shortest that etcd grants."""
OPTIONS: dict[str, Any] = {
    "etcd_prefix": PREFIX,
    "heartbeat_interval": 0.3,
    "heartbeat_timeout": 3.0,
    "lease_ttl": LEASE_TTL_S,
    "last_call_timeout": 0.3,
    "join_timeout": 40.0,
    "close_timeout": 30.0,
}


class EtcdNode(Node):
    """A node that joins through etcd."""

    def __init__(self, name: str, *, before: Sequence[str] = ()) -> None:
        ControlledProcess.__init__(self, "tests.support.etcd_node_program", before=before)
        self.name = name

    def join(self, endpoint: str, nodes: str | int, run: str = "run", *, do: str = "join", **options: Any) -> None:
        """Join; unless told otherwise with a claim's lease of two seconds."""
        given = {**OPTIONS, "node_name": self.name, **options}
        self.order(do, endpoint=endpoint, run=run, nodes=str(nodes), options=given)

    def standing(self) -> dict[str, Any]:
        return self.ask("standing", "standing")

    @property
    def round(self) -> int:
        """The round that it was placed in last."""
        return int(self.heard("placed")[-1]["round"])

    def undisturbed(self) -> None:
        """It reaches its server, has been told nothing, and holds its world."""
        self.ask("reach", "reached")
        standing = self.standing()
        assert standing["state"] == "HOLDS", self.account()
        assert self.heard("changed") == [], self.account()


def undisturbed(nodes: Sequence[EtcdNode]) -> None:
    """Each node reaches its server, and nobody was told anything."""
    try:
        for node in nodes:
            node.undisturbed()
    except AssertionError as exc:
        raise AssertionError("\n\n".join([str(exc), *(f"{node.name} {node.account()}" for node in nodes)])) from exc


def says(node: EtcdNode, words: str) -> bool:
    """Whether a node that waits says these words about it."""
    return words in node.ask("why", "why")["why"]


def has_logged(node: EtcdNode, words: str) -> bool:
    """Whether a node's process has said these words in its log."""
    return any(words in line for line in node.errors)


def others(nodes: Sequence[EtcdNode], *but: EtcdNode) -> list[EtcdNode]:
    """All of these nodes but some."""
    return [node for node in nodes if node not in but]


class EtcdProcesses(Processes):
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


def form(
    processes: EtcdProcesses, endpoints: str, run: str, *names: str, nodes: str | int, **options: Any
) -> list[EtcdNode]:
    """A world of these nodes, by rank; where more could come they are waited for, and do not."""
    made = processes.nodes(*names)
    for node in made:
        node.join(endpoints, nodes, run, **options)
    return by_rank(made, round=1, size=len(names))


def regroup(nodes: Sequence[EtcdNode], *new: EtcdNode, round: int) -> list[EtcdNode]:
    """Each of these is told that its world is over, and joins again: a world of all of them, by rank."""
    for node in nodes:
        node.changed()
        until(partial(is_to_regroup, node), "it is to join again, once it has found its server")
        node.again()
    return by_rank([*nodes, *new], round=round)


def are_one_world(nodes: Sequence[EtcdNode]) -> bool:
    """Whether these nodes, which live by themselves, and nobody else are in one world."""
    places = [place for node in nodes for place in node.heard("placed")[-1:]]
    return len(places) == len(nodes) and {(p["fence"], p["size"]) for p in places} == {(places[0]["fence"], len(nodes))}


def is_to_regroup(node: EtcdNode) -> bool:
    """What an elastic agent asks; where the server is away it is told to wait (rule 6b)."""
    return node.waiting() == 1


class Observer:
    """Somebody who takes no part in a run and looks at what is in etcd."""

    def __init__(self, endpoints: str, run: str, user: User | None = None) -> None:
        self.client = EtcdClient(endpoints, timeout_s=30.0, user=user)
        self.keys = RecordKeys(PREFIX, run)
        self.run = run

    def record(self) -> Record | None:
        found = self.client.get(self.keys.record)
        return None if found is None else decode(found.value)

    def known(self) -> Record:
        """The record, which is there."""
        record = self.record()
        assert record is not None, "there is a record"
        return record

    def claims(self) -> tuple[KeyValue, ...]:
        """The keys of claims that live."""
        return self.client.range(self.keys.claims, prefix=True).kvs

    def revision(self) -> int:
        """That of the whole of etcd."""
        return self.client.range(self.keys.record).revision

    def server(self, nodes: Sequence[EtcdNode]) -> EtcdNode:
        """Wait until one of these nodes serves, as it and the record say; which."""
        found: list[EtcdNode] = []

        def is_known() -> bool:
            record = self.record()
            claim_id = record.claim.id if record is not None and record.claim is not None else ""
            found[:] = [node for node in nodes if claim_id and node.standing()["claim"] == claim_id]
            return bool(found)

        until(is_known, f"one of {sorted(node.name for node in nodes)} serves")
        return found[0]

    def everything(self) -> tuple[KeyValue, ...]:
        """All keys of the run."""
        return self.client.range(self.keys.run, prefix=True).kvs

    def is_quiet(self, for_s: float) -> bool:
        """Whether nothing of the run changes for so long."""
        with self.client.watch(self.keys.run, prefix=True) as changes:
            return changes.get(timeout_s=for_s) is None

    def history(self) -> list[tuple[int, Record | None]]:
        """The record after each change to it, by revisions; None where it was deleted.  Nobody has compacted it."""
        found: list[tuple[int, Record | None]] = []
        mark = (
            f"{self.keys.run}zz-mark"  # a last change that is sure to come: a watch does not tell that there is no more
        )
        end = self.client.put(mark, b"").revision
        with self.client.watch(self.keys.run, prefix=True, revision=1) as watch:
            while True:
                change = watch.get(timeout_s=30.0)
                assert isinstance(change, KeyChange), change
                if change.revision >= end:
                    break
                if change.key == self.keys.record.encode():
                    found.append((change.revision, None if change.is_delete else decode(change.value)))
        self.client.delete(mark)
        return found

    def worlds(self) -> list[int]:
        """The rounds of all worlds that were ever recorded."""
        sealed = {r.world.seal_id: r.world.round for _, r in self.history() if r is not None and r.world is not None}
        return list(sealed.values())


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
    """The endpoints with this one first."""
    return ",".join(sorted(cluster.endpoints.split(","), key=lambda endpoint: endpoint != member.endpoint))


def leader_of(cluster: Cluster) -> EtcdServer:
    """Wait until one member of etcd leads, as all of them see it; which."""
    found: list[EtcdServer] = []

    def is_known() -> bool:
        statuses = [(member, status_of(cluster, member)) for member in cluster.members]
        leaders = {status.leader for _, status in statuses}
        found[:] = [member for member, status in statuses if leaders == {status.member_id}]
        return bool(found)

    until(is_known, "one member of etcd leads")
    return found[0]
