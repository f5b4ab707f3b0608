"""Words of nodes of one process: those that come while one is written go together, and nobody's trouble is another's."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import chain
from typing import Any

import pytest

from rallypoint.core.events import Left
from rallypoint.core.model import Bounds, Reason
from rallypoint.core.node import State
from rallypoint.core.notices import Placed
from rallypoint.errors import RendezvousError
from rallypoint.etcd import chorus as choruses
from rallypoint.etcd import crew
from rallypoint.etcd import succession as successions
from rallypoint.etcd.chorus import Choir, Chorus, Word
from rallypoint.etcd.keys import Keys
from rallypoint.etcd.link import EtcdLink
from rallypoint.etcd.member import EtcdMember
from rallypoint.etcd.succession import Succession
from rallypoint.etcd_client import (
    EtcdClient,
    EtcdClosedError,
    EtcdError,
    EtcdLeaseLostError,
    EtcdRefusedError,
    EtcdUnavailableError,
    Lease,
    Outcome,
)
from rallypoint.etcd_client.hub import Hub, Reply
from rallypoint.etcd_client.leases import Renewal
from rallypoint.etcd_client.messages import LeaseGrantRequest
from rallypoint.etcd_client.wire import Message
from tests.etcd.servers import Cluster
from tests.etcd_client.stage import SOON_S
from tests.etcd_v3.harness import PREFIX, Observer
from tests.etcd_v3.test_lasting import link_of, member
from tests.waiting import until

PATIENT_S = 1e6

# The chorus itself -----------------------------------------------------------------------------------------------------


class NoKeeper:
    """Leases here are names only."""

    def keep(self, lease: Lease) -> None:
        """Nothing is renewed."""

    def drop(self, lease: Lease) -> None:
        """Nothing was."""


class Singer:
    """A word, and what its node finds whenever it is woken."""

    def __init__(self, name: str) -> None:
        lease = Lease(1, Renewal(5, 0.0), NoKeeper(), lambda _: None, lambda _: None)
        self.word = Word(name, lease, (), self._wake)
        self.found: list[tuple[bool, Outcome | None, bool]] = []

    def _wake(self) -> None:
        self.found.append(self.state)

    @property
    def state(self) -> tuple[bool, Outcome | None, bool]:
        return self.word.is_settled, self.word.outcome, self.word.is_first


def singers(count: int) -> list[Singer]:
    return [Singer(f"n{number}") for number in range(count)]


def settled(*those: Singer) -> None:
    """Wait until all of them were woken."""
    until(lambda: all(singer.found for singer in those), "all of them are woken")


def unsung(singer: Singer) -> bool:
    return not singer.word.is_settled and not singer.found


class Paper:
    """Where words are written: as many transactions as asked for wait until they are let go, some of them fail."""

    def __init__(self, *troubles: Exception | None) -> None:
        self.written: list[list[str]] = []
        self.outcomes: list[Outcome] = []
        self._troubles = troubles
        self.go = threading.Semaphore(0)
        self._begun = threading.Semaphore(0)

    def write(self, words: Sequence[Word]) -> Outcome:
        number = len(self.written)
        self.written.append([word.node_id for word in words])
        self._begun.release()
        assert self.go.acquire(timeout=SOON_S)
        trouble = self._troubles[number] if number < len(self._troubles) else None
        if trouble is not None:
            raise trouble
        self.outcomes.append(Outcome(number == 0, 100 + number, ()))
        return self.outcomes[-1]

    def has_begun(self) -> None:
        """Wait for the next transaction to begin."""
        assert self._begun.acquire(timeout=SOON_S)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def meanwhile(
    pool: ThreadPoolExecutor, chorus: Chorus, paper: Paper, first: Singer, others: Sequence[Singer]
) -> Future[None]:
    """One is writing, and others come."""
    writing = pool.submit(chorus.say, first.word, paper.write)
    paper.has_begun()
    for singer in others:
        chorus.say(singer.word, paper.write)  # returns, though nothing is written
    return writing


def refuse(turn: crew.Turn) -> crew.Post:
    raise RuntimeError("can't start new thread")


def test_who_is_alone_writes_its_word_at_once() -> None:
    chorus, paper = Chorus(), Paper()
    for number, singer in enumerate(singers(3)):
        paper.go.release()
        chorus.say(singer.word, paper.write)
        assert singer.state == (True, paper.outcomes[number], True)
        assert singer.found == []  # nobody has to wake it
    assert paper.written == [["n0"], ["n1"], ["n2"]]


def test_those_who_come_meanwhile_go_together_next(pool: ThreadPoolExecutor) -> None:
    chorus, paper = Chorus(), Paper()
    first, *others, late, later = singers(7)
    writing = meanwhile(pool, chorus, paper, first, others)
    assert all(map(unsung, [first, *others]))
    paper.go.release()
    paper.has_begun()
    writing.result(SOON_S)  # who came first does not wait for those who came after it
    assert first.state == (True, paper.outcomes[0], True)
    for singer in (late, later):
        chorus.say(singer.word, paper.write)
    assert all(map(unsung, [*others, late, later]))
    paper.go.release(2)
    settled(*others, late, later)
    assert paper.written == [["n0"], ["n1", "n2", "n3", "n4"], ["n5", "n6"]]
    assert first.found == []
    _, second, third = paper.outcomes
    # Each is woken once, and finds what came of it.
    assert [singer.found for singer in others] == [[(True, second, number == 0)] for number in range(4)]
    assert [late.found, later.found] == [[(True, third, True)], [(True, third, False)]]


def test_those_who_are_written_together_are_written_by_the_first_of_them(pool: ThreadPoolExecutor) -> None:
    """Whoever came before may have gone since, and its client with it."""
    chorus, paper = Chorus(), Paper()
    first, second, third = singers(3)
    writing = meanwhile(pool, chorus, paper, first, [])
    pages = Paper(), Paper()
    for singer, page in zip((second, third), pages, strict=True):
        page.go.release()
        chorus.say(singer.word, page.write)
    paper.go.release()
    writing.result(SOON_S)
    settled(second, third)
    assert [page.written for page in (paper, *pages)] == [[["n0"]], [["n1", "n2"]], []]


@pytest.mark.parametrize("has_threads", [True, False], ids=["by others", "by the first where there are no threads"])
def test_many_go_in_several_transactions_in_the_order_in_which_they_came(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, has_threads: bool
) -> None:
    chorus, paper = Chorus(), Paper()
    first, *others = singers(71)
    writing = meanwhile(pool, chorus, paper, first, others)
    if not has_threads:
        monkeypatch.setattr(crew, "enlist", refuse)
    paper.go.release(100)
    writing.result(SOON_S)
    settled(*others)
    assert [len(together) for together in paper.written] == [1, 32, 32, 6]
    assert list(chain(*paper.written)) == [singer.word.node_id for singer in (first, *others)]
    assert [number for number, singer in enumerate(others) if singer.word.is_first] == [0, 32, 64]
    assert [len(singer.found) for singer in others] == [1] * 70
    assert [singer.word.outcome for singer in others] == [paper.outcomes[1 + number // 32] for number in range(70)]


def test_where_etcd_does_not_answer_all_who_wait_are_told(pool: ThreadPoolExecutor) -> None:
    chorus, paper = Chorus(), Paper(None, EtcdUnavailableError("nobody is there"))
    first, *others, late, after = singers(43)
    meanwhile(pool, chorus, paper, first, others)
    paper.go.release()
    paper.has_begun()
    chorus.say(late.word, paper.write)
    paper.go.release()
    settled(*others, late)
    assert [len(together) for together in paper.written] == [1, 32]
    assert first.state == (True, paper.outcomes[0], True)
    assert [singer.found for singer in (*others, late)] == [[(True, None, True)]] * 41
    # It is no better for those who wait: nobody is to try at once, be it alone.
    assert all(isinstance(singer.word.trouble, EtcdUnavailableError) for singer in (*others, late))
    paper.go.release()
    chorus.say(after.word, paper.write)
    assert paper.written[2:] == [["n42"]]
    assert after.state == (True, paper.outcomes[1], True)


@pytest.mark.parametrize("kind", [EtcdLeaseLostError, EtcdRefusedError, EtcdClosedError])
def test_what_one_may_be_to_blame_for_is_left_to_each_to_try_alone_and_those_who_wait_are_written(
    pool: ThreadPoolExecutor, kind: type[EtcdError]
) -> None:
    chorus, paper = Chorus(), Paper(None, kind("one of them"))
    first, *others = singers(41)
    meanwhile(pool, chorus, paper, first, others)
    paper.go.release(3)
    settled(*others)
    assert [len(together) for together in paper.written] == [1, 32, 8]
    assert [singer.found for singer in others[:32]] == [[(True, None, True)]] * 32
    assert [singer.found for singer in others[32:]] == [[(True, paper.outcomes[1], not at)] for at in range(8)]
    assert {singer.word.trouble for singer in others} == {None}


def test_a_word_that_is_withdrawn_or_whose_lease_is_lost_is_left_out(pool: ThreadPoolExecutor) -> None:
    chorus, paper = Chorus(), Paper()
    first, withdrawn, lost, third, fourth = singers(5)
    meanwhile(pool, chorus, paper, first, [withdrawn, lost, third, fourth])
    withdrawn.word.is_withdrawn = True
    lost.word.lease.lost.set()
    paper.go.release(2)
    settled(withdrawn, lost, third, fourth)
    assert paper.written == [["n0"], ["n3", "n4"]]
    assert [singer.found for singer in (withdrawn, lost)] == [[(True, None, True)]] * 2
    assert [singer.found for singer in (third, fourth)] == [[(True, paper.outcomes[1], at)] for at in (True, False)]


def test_where_all_are_left_out_nothing_is_written_and_the_next_who_comes_writes(pool: ThreadPoolExecutor) -> None:
    chorus, paper = Chorus(), Paper()
    first, withdrawn, after = singers(3)
    meanwhile(pool, chorus, paper, first, [withdrawn])
    withdrawn.word.is_withdrawn = True
    paper.go.release(2)
    settled(withdrawn)
    chorus.say(after.word, paper.write)
    assert paper.written == [["n0"], ["n2"]]


def test_who_alone_writes_what_etcd_does_not_take_is_left_to_try_again() -> None:
    chorus, paper = Chorus(), Paper(EtcdUnavailableError("nobody is there"))
    first, after = singers(2)
    paper.go.release(2)
    chorus.say(first.word, paper.write)
    assert first.state == (True, None, True)
    assert first.found == []
    chorus.say(after.word, paper.write)
    assert paper.written == [["n0"], ["n1"]]


@pytest.mark.parametrize("trouble", [EtcdUnavailableError("nobody is there"), ValueError("a mistake")])
def test_a_mistake_is_raised_to_who_wrote_and_those_who_wait_try_alone(
    pool: ThreadPoolExecutor, trouble: Exception
) -> None:
    chorus, paper = Chorus(), Paper(trouble)
    first, *others, after = singers(42)
    writing = meanwhile(pool, chorus, paper, first, others)
    paper.go.release()
    assert writing.exception(SOON_S) is (trouble if isinstance(trouble, ValueError) else None)
    assert paper.written == [["n0"]]
    assert first.state == (True, None, True)
    assert first.found == []
    assert [singer.found for singer in others] == [[(True, None, True)]] * 40
    paper.go.release()
    chorus.say(after.word, paper.write)
    assert paper.written[1:] == [["n41"]]
    assert after.state == (True, paper.outcomes[0], True)


@pytest.mark.parametrize("has_threads", [True, False], ids=["by others", "by the first where there are no threads"])
def test_a_mistake_with_those_who_came_meanwhile_is_told_and_all_of_them_try_alone(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, has_threads: bool
) -> None:
    chorus, paper = Chorus(), Paper(None, ValueError("a mistake"))
    first, *others, after = singers(42)
    writing = meanwhile(pool, chorus, paper, first, others)
    if not has_threads:
        monkeypatch.setattr(crew, "enlist", refuse)
    paper.go.release(2)
    if has_threads:
        writing.result(SOON_S)
        until(lambda: "a mistake" in caplog.text, "it is told")
    else:
        with pytest.raises(ValueError, match="a mistake"):
            writing.result(SOON_S)
    assert [len(together) for together in paper.written] == [1, 32]
    assert first.state == (True, paper.outcomes[0], True)
    assert first.found == []
    assert [singer.found for singer in others] == [[(True, None, True)]] * 40
    paper.go.release()
    chorus.say(after.word, paper.write)
    assert paper.written[2:] == [["n41"]]
    assert after.state == (True, paper.outcomes[1], True)


def test_the_first_waits_for_those_who_are_on_their_way(pool: ThreadPoolExecutor) -> None:
    chorus, paper = Chorus(), Paper()
    first, second, third = singers(3)
    for singer in (first, second, third):
        chorus.announce(singer.word.node_id)
    for singer in (first, second):
        chorus.say(singer.word, paper.write, PATIENT_S)
        assert unsung(first)
    paper.go.release()
    chorus.say(third.word, paper.write, PATIENT_S)
    assert paper.written == [["n0", "n1", "n2"]]
    assert [len(singer.found) for singer in (first, second, third)] == [1, 1, 0]


def test_whoever_loses_its_patience_has_all_written_that_wait(pool: ThreadPoolExecutor) -> None:
    chorus, paper = Chorus(), Paper()
    first, second, third = singers(3)
    chorus.announce("somebody who does not come")
    for singer in (first, second):
        chorus.say(singer.word, paper.write, PATIENT_S)
        chorus.hurry(singer.word)
        assert unsung(singer)
    second.word.patience_ends = 0.0
    paper.go.release(2)
    chorus.hurry(second.word)
    assert paper.written == [["n0", "n1"]]
    chorus.hurry(second.word)  # there is nothing to do any more
    chorus.say(third.word, paper.write, 0.0)
    assert paper.written == [["n0", "n1"], ["n2"]]


def test_who_does_not_come_is_waited_for_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    chorus, paper = Chorus(), Paper()
    chorus.announce("somebody who does not come")
    monkeypatch.setattr(choruses, "_COMES_S", 0.0)
    paper.go.release()
    chorus.say(singers(1)[0].word, paper.write, PATIENT_S)
    assert paper.written == [["n0"]]


def test_nobody_waits_for_others_where_there_are_enough() -> None:
    chorus, paper = Chorus(), Paper()
    chorus.announce("somebody who does not come")
    paper.go.release()
    for singer in singers(32):
        assert paper.written == []
        chorus.say(singer.word, paper.write, PATIENT_S)
    assert [len(together) for together in paper.written] == [32]


def test_those_who_come_a_moment_later_go_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though nobody had announced them: where others share the process, the first gives them a moment."""
    chorus, paper = Chorus(), Paper()
    first, second, third = singers(3)

    def pause(seconds: float) -> None:
        assert seconds > 0
        chorus.say(second.word, paper.write)

    monkeypatch.setattr(time, "sleep", pause)
    paper.go.release(2)
    monkeypatch.setattr(crew, "size", lambda: 2)
    chorus.say(first.word, paper.write)
    assert paper.written == [["n0", "n1"]]
    monkeypatch.setattr(crew, "size", lambda: 1)
    chorus.say(third.word, paper.write)
    assert paper.written == [["n0", "n1"], ["n2"]]


