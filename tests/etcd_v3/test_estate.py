"""A run is read in several steps, and all of it as it was at one revision, whatever is written meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rallypoint.core.model import Bounds, Node, Phase
from rallypoint.etcd.adopting import Estate
from rallypoint.etcd.board import Board, Sealing, Seated, encode_board, encode_roster
from rallypoint.etcd.estate import read_estate
from rallypoint.etcd.keys import Keys
from rallypoint.etcd_client import EtcdClient, EtcdCompactedError, KeyValue, Outcome, delete_op, put_op
from rallypoint.etcd_client.messages import RangeResponse
from tests.etcd.servers import Cluster
from tests.etcd_client.stage import SOON_S, etcd
from tests.etcd_v3.harness import PREFIX

NODES = ("a", "b", "c", "d", "e")
READS = 5
"""Three pages of words, the board, and the one part of its roster."""


class Interrupted(EtcdClient):
    """A client with small pages; something happens right before a certain read."""

    def __init__(self, endpoints: str, before_read: int, meanwhile: Callable[[], object]) -> None:
        super().__init__(endpoints, timeout_s=SOON_S)
        self.reads = 0
        self._before_read, self._meanwhile = before_read, meanwhile

    def _reads_once_more(self) -> None:
        self.reads += 1
        if self.reads == self._before_read:
            self._meanwhile()

    def pages(self, *what: Any, **options: Any) -> Iterator[RangeResponse]:
        self._reads_once_more()
        for page in super().pages(*what, page=2, **options):
            yield page
            if page.more:
                self._reads_once_more()

    def get(self, *what: Any, **options: Any) -> KeyValue | None:
        self._reads_once_more()
        return super().get(*what, **options)


class Writer:
    """Writes all of a run anew: each node's word, the board, and the world that it names, in place of another."""

    def __init__(self, client: EtcdClient, run: str) -> None:
        self.client, self.run, self.keys = client, run, Keys(PREFIX, run)

    def write(self, seal_id: str) -> Outcome:
        roster = [Seated(Node(id=name, name=name, store=seal_id), 1) for name in NODES]
        (part,) = encode_roster(roster)
        sealing = Sealing(seal_id, 1, len(NODES), seal_id, 1, 0)
        board = Board(token=seal_id, lease=0, phase=Phase.SEALED, incarnation="i", bounds=Bounds(5, 5), world=sealing)
        return self.client.transaction(
            (),
            [
                *(put_op(self.keys.node(name), seal_id) for name in NODES),
                put_op(self.keys.board, encode_board(board)),
                put_op(self.keys.part(seal_id, 0), part),
                *(delete_op(first, end=end) for first, end in self.keys.besides(seal_id)),
            ],
        )

    def compact(self) -> None:
        self.client.compact(self.client.put("elsewhere", "x").revision)


@pytest.fixture(scope="module")
def own_etcd() -> Iterator[Cluster]:
    """One whose history nobody else needs."""
    with etcd() as cluster:
        yield cluster


@pytest.fixture
def writer(own_etcd: Cluster, run: str) -> Iterator[Writer]:
    with EtcdClient(own_etcd.endpoints, timeout_s=SOON_S) as client:
        yield Writer(client, run)


def check(found: Estate, seal_id: str, written: int) -> None:
    """All of it is what was written at once."""
    assert [word.value for word in found.words] == [seal_id.encode()] * len(NODES)
    assert {word.written for word in found.words} == {found.shown} == {written}
    assert found.board is not None
    assert found.board.token == seal_id
    assert [(seated.node.id, seated.node.store) for seated in found.roster] == [(name, seal_id) for name in NODES]


@pytest.mark.parametrize("before_read", range(2, READS + 1))
def test_a_run_is_read_as_it_was_at_one_revision_though_all_is_written_anew_meanwhile(
    own_etcd: Cluster, writer: Writer, before_read: int
) -> None:
    written = writer.write("first").revision
    client = Interrupted(own_etcd.endpoints, before_read, lambda: writer.write("second"))
    with client:
        found = read_estate(client, writer.keys, writer.run)
    assert client.reads == READS
    check(found, "first", written)
    assert found.revision == written


@pytest.mark.parametrize("before_read", range(2, READS + 1))
def test_a_reading_whose_revision_was_compacted_meanwhile_begins_anew(
    own_etcd: Cluster, writer: Writer, before_read: int
) -> None:
    writer.write("first")
    written = 0

    def meanwhile() -> None:
        nonlocal written
        written = writer.write("second").revision
        writer.compact()

    client = Interrupted(own_etcd.endpoints, before_read, meanwhile)
    with client:
        found = read_estate(client, writer.keys, writer.run)
    assert client.reads == before_read + READS
    check(found, "second", written)
    assert found.revision > written, "what it reads is as it was when it began anew"


def test_what_was_compacted_cannot_be_read(own_etcd: Cluster, writer: Writer) -> None:
    """Else the test before this one would prove nothing."""
    written = writer.write("first").revision
    writer.write("second")
    writer.compact()
    with pytest.raises(EtcdCompactedError):
        writer.client.get(writer.keys.board, revision=written)
