"""A join is said in several turns: one in which a link only waits says nothing of etcd, and what etcd says is heard once."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack

import pytest

from rallypoint.core.model import Bounds, Reason
from rallypoint.core.node import State
from rallypoint.errors import RendezvousTimeoutError
from rallypoint.etcd.chorus import Choir, Word
from rallypoint.etcd.keys import Keys
from rallypoint.etcd.succession import Said, Succession
from rallypoint.etcd_client import EtcdAmbiguousError, EtcdNoSpaceError, EtcdUnavailableError, Lease, Outcome
from tests.etcd.servers import Cluster, running
from tests.etcd_client.stage import SOON_S
from tests.etcd_v3.harness import PREFIX, Observer
from tests.etcd_v3.test_lasting import joined, link_of, member
from tests.waiting import until


def test_a_run_can_be_closed_after_a_join_failed_in_an_outage_that_is_over(run: str, ends: ExitStack) -> None:
    with running() as cluster:
        (etcd,) = cluster.members
        etcd.kill()
        node = member(cluster.endpoints, run, Bounds(1, 1))
        ends.callback(node.leave, Reason.WITHDREW, patience_s=0.0)
        node._client._timeout_s = 1.0
        with pytest.raises(RendezvousTimeoutError, match="cannot be reached"):
            node.join(2.5)
        link = link_of(node)
        until(lambda: link._to_say is None, "it has nothing to say")
        etcd.start()
        etcd.wait()
        until(lambda: link.is_connected, "its link is well again")
        node.close_run()
        ends.close()


def test_a_turn_in_which_a_word_waits_says_nothing_of_etcd(
    cluster: Cluster, run: str, ends: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = member(cluster.endpoints, run, Bounds(1, 1))
    ends.callback(node.leave, Reason.WITHDREW, patience_s=0.0)
    chorus = node._client.part(Choir).of(Keys(PREFIX, run).run)
    chorus._is_busy = True  # as if another were writing
    link = link_of(node)
    link.join(60.0)
    until(lambda: len(chorus._waiting) == 1, "its word waits")
    link._fail("nobody is there")
    link._pause_s = 2.0
    had = threading.Event()
    take_turn = link._speak

    def speak() -> float:
        wait_s = take_turn()
        had.set()
        return wait_s

    monkeypatch.setattr(link, "_speak", speak)
    link._wake()
    assert had.wait(SOON_S)
    post = link._post
    assert post is not None
    until(lambda: post.state.name == "RESTS", "its turn is over")
    assert not link.is_connected
    assert link.view.out_since is not None
    assert link._pause_s == 2.0
    chorus._write_rest()
    assert node.wait(lambda view: view.world is not None, time.monotonic() + SOON_S)
    assert link.is_connected


@pytest.mark.parametrize("kind", [EtcdUnavailableError, EtcdNoSpaceError])
def test_what_is_wrong_with_etcd_is_heard_at_the_first_try(
    cluster: Cluster, run: str, ends: ExitStack, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    node = member(cluster.endpoints, run, Bounds(1, 1))
    ends.callback(node.leave, Reason.WITHDREW, patience_s=0.0)
    lease = node._client.grant(5)
    tries = 0

    def fail(_: Succession, words: Sequence[Word]) -> Outcome:
        nonlocal tries
        tries += 1
        raise kind("what is wrong")

    monkeypatch.setattr(Succession, "_write", fail)
    succession = link_of(node)._succession
    with pytest.raises(kind, match="what is wrong"):
        succession.say_with_others(lease, "a", [])
    assert tries == 1
    assert not succession.is_speaking


def test_a_mistake_while_a_word_is_written_leaves_nothing_being_said(
    cluster: Cluster, run: str, ends: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = member(cluster.endpoints, run, Bounds(1, 1))
    ends.callback(node.leave, Reason.WITHDREW, patience_s=0.0)
    lease = node._client.grant(5)

    def stumble(_: Succession, words: Sequence[Word]) -> Outcome:
        raise ValueError("a mistake")

    monkeypatch.setattr(Succession, "_write", stumble)
    succession = link_of(node)._succession
    with pytest.raises(ValueError, match="a mistake"):
        succession.say_with_others(lease, "a", [])
    assert not succession.is_speaking


def test_who_finds_no_board_looks_soon_whether_somebody_still_leads(
    cluster: Cluster, run: str, ends: ExitStack
) -> None:
    """Whoever is about to found the run may be gone before it has: in a large run, all others would look late."""
    node = member(cluster.endpoints, run, Bounds(1000, 1000))
    ends.callback(node.leave, Reason.WITHDREW, patience_s=0.0)
    link = link_of(node)
    lease: Lease = node._client.grant(5)
    link._take(Said(1, None), lease)
    assert link._succession.look_at <= time.monotonic() + 2.5


def test_who_is_no_longer_named_to_lead_next_watches_the_leader_no_more(
    cluster: Cluster, run: str, ends: ExitStack
) -> None:
    """Else all nodes would in the end, and rise at once when it is gone."""
    node = member(cluster.endpoints, run, Bounds(1, 1))
    ends.callback(node.leave, Reason.WITHDREW, patience_s=0.0)
    client, key = node._client, Keys(PREFIX, run).leader
    with client.grant(5) as lease, client.grant(5) as another:
        named_at = client.put(key, "another", lease=another).revision
        succession = link_of(node)._succession
        for named, watches in ((0, 0), (named_at, 1), (None, 1), (named_at, 1), (0, 0), (None, 0), (named_at, 1)):
            assert not succession.is_vacant(lease, 4, named_at=named, within_s=30.0)
            assert len([watch for watch in client._watches if not watch.is_over]) == watches
        client.delete(key)
        until(lambda: succession.is_vacant(lease, 4, named_at=named_at, within_s=30.0), "it hears that nobody leads")


def test_who_joins_again_while_its_last_join_is_being_written_is_in_under_its_new_name(
    cluster: Cluster, run: str, ends: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow etcd is what makes a join time out, and what has it still written when somebody joins again."""
    node = member(cluster.endpoints, run, Bounds(1, 1))
    ends.callback(node.leave, Reason.WITHDREW, patience_s=0.0)
    node.join(30.0)
    link, begun, go, write = link_of(node), threading.Event(), threading.Event(), Succession._write
    before = link.view.node.id

    def write_slowly(succession: Succession, words: Sequence[Word]) -> Outcome:
        begun.set()
        assert go.wait(SOON_S)
        return write(succession, words)

    monkeypatch.setattr(Succession, "_write", write_slowly)
    link.join(60.0)
    assert begun.wait(SOON_S)
    link.leave(Reason.WITHDREW)
    link.join(60.0)
    go.set()
    assert node.wait(lambda view: view.state is State.HOLDS, time.monotonic() + SOON_S), link.view
    assert link.view.node.id != before


