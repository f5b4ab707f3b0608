"""A node watches before it says its word, so that the answer comes soon; and misses nothing where that came too late."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from rallypoint.core import codec
from rallypoint.core.model import Bounds, Phase
from rallypoint.core.notices import Refused
from rallypoint.etcd.board import Board, encode_board
from rallypoint.etcd.keys import Keys
from rallypoint.etcd.reading import Reading
from rallypoint.etcd_client import EtcdClient, put_op
from rallypoint.etcd_client.conductor import Watcher
from tests.etcd.servers import Cluster
from tests.etcd_client.stage import SOON_S, behind_proxy, etcd
from tests.etcd_v3.harness import PREFIX, EtcdStage, by_rank

NODE = "a.0123456789ab_1"


class Reader:
    """A reading with what it stands on; the clients are its own, and so are their streams."""

    def __init__(self, endpoints: str, run: str) -> None:
        self.client = EtcdClient(endpoints, timeout_s=SOON_S)
        self.leader = EtcdClient(endpoints, timeout_s=SOON_S)
        self.keys = Keys(PREFIX, run)
        self.woken = threading.Event()
        self.reading = Reading(self.client, self.keys, run, self.woken.set)

    def say(self) -> int:
        """The node's word: its revision."""
        return self.client.put(self.keys.node(NODE), "here").revision

    def tell(self, why: str, phase: Phase = Phase.GATHERING) -> int:
        """What a leader writes: to this node, and for all."""
        told = put_op(self.keys.told(NODE), codec.encode_message(Refused(why)))
        board = put_op(
            self.keys.board, encode_board(Board(token=why, lease=0, phase=phase, bounds=Bounds(1, 2), why=why))
        )
        return self.leader.transaction((), [told, board]).revision

    def hears(self, why: str) -> None:
        """This is told to it and stands on the board, and nothing else before."""
        told: list[str] = []
        boards: list[str] = []
        known = self.reading.board
        while told != [why] or why not in boards:
            for _ in self.reading.news():
                said, board = self.reading.take_told(), self.reading.board
                told += [said.why] if isinstance(said, Refused) else []
                boards += [board.why] if board is not None and board is not known else []
            assert set(told) | set(boards) <= {why}, (told, boards)
            if told != [why] or why not in boards:
                assert self.woken.wait(SOON_S), (told, boards)
                self.woken.clear()

    def knows_where_it_began(self) -> None:
        while 0 in [watch.since for watch in self.reading._early]:
            assert self.woken.wait(SOON_S)
            self.woken.clear()

    def close(self) -> None:
        self.reading.forget()
        self.client.close()
        self.leader.close()


@pytest.fixture
def own_etcd() -> Iterator[Cluster]:
    """One whose clients share no stream with those of other tests."""
    with etcd() as cluster:
        yield cluster


@pytest.fixture
def reader(own_etcd: Cluster, run: str) -> Iterator[Reader]:
    reader = Reader(own_etcd.endpoints, run)
    yield reader
    reader.close()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[EtcdClient]:
    """Who asks etcd for something from now on, instead of waiting for it."""
    made: list[EtcdClient] = []
    for name in ("get", "range", "transaction"):
        method = getattr(EtcdClient, name)

        def counted(client: EtcdClient, *what: object, _method: object = method, **options: object) -> object:
            made.append(client)
            return _method(client, *what, **options)  # type: ignore[operator]

        monkeypatch.setattr(EtcdClient, name, counted)
    return made


def test_who_began_in_time_hears_all_and_reads_nothing(reader: Reader, reads: list[EtcdClient]) -> None:
    reader.reading.begin_ahead(NODE)
    reader.knows_where_it_began()
    reader.reading.begin(NODE, reader.say() + 1, in_doubt=False)
    reader.tell("full")
    reader.hears("full")
    assert reads.count(reader.client) == 0


@pytest.fixture
def may_open(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Until this is set, no stream of watches is opened."""
    may_open, open_stream = threading.Event(), Watcher._open

    def open_late(watcher: Watcher) -> None:
        assert may_open.wait(SOON_S)
        open_stream(watcher)

    monkeypatch.setattr(Watcher, "_open", open_late)
    return may_open


def test_who_began_too_late_reads_what_it_missed(
    reader: Reader, reads: list[EtcdClient], may_open: threading.Event
) -> None:
    reader.reading.begin_ahead(NODE)
    said = reader.say()
    reader.tell("missed")
    reader.reading.begin(NODE, said + 1, in_doubt=False)
    assert list(reader.reading.news()) == [], "nobody knows yet whether there is anything to read"
    may_open.set()
    reader.hears("missed")
    assert reads.count(reader.client) == 1, "the board and what it is told, at once"
    reader.tell("heard")
    reader.hears("heard")
    assert reads.count(reader.client) == 1


def test_who_is_not_told_when_it_began_watches_from_its_word_on(
    own_etcd: Cluster, run: str, may_open: threading.Event
) -> None:
    with behind_proxy(own_etcd) as proxy:
        reader = Reader(proxy.endpoint, run)
        reader.reading.begin_ahead(NODE)
        said = reader.say()
        reader.tell("missed")
        reader.reading.begin(NODE, said + 1, in_doubt=False)
        may_open.set()
        reader.hears("missed")
        reader.tell("heard")
        reader.hears("heard")
        reader.close()


def test_what_was_written_before_the_word_is_not_for_this_node(reader: Reader) -> None:
    reader.reading.begin_ahead(NODE)
    reader.knows_where_it_began()
    reader.tell("of an earlier run")
    reader.client.delete(reader.keys.board)
    reader.reading.begin(NODE, reader.say() + 1, in_doubt=False)
    reader.tell("new")
    reader.hears("new")


def test_who_comes_back_under_another_name_watches_for_that(reader: Reader) -> None:
    other = NODE + "2"
    reader.reading.begin_ahead(other)
    reader.knows_where_it_began()
    reader.reading.begin_ahead(NODE)
    reader.knows_where_it_began()
    reader.reading.begin(NODE, reader.say() + 1, in_doubt=False)
    reader.client.put(reader.keys.told(other), codec.encode_message(Refused("not for me")))
    reader.tell("for me")
    reader.hears("for me")


def test_nodes_form_and_regroup_behind_etcds_proxy(stage: EtcdStage, own_etcd: Cluster, run: str) -> None:
    """Which does not tell with what a watch begins."""
    with behind_proxy(own_etcd) as proxy:
        a, b, late = stage.nodes("a", "b", "late")
        for node in (a, b):
            node.join(proxy.endpoint, "2:3", run)
        by_rank([a, b], round=1)
        late.join(proxy.endpoint, "2:3", run)
        for node in (a, b):
            node.changed()
            node.again()
        by_rank([a, b, late], round=2)
        for node in (late, b, a):
            node.order("finish")
        for node in (late, b, a):
            assert node.expect("left")["done"]


def test_the_later_ones_of_a_crowd_share_the_watches_of_the_first(reader: Reader, reads: list[EtcdClient]) -> None:
    crowd = [reader.client.watch(reader.keys.board, revision=1) for _ in range(64)]
    reader.reading.begin_ahead(NODE)
    assert reader.reading._early == []
    reader.reading.begin(NODE, reader.say() + 1, in_doubt=False)
    reader.tell("full")
    reader.hears("full")
    assert reads.count(reader.client) == 0
    for watch in crowd:
        watch.close()
