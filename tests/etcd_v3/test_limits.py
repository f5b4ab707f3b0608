"""Ten thousand nodes fit into what etcd takes: 1.5 MiB a request, 128 operations a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from rallypoint.core import codec
from rallypoint.core.events import Joined
from rallypoint.core.model import Bounds, Node, Phase, Run, Settings
from rallypoint.etcd.adopting import adopt
from rallypoint.etcd.board import decode_board, decode_roster
from rallypoint.etcd.estate import read_estate
from rallypoint.etcd.keys import Keys
from rallypoint.etcd.leader import Leader
from rallypoint.etcd.leading import Draft, Gone, Leading, Word
from rallypoint.etcd_client import EtcdClient, Guarded, Outcome, compare, put_op
from rallypoint.etcd_client.messages import Compare, RequestOp, TxnRequest
from rallypoint.etcd_client.wire import encode
from tests.etcd.servers import shared
from tests.etcd_v3.harness import PREFIX, EtcdStage, observing

MOST_BYTES = 1.5 * 1024 * 1024
MOST_OPERATIONS = 128
KEYS = Keys("/rallypoint", "run")


class Scales(EtcdClient):
    """A client that weighs what it is given to write, and keeps the values."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1:1")
        self.requests: list[tuple[int, int]] = []
        self.kept: dict[bytes, bytes] = {}

    def transaction(self, when: Sequence[Compare] = (), then: Sequence[RequestOp] = (), *_: Any, **__: Any) -> Outcome:
        self.weigh(when, then)
        return Outcome(True, 1, ())

    def guarded_put(
        self, key: Any, value: Any, *, mod_revision: int, when: Any = (), then: Any = (), **_: Any
    ) -> Guarded:
        self.weigh([compare(key, mod_revision=mod_revision), *when], [put_op(key, value), *then])
        return Guarded(True, mod_revision + 1, None)

    def weigh(self, when: Sequence[Compare], then: Sequence[RequestOp]) -> None:
        self.requests.append((len(encode(TxnRequest(tuple(when), tuple(then)))), len(when) + len(then)))
        for operation in then:
            if operation.request_put is not None:
                self.kept[operation.request_put.key] = operation.request_put.value


def write(leading: Leading, draft: Draft) -> Scales:
    """Write as a leader would."""
    scales, leader = Scales(), Leader.__new__(Leader)
    leader._client, leader._keys, leader._shown = scales, KEYS, 0
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


def near(number: int) -> Node:
    """A node on this machine."""
    return msgspec.structs.replace(
        member(number, longest=False), address="127.0.0.1", store=f"127.0.0.1:{20_000 + number}"
    )