def test_there_is_one_chorus_for_a_run_for_as_long_as_somebody_has_to_do_with_it() -> None:
    with EtcdClient("127.0.0.1:1") as client, EtcdClient("127.0.0.1:1") as other:
        choir = client.part(Choir)
        assert other.part(Choir) is choir
        mine = choir.of("/test/mine/")
        assert choir.of("/test/mine/") is mine
        assert choir.of("/test/other/") is not mine
        seen = weakref.ref(mine)
        del mine
        gc.collect()
        assert seen() is None
        assert list(choir._choruses) == []
        assert isinstance(choir.of("/test/mine/"), Chorus)


# Nodes on etcd ---------------------------------------------------------------------------------------------------------


class Pen:
    """What the nodes of this process write: the first word waits until it is let go, so that others come meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.written: list[list[str]] = []
        self.begun, self.go = threading.Event(), threading.Event()
        self.before_second: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._write: Callable[[Succession, Sequence[Word]], Outcome] = Succession._write
        pen = self

        def write(succession: Succession, words: Sequence[Word]) -> Outcome:
            return pen.write(succession, words)

        monkeypatch.setattr(Succession, "_write", write)

    def write(self, succession: Succession, words: Sequence[Word]) -> Outcome:
        with self._lock:
            number = len(self.written)
            if any(word.puts for word in words):
                self.written.append([word.node_id for word in words])
        if number == 0:
            self.begun.set()
            assert self.go.wait(SOON_S)
        if number == 1:
            self.before_second()
        return self._write(succession, words)

    @property
    def sizes(self) -> list[int]:
        return [len(together) for together in self.written]


class Scene:
    """Nodes of this process that join one run while the word of the first of them is being written."""

    def __init__(self, cluster: Cluster, run: str, ends: ExitStack, pen: Pen) -> None:
        self.cluster, self.run, self.ends, self.pen = cluster, run, ends, pen
        self.pool = ends.enter_context(ThreadPoolExecutor(40))
        ends.callback(pen.go.set)

    def joins(self, name: str, bounds: Bounds) -> tuple[EtcdMember, Any]:
        node = member(self.cluster.endpoints, self.run, bounds, name)
        self.ends.callback(node.leave, Reason.WITHDREW, patience_s=0.0)
        return node, self.pool.submit(node.join, 60.0)

    def meanwhile(self, count: int, bounds: Bounds) -> tuple[list[EtcdMember], list[Any]]:
        """So many nodes: the first of them is writing, the words of the others wait in the order of their names."""
        nodes, places = [], []
        for number in range(count):
            node, place = self.joins(f"n{number:02}", bounds)
            nodes.append(node)
            places.append(place)
            if number == 0:
                assert self.pen.begun.wait(SOON_S)
            else:
                until(partial(self.are_waiting, nodes[0], number), "its word waits")
        return nodes, places

    @staticmethod
    def are_waiting(node: EtcdMember, count: int) -> bool:
        """Whether so many words wait for the one that is being written."""
        chorus = link_of(node)._succession._chorus
        return chorus is not None and len(chorus._waiting) == count


@pytest.fixture
def scene(cluster: Cluster, run: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    with ExitStack() as ends:
        yield Scene(cluster, run, ends, Pen(monkeypatch))


def ids(nodes: Sequence[EtcdMember]) -> list[str]:
    return [node.view.node.id for node in nodes]


def one_world(places: Sequence[Any]) -> list[int]:
    """Wait until all are in one world; their ranks."""
    found: list[Placed] = [place.result(60.0) for place in places]
    assert len({place.seal_id for place in found}) == 1
    assert {place.size for place in found} == {len(places)}
    return sorted(place.rank for place in found)


def test_nodes_that_join_together_are_written_together(scene: Scene, observer: Observer) -> None:
    nodes, places = scene.meanwhile(24, Bounds(24, 24))
    names = ids(nodes)
    scene.pen.go.set()
    assert one_world(places) == list(range(24))
    assert scene.pen.written == [names[:1], names[1:]]
    words = observer.client.range(observer.keys.said, prefix=True).kvs
    revisions = [kv.mod_revision for kv in words]
    assert len(words) == 24
    assert sorted(revisions.count(revision) for revision in set(revisions)) == [1, 23]
    assert ids(nodes) == names
    assert observer.leader() == names[0]


def test_where_nobody_leads_the_first_of_those_who_are_written_together_does(
    scene: Scene, run: str, observer: Observer
) -> None:
    keys = Keys(PREFIX, run)
    stranger = observer.client.grant(60)
    observer.client.put(keys.leader, "somebody who has not come to it yet", lease=stranger)
    scene.pen.before_second = stranger.revoke
    nodes, places = scene.meanwhile(4, Bounds(4, 4))
    names = ids(nodes)
    scene.pen.go.set()
    assert one_world(places) == [0, 1, 2, 3]
    assert scene.pen.written == [names[:1], names[1:]]
    assert observer.leader() == names[1]
    assert [link_of(node)._succession._leader is not None for node in nodes] == [False, True, False, False]


def test_one_whose_lease_is_lost_while_its_word_waits_costs_the_others_nothing(
    scene: Scene, observer: Observer
) -> None:
    nodes, places = scene.meanwhile(5, Bounds(5, 5))
    names, lost = ids(nodes), nodes[2]
    lease = link_of(lost)._lease
    assert lease is not None
    since = observer.client.range(observer.keys.said, prefix=True).revision + 1
    observer.client.revoke(lease.id)
    scene.pen.go.set()
    assert one_world(places) == list(range(5))
    assert scene.pen.sizes[:2] == [1, 4]
    now = ids(nodes)
    assert [one == before for one, before in zip(now, names, strict=True)] == [True, True, False, True, True]
    # Each of the others said its word alone then, and once; the one that was lost never came under its old name (rule 9).
    last = observer.client.range(observer.keys.said, prefix=True).revision
    said = written_since(observer, since, last)
    assert sorted(said) == sorted(observer.keys.node(name) for name in now)
    assert {node.view.state for node in nodes} == {State.HOLDS}


def test_whoever_is_told_that_its_patience_is_over_has_had_its_word_written(run: str) -> None:
    """However slow it is between the two: else nobody would write it, and nobody would look after it."""
    with EtcdClient("127.0.0.1:1") as client:
        succession = Succession(client, Keys(PREFIX, run), run, lambda: None)
        chorus, paper, (singer,) = Chorus(), Paper(), singers(1)
        chorus.announce("somebody who does not come")
        chorus.say(singer.word, paper.write, PATIENT_S)
        succession._chorus, succession._word = chorus, singer.word
        hurry = chorus.hurry

        def takes_long(word: Word) -> None:
            hurry(word)
            word.patience_ends = 0.0

        chorus.hurry = takes_long  # type: ignore[method-assign]
        assert succession.said() is None
        assert paper.written == []
        assert succession.patience_s > 0


class Grants:
    """The grants of one cluster's leases in this process: from the second on they reach etcd only when they are let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, hub: Hub) -> None:
        self._send = hub.ask
        self._asked: list[Callable[[], None]] = []
        monkeypatch.setattr(hub, "ask", self._ask)

    def _ask(self, method: str, request: Message, timeout_s: float, answered: Callable[[Reply], None]) -> None:
        send = partial(self._send, method, request, timeout_s, answered)
        if not isinstance(request, LeaseGrantRequest):
            send()
            return
        self._asked.append(send)
        if len(self._asked) == 1:
            send()

    def go(self) -> None:
        """Let all go, and those that follow."""
        late = self._asked[1:]
        self._asked.clear()
        for send in late:
            send()


