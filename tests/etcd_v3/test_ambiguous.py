"""Answers that are lost after the commit: what was written once counts once, and what became of it is found out."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from rallypoint.core.events import Left
from rallypoint.core.model import Phase
from rallypoint.etcd.leading import Word, message_of
from tests.etcd.servers import Cluster, shared
from tests.etcd_client.stage import Proxy
from tests.etcd_v3.harness import EtcdStage, Observer, by_rank, observing
from tests.waiting import until


class Forgetful(Proxy):
    """A way to etcd on which every answer is lost from a request on that has a certain text in it."""

    def __init__(self, port: int) -> None:
        self.mark = b""
        super().__init__(port)

    def _carry(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if not is_answer and self.mark and self.mark in data:
                    self.loses_answers = True
                if not (is_answer and self.loses_answers):
                    sink.sendall(data)

    def until_committed(self, is_so: Callable[[], object]) -> None:
        """Wait until it has happened, of which nobody was told; from then on answers arrive again."""
        until(is_so, "it is committed")
        assert self.loses_answers, "its answer was lost"
        self.mark, self.loses_answers = b"", False
        self.cut()


@pytest.fixture(params=["3.5", pytest.param("3.4", marks=pytest.mark.soak)])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """Three members; the way to one of them forgets."""
    return shared(request.param, 3)


@pytest.fixture
def proxy(stage: EtcdStage, cluster: Cluster) -> Iterator[Forgetful]:
    proxy = Forgetful(cluster.members[0].port)
    yield proxy
    stage.end()  # nobody comes to it any more
    proxy.close()


@pytest.fixture(params=["alone", pytest.param("first", marks=pytest.mark.soak)])
def way(request: pytest.FixtureRequest, proxy: Forgetful, cluster: Cluster) -> str:
    """The endpoints of a node whose answers are lost: it has no other way, or may ask the other members."""
    others = [member.endpoint for member in cluster.members[1:]] if request.param == "first" else []
    return ",".join([proxy.endpoint, *others])


@pytest.fixture
def observer(run: str, cluster: Cluster) -> Iterator[Observer]:
    with observing(cluster.endpoints, run) as observer:
        # Other tests may have compacted what was before.
        observer.since = observer.client.range(observer.keys.run, prefix=True).revision + 1
        yield observer


def test_the_answer_to_a_join_is_lost(
    stage: EtcdStage, cluster: Cluster, run: str, proxy: Forgetful, way: str, observer: Observer
) -> None:
    """It leads by what it wrote, though it was never told."""
    a, b = stage.nodes("a", "b")
    proxy.mark = b"/in/nodes/a."
    a.join(way, 2, run, lease_ttl=5)
    proxy.until_committed(observer.words)
    b.join(cluster.endpoints, 2, run)
    by_rank([a, b], round=1)
    assert observer.leading([a, b]) is a
    assert observer.words() == 2


def test_the_answer_to_a_joining_again_is_lost(
    stage: EtcdStage, cluster: Cluster, run: str, proxy: Forgetful, way: str, observer: Observer
) -> None:
    a, b, c = stage.nodes("a", "b", "c")
    a.join(way, "2:3", run, lease_ttl=5)
    b.join(cluster.endpoints, "2:3", run)
    by_rank([a, b], round=1)
    c.join(cluster.endpoints, "2:3", run)
    for node in (a, b):
        node.changed()
    word = observer.word(a)
    proxy.mark = b'"seat"'
    a.again()
    proxy.until_committed(lambda: observer.word(a) != word)
    b.again()
    by_rank([a, b, c], round=2)


def test_the_answer_to_the_publishing_of_a_world_is_lost(
    stage: EtcdStage, cluster: Cluster, run: str, proxy: Forgetful, way: str, observer: Observer
) -> None:
    a, b = stage.nodes("a", "b")
    a.join(way, 2, run, lease_ttl=5)
    assert observer.leading([a]) is a
    proxy.mark = b'"phase":"sealed"'
    b.join(cluster.endpoints, 2, run)
    proxy.until_committed(lambda: (board := observer.board()) is not None and board.phase is Phase.SEALED)
    by_rank([a, b], round=1)
    worlds = {board.world.seal_id for board in observer.boards() if board.world is not None}
    assert len(worlds) == 1, "one world was sealed, once"
    for node in (a, b):
        node.undisturbed()


def test_the_answer_to_a_finish_is_lost(
    stage: EtcdStage, cluster: Cluster, run: str, proxy: Forgetful, way: str, observer: Observer
) -> None:
    a, b = stage.nodes("a", "b")
    a.join(cluster.endpoints, 2, run)
    assert observer.leading([a]) is a
    b.join(way, 2, run, lease_ttl=5)
    by_rank([a, b], round=1)
    proxy.mark = b'"leave"'
    b.order("finish")
    proxy.until_committed(lambda: isinstance(message_of(observer.word(b)), Left) or observer.finished() == 1)
    assert b.expect("left")["done"]
    a.undisturbed()
    assert a.ask("finish", "left")["done"]
    board = observer.board()
    assert board is not None
    assert board.ended is not None
    assert board.ended.ending.value == "succeeded"


def test_the_answer_to_a_withdrawal_is_lost(
    stage: EtcdStage, cluster: Cluster, run: str, proxy: Forgetful, way: str, observer: Observer
) -> None:
    """Whoever leads heard it from the leaver itself, and needs no lease to end."""
    a, b, c = stage.nodes("a", "b", "c")
    a.join(cluster.endpoints, "2:3", run, last_call_timeout=30.0)
    assert observer.leading([a]) is a
    c.join(cluster.endpoints, "2:3", run)
    b.join(way, "2:3", run, lease_ttl=60)
    by_rank([a, b, c], round=1)
    proxy.mark = b'"leave"'
    b.order("withdraw")
    proxy.until_committed(lambda: a.heard("changed"))
    for node in (a, c):
        assert node.changed()["why"] == "b withdrew: RuntimeError('told to')"
        node.again()
    by_rank([a, c], round=2)
    assert isinstance(observer.word(a), Word)