def seal(count: int, *, longest: bool) -> tuple[Leading, list[Node], Draft]:
    """So many nodes have come, and their leader has sealed their world."""
    tokens = iter(range(10**9))
    leading = Leading(Run(run_id="run"), lambda: f"{next(tokens):016x}")
    nodes = [member(number, longest=longest) for number in range(count)]
    bounds, settings = Bounds(max(count // 2, 1), count), Settings()
    words = [
        Word(node.id, codec.encode_message(Joined(node, bounds, settings)), revision, revision)
        for revision, node in enumerate(nodes, 2)
    ]
    leading.take_all(words, (), count + 2, 100.0)
    draft = leading.draft(100.0)
    assert draft is not None
    return leading, nodes, draft


def check_weights(scales: Scales) -> None:
    assert max(size for size, _ in scales.requests) < MOST_BYTES
    assert max(operations for _, operations in scales.requests) <= MOST_OPERATIONS


def check_roster(scales: Scales, draft: Draft, nodes: Sequence[Node]) -> None:
    """All of the world was written, and each node's place in it."""
    assert draft.board is not None
    world = draft.board.world
    assert world is not None
    assert decode_board(scales.kept[KEYS.board.encode()], "run").world == world
    parts = [scales.kept[KEYS.part(world.seal_id, n).encode()] for n in range(world.parts)]
    assert {seated.node.id for seated in decode_roster(parts, world, "run")} == {node.id for node in nodes}
    assert all(KEYS.told(node.id).encode() in scales.kept for node in nodes)


@pytest.mark.parametrize("longest", [False, True], ids=["ordinary", "longest"])
@pytest.mark.parametrize("count", [1, 2, 25, 98, 99, 100, 127, 128, 200])
def test_a_small_world_goes_into_one_transaction_that_etcd_takes(count: int, longest: bool) -> None:
    """As long as it fits; it is the board's own, which all the rest goes along with."""
    leading, nodes, draft = seal(count, longest=longest)
    scales = write(leading, draft)
    check_weights(scales)
    check_roster(scales, draft, nodes)
    if count <= 25:
        assert scales.requests[0][1] > count, "all of it at once"


@pytest.mark.parametrize(("count", "longest"), [(10_000, False), (1_000, True)], ids=["ordinary", "longest"])
def test_ten_thousand_nodes_are_published_in_requests_that_etcd_takes(count: int, longest: bool) -> None:
    leading, nodes, draft = seal(count, longest=longest)
    scales = write(leading, draft)
    check_weights(scales)
    assert len(scales.requests) < count / 100 + 30 + len(draft.parts), "and in few of them"
    check_roster(scales, draft, nodes)
    assert len(scales.kept[KEYS.board.encode()]) < 8192, "everybody is sent every board"
    # Nine of ten are lost at once.
    leading.written(draft, 100.0)
    leading.take([Gone(node.id, count + 10) for node in nodes[count // 10 :]], 101.0)
    broken = leading.draft(101.0)
    assert broken is not None
    check_weights(write(leading, broken))


@pytest.mark.parametrize(
    ("count", "comes", "version"),
    [
        (2_000, "last", "3.5"),
        *(
            pytest.param(10_000, comes, version, marks=pytest.mark.soak)
            for comes, version in (("last", "3.4"), ("last", "3.5"), ("first", "3.4"), ("first", "3.5"))
        ),
    ],
)
def test_thousands_of_leased_keys_become_one_world(
    stage: EtcdStage, run: str, count: int, comes: str, version: str
) -> None:
    """Real keys on a real lease, as many processes would have written them, and one node that leads all of them.

    It comes last and finds them there, or first and hears of each.  Who would take over finds all of it in etcd; and in
    the end all of them are lost at once.
    """
    cluster = shared(version, 3)
    with observing(cluster.endpoints, run) as observer:
        client, keys = observer.client, observer.keys
        node = stage.node("leads")
        bounds, options = Bounds(count, count + 1), {"last_call_timeout": 30.0, "join_timeout": 120.0, "lease_ttl": 10}
        if comes == "first":
            node.join(cluster.endpoints, str(bounds), run, **options)
            assert observer.leading([node]) is node
        lease = client.grant(120)
        words = [
            put_op(
                keys.node(one.id),
                codec.encode_message(Joined(one, bounds, Settings(last_call_s=30.0))),
                lease=lease.id,
            )
            for one in (near(number) for number in range(count))
        ]
        for first in range(0, count, 100):
            client.transaction((), words[first : first + 100])
        if comes == "last":
            node.join(cluster.endpoints, str(bounds), run, **options)
        place = node.expect("placed", 120.0, size=count + 1, round=1)
        told = client.range(f"{PREFIX}/{run}/out/told/", prefix=True, count_only=True)
        assert told.count == count + 1
        peers = node.ask("peers", "peers")["peers"]
        assert [peer[0] for peer in peers] == list(range(count + 1))
        assert peers[place["rank"]][1] == "leads"
        estate = read_estate(client, keys, run)
        assert [seated.node.name for seated in estate.roster] == [peer[1] for peer in peers]
        heir = adopt(run, estate, 0.0, lambda: "token")
        assert heir.run.world is not None
        assert (heir.run.phase, heir.run.world.size, len(heir.run.active)) == (Phase.SEALED, count + 1, count + 1)
        assert heir.draft(0.0) is None, "who takes over has nothing to change"
        node.undisturbed()
        client.revoke(lease)
        assert "lost: its lease ended" in node.expect("changed", 120.0)["why"]
        node.ask("withdraw", "left")