@pytest.mark.parametrize("comes", [True, False], ids=["who comes", "who does not come"])
def test_a_word_waits_for_another_whose_lease_is_on_its_way(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, comes: bool
) -> None:
    monkeypatch.setattr(successions, "_PATIENCE_S", PATIENT_S if comes else 0.05)
    monkeypatch.setattr(choruses, "_COMES_S", PATIENT_S)
    with EtcdClient(scene.cluster.endpoints) as client:
        grants = Grants(monkeypatch, client._open)
        a, b = (member(scene.cluster.endpoints, scene.run, Bounds(2, 2), name) for name in "ab")
        for node in (a, b):
            scene.ends.callback(node.leave, Reason.WITHDREW, patience_s=0.0)
        chorus = client.part(Choir).of(Keys(PREFIX, scene.run).run)
        places = [scene.pool.submit(b.join, 60.0)]
        until(lambda: list(chorus._coming) == [b.view.node.id], "it waits for its lease")
        places.append(scene.pool.submit(a.join, 60.0))
        scene.pen.go.set()
        if comes:
            until(lambda: len(chorus._waiting) == 1, "the word of the other waits")
            assert scene.pen.written == []
        else:
            until(lambda: scene.pen.written == [[a.view.node.id]], "its patience is over")
        grants.go()
        assert one_world(places) == [0, 1]
        together = [[a.view.node.id, b.view.node.id]]
        assert scene.pen.written == (together if comes else [[name] for name in together[0]])