@pytest.mark.parametrize("is_first", [True, False], ids=["first join", "later join"])
def test_a_join_that_is_given_up_and_was_written_all_the_same_leaves_nothing_behind(
    cluster: Cluster, run: str, ends: ExitStack, observer: Observer, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    """Else the node would be taken in, and nobody else could lead."""
    node, other = (member(cluster.endpoints, run, Bounds(2, 2), name) for name in "ab")
    link, written, write = link_of(node), threading.Event(), Succession._write
    if not is_first:
        link_of(other).join(60.0)
        until(lambda: link_of(other)._succession.leads, "the other leads")
        joined(ends, node, other)
    before, leases = link.view.node.id, set[int]()

    def lose_the_answer(succession: Succession, words: Sequence[Word]) -> Outcome:
        leases.update(word.lease.id for word in words)
        write(succession, words)
        link.leave(Reason.WITHDREW)
        written.set()
        raise EtcdAmbiguousError("the answer was lost")

    with monkeypatch.context() as lossy:
        lossy.setattr(Succession, "_write", lose_the_answer)
        link.join(60.0)
        assert written.wait(SOON_S)
    until(lambda: link._to_say is None and link._lease is None, "it has left, and its lease is gone")
    assert [kv.key for kv in observer.everything() if kv.lease in leases] == []
    joined(ends, node, other)
    assert link.view.node.id != before


def test_a_leader_that_gives_up_after_an_outage_publishes_its_own_last_word(
    cluster: Cluster, run: str, ends: ExitStack, observer: Observer
) -> None:
    """Whatever is in doubt since: its lease stays until the run is closed."""
    node = member(cluster.endpoints, run, Bounds(1, 1))
    joined(ends, node)
    link = link_of(node)
    assert link._succession.leads
    link._in_doubt = link._succession.is_in_doubt = True
    assert node.leave(Reason.GAVE_UP, "out of memory")
    board = observer.board()
    assert board is not None
    assert board.ended is not None
    assert board.ended.why == "a gave up: out of memory"


def test_in_a_forked_child_there_is_nothing_to_close(
    cluster: Cluster, run: str, ends: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = member(cluster.endpoints, run, Bounds(1, 1))
    ends.callback(node.leave, Reason.WITHDREW, patience_s=0.0)
    node.join(30.0)
    link = link_of(node)
    with monkeypatch.context() as child:
        child.setattr(link, "_pid", -1)
        link.close()
    assert not link._ending
    assert link._post is not None
    assert not link._post.over.is_set()
