"""Ten thousand nodes fit into what etcd takes: 1.5 MiB a request, 128 operations a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from rallypoint.core import codec
from rallypoint.core.events import Joined
from rallypoint.core.model import Bounds, Node, Run, Settings
from rallypoint.etcd.board import decode_roster
from rallypoint.etcd.keys import Keys
from rallypoint.etcd.leader import Leader
from rallypoint.etcd.leading import Draft, Gone, Leading, Word
from rallypoint.etcd_client import EtcdClient, Guarded, Outcome, compare, put_op
from rallypoint.etcd_client.messages import Compare, RequestOp, TxnRequest
from rallypoint.etcd_client.wire import encode
from tests.etcd.servers import Cluster
from tests.etcd_v3.harness import PREFIX, EtcdStage, Observer

MOST_BYTES = 1.5 * 1024 * 1024
MOST_OPERATIONS = 128


class Scales(EtcdClient):
    """A client that weighs what it is given to write, and keeps the values."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1:1")
        self.requests: list[tuple[int, int]] = []
        self.kept: dict[bytes, bytes] = {}

    def transaction(self, when: Sequence[Compare] = (), then: Sequence[RequestOp] = (), *_: Any, **__: Any) -> Outcome:
        self.weigh(when, then)
        return Outcome(True, 1, ())

    def guarded_put(self, key: Any, value: Any, *, mod_revision: int, when: Any = (), **_: Any) -> Guarded:
        self.weigh([compare(key, mod_revision=mod_revision), *when], [put_op(key, value)])
        return Guarded(True, mod_revision + 1, None)

    def weigh(self, when: Sequence[Compare], then: Sequence[RequestOp]) -> None:
        self.requests.append((len(encode(TxnRequest(tuple(when), tuple(then)))), len(when) + len(then)))
        for operation in then:
            if operation.request_put is not None:
                self.kept[operation.request_put.key] = operation.request_put.value


def write(leading: Leading, draft: Draft) -> Scales:
    """Write as a leader would."""
    scales, leader = Scales(), Leader.__new__(Leader)
    leader._client, leader._keys, leader._shown = scales, Keys("/rallypoint", "run"), 0
    leader._mine = compare(leader._keys.leader, create_revision=1)
    leader._write(leading, draft)
    scales.close()
    return scales


def member(number: int, *, longest: bool) -> Node:
    if longest:
        text = f"{number:06d}".ljust(256, "x")
        return Node(id=text, name=text, address="a" * 128, store="s" * 128, topology="é" * 4096)
    name = f"worker-{number:05d}.training.cluster.example.com"
    return Node(
        id=f"{name}.{number:012x}",
        name=name,
        address=f"fd00:1234:5678:9abc::{number:x}",
        store=f"[fd00:1234:5678:9abc::{number:x}]:48123",
        topology=f"zone-{number // 1000}/rack-{number // 40:04d}/host-{number}",
    )


@pytest.mark.parametrize(("count", "longest"), [(10_000, False), (1_000, True)], ids=["ordinary", "longest"])
def test_ten_thousand_nodes_are_published_in_requests_that_etcd_takes(count: int, longest: bool) -> None:
    tokens = iter(range(10**9))
    leading = Leading(Run(run_id="run"), lambda: f"{next(tokens):016x}")
    nodes = [member(number, longest=longest) for number in range(count)]
    bounds, settings = Bounds(count // 2, count), Settings()
    words = [
        Word(node.id, codec.encode_message(Joined(node, bounds, settings)), revision, revision)
        for revision, node in enumerate(nodes, 2)
    ]
    leading.take_all(words, (), count + 2, 100.0)
    draft = leading.draft(100.0)
    assert draft is not None
    assert draft.board is not None
    assert draft.board.world is not None
    scales = write(leading, draft)
    assert max(size for size, _ in scales.requests) < MOST_BYTES
    assert max(operations for _, operations in scales.requests) <= MOST_OPERATIONS
    assert len(scales.requests) < count / 100 + 30 + len(draft.parts), "and in few of them"
    world = draft.board.world
    parts = [scales.kept[Keys("/rallypoint", "run").part(world.seal_id, n).encode()] for n in range(world.parts)]
    roster = decode_roster(parts, world, "run")
    assert {seated.node.id for seated in roster} == {node.id for node in nodes}
    assert len(scales.kept[Keys("/rallypoint", "run").board.encode()]) < 8192, "everybody is sent every board"
    # Nine of ten are lost at once.
    leading.written(draft, 100.0)
    leading.take([Gone(node.id, count + 10) for node in nodes[count // 10 :]], 101.0)
    draft = leading.draft(101.0)
    assert draft is not None
    scales = write(leading, draft)
    assert max(size for size, _ in scales.requests) < MOST_BYTES
    assert max(operations for _, operations in scales.requests) <= MOST_OPERATIONS


def test_two_thousand_leased_keys_become_one_world(
    stage: EtcdStage, cluster: Cluster, run: str, observer: Observer
) -> None:
    """Real keys on a real lease, as many processes would have written them, and one node that comes last and leads."""
    count = 2000
    client, keys = observer.client, observer.keys
    node = stage.node("last")
    with client.grant(60) as lease:
        words = [
            put_op(
                keys.node(node.id),
                codec.encode_message(Joined(node, Bounds(count, count + 1), Settings(last_call_s=30.0))),
                lease=lease.id,
            )
            for node in (
                Node(id=f"n{n}.x", name=f"n{n}", address="127.0.0.1", store=f"127.0.0.1:{n + 1}") for n in range(count)
            )
        ]
        for first in range(0, count, 100):
            client.transaction((), words[first : first + 100])
        node.join(cluster.endpoints, f"{count}:{count + 1}", run)
        place = node.placed(size=count + 1, round=1)
        told = client.range(f"{PREFIX}/{run}/out/told/", prefix=True, count_only=True)
        assert told.count == count + 1
        peers = node.ask("peers", "peers")["peers"]
        assert [peer[0] for peer in peers] == list(range(count + 1))
        assert peers[place["rank"]][1] == "last"
        node.ask("withdraw", "left")