def written_since(observer: Observer, since: int, last: int) -> list[str]:
    """The keys of words in the order in which they were written."""
    found: list[str] = []
    observer.client.put(f"{observer.keys.said}~", "so far")
    with observer.client.watch(observer.keys.said, prefix=True, revision=since) as watch:
        while True:
            change: Any = watch.get(timeout_s=SOON_S)
            if change.key.endswith(b"~"):
                observer.client.delete(f"{observer.keys.said}~")
                return found
            if change.revision <= last and not change.is_delete:
                found.append(change.key.decode())


@pytest.mark.parametrize("patience_s", [SOON_S, 0.0], ids=["in order", "at once"])
def test_one_that_leaves_while_its_word_waits_leaves_nothing_behind(
    scene: Scene, observer: Observer, patience_s: float
) -> None:
    bounds = Bounds(4, 4)
    nodes, places = scene.meanwhile(3, bounds)
    _, leaves, stays = nodes
    leaving = scene.pool.submit(leaves.leave, Reason.WITHDREW, patience_s=patience_s)
    link: EtcdLink = link_of(leaves)
    if patience_s:
        until(lambda: isinstance(link._to_say, Left), "it is about to say so")
    else:
        leaving.result(SOON_S)
    assert scene.are_waiting(stays, 2)
    scene.pen.go.set()
    leaving.result(SOON_S)
    until(lambda: len(scene.pen.written) >= 2 and observer.words() == 2, "its word is gone")
    more = [scene.joins(name, bounds) for name in ("x", "y")]
    assert one_world([places[0], places[2], *(place for _, place in more)]) == [0, 1, 2, 3]
    assert observer.words() == 4
    with pytest.raises(RendezvousError, match="left"):
        places[1].result(SOON_S)


def test_one_that_gives_up_while_its_word_waits_takes_it_back_and_its_link_stays(
    scene: Scene, observer: Observer
) -> None:
    """As one does whose join timed out: it has still a lease, on which its word would be found."""
    nodes, _ = scene.meanwhile(2, Bounds(4, 4))
    gives_up = member(scene.cluster.endpoints, scene.run, Bounds(4, 4), "c")
    scene.ends.callback(gives_up.leave, Reason.WITHDREW, patience_s=0.0)
    link = link_of(gives_up)
    link.join(60.0)
    until(partial(scene.are_waiting, nodes[0], 2), "its word waits")
    link.leave(Reason.WITHDREW)
    scene.pen.go.set()
    until(lambda: observer.words() == 3 or link._to_say is None, "it is written, or was taken back at once")
    until(lambda: link._to_say is None and observer.words() == 2, "it is taken back")
    assert scene.pen.sizes == [1, 2]
    assert link._lease is not None
    assert not link._lease.lost.is_set()
