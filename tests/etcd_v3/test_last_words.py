"""What became of a word is said truly: of a last word, of a wish to close, of a board that was deleted and written anew."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from contextlib import ExitStack

import pytest

from rallypoint.client.identity import mint_id
from rallypoint.core.events import Left
from rallypoint.core.model import Bounds, Node, Phase, Reason, Settings
from rallypoint.core.node import View
from rallypoint.etcd import estate
from rallypoint.etcd.board import Board, encode_board
from rallypoint.etcd.link import EtcdLink
from rallypoint.etcd.reading import Reading
from rallypoint.etcd_client import EtcdUnavailableError
from tests.etcd.servers import Cluster
from tests.etcd_client.stage import SOON_S
from tests.etcd_v3.harness import EtcdStage, Observer, by_rank
from tests.etcd_v3.test_lasting import joined, link_of, member
from tests.waiting import until


def board(token: str) -> bytes:
    return encode_board(Board(token=token, lease=0, phase=Phase.GATHERING, bounds=Bounds(1, 1), settings=Settings()))


def test_news_that_a_board_was_deleted_do_not_take_away_the_next_one(run: str, observer: Observer) -> None:
    """A transaction has read the next one already, and what a watch brings of it is known by then."""
    client, keys = observer.client, observer.keys
    wakings: list[None] = []
    reading = Reading(client, keys, run, lambda: wakings.append(None))
    first = client.put(keys.board, board("first"))
    reading.begin("a", first.revision, in_doubt=False)
    until(lambda: list(reading.news()), "the first has arrived")
    client.delete(keys.board)
    client.put(keys.board, board("second"))
    read = client.get(keys.board)
    assert read is not None
    reading.take_board(read)
    until(lambda: len(wakings) >= 3, "its deletion and the second have arrived")
    assert list(reading.news()) == []
    assert token_of(reading) == "second"
    client.delete(keys.board)
    until(lambda: not list(reading.news()) and not token_of(reading), "its deletion has arrived")
    reading.take_board(read)
    assert not token_of(reading), "what was read before it was deleted is no news"
    reading.forget()


def token_of(reading: Reading) -> str:
    return reading.board.token if reading.board is not None else ""


@pytest.mark.parametrize("noticed", ["at once", "by the word itself"])
def test_a_last_word_that_was_lost_with_the_lease_was_not_heard(
    cluster: Cluster, run: str, ends: ExitStack, observer: Observer, monkeypatch: pytest.MonkeyPatch, noticed: str
) -> None:
    nodes = [member(cluster.endpoints, run, Bounds(2, 2), name) for name in "ab"]
    joined(ends, *nodes)
    quitter = max(nodes, key=lambda node: node.view.world.rank if node.view.world is not None else 0)
    link = link_of(quitter)
    lease, say = link._lease, link._say_left
    assert lease is not None

    def loses_its_lease(message: Left) -> bool:
        observer.client.revoke(lease.id)
        if noticed == "at once":
            until(lease.lost.is_set, "it hears of it first")
            lease.check()
        return say(message)

    monkeypatch.setattr(link, "_say_left", loses_its_lease)
    assert not quitter.leave(Reason.FINISHED, patience_s=20.0)


def test_a_last_word_is_heard_though_the_leader_was_quicker_than_the_answer(
    cluster: Cluster, run: str, ends: ExitStack, observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said twice, as when an answer is lost, and finds itself in its place, or its place cleared away."""
    nodes = [member(cluster.endpoints, run, Bounds(2, 2), name) for name in "ab"]
    joined(ends, *nodes)
    quitter = max(nodes, key=lambda node: node.view.world.rank if node.view.world is not None else 0)
    link = link_of(quitter)
    say = link._say_left

    def says_twice(message: Left) -> bool:
        return say(message) and say(message)

    monkeypatch.setattr(link, "_say_left", says_twice)
    assert quitter.leave(Reason.FINISHED, patience_s=20.0)
    until(lambda: observer.finished() == 1, "the leader knows")


def test_a_wish_that_went_with_its_lease_was_not_granted(
    stage: EtcdStage, cluster: Cluster, run: str, observer: Observer
) -> None:
    """The leader is stopped, and never heard of it."""
    a, b = stage.nodes("a", "b")
    for node in (a, b):
        node.join(cluster.endpoints, 2, run, lease_ttl=60)
    by_rank([a, b])
    leader = observer.leading([a, b])
    leader.pause()
    view = View(node=Node(id=mint_id("somebody"), name="somebody"), bounds=Bounds(1, 1))
    link = EtcdLink(
        *(observer.client, observer.keys, run, view),
        lease_ttl_s=5,
        prepare=lambda node, _: node,
        reborn=lambda node: node,
    )
    assert link.ask_to_close("enough")
    assert link._lease is not None
    observer.client.revoke(link._lease)
    assert not link.is_heard(time.monotonic() + 20.0)
    link.close()
    still = estate.read_board(observer.client, observer.keys, run)
    assert still is not None
    assert still.phase is Phase.SEALED
    leader.resume()  # it may hear of the wish yet, for its watch tells all that ever was
    b.ask("close", "closed")
    a.changed()


def test_who_leaves_a_run_of_which_everything_was_deleted_does_not_wait_for_ever(
    cluster: Cluster, run: str, observer: Observer, ends: ExitStack
) -> None:
    a, b = member(cluster.endpoints, run, Bounds(2, 2)), member(cluster.endpoints, run, Bounds(2, 2), "b")
    joined(ends, a, b)
    observer.client.delete(observer.keys.run, prefix=True)
    for link in (link_of(a), link_of(b)):
        until(lambda link=link: link._reading.board is None, "it hears of that")  # type: ignore[misc]
    quitter = a if a.view.world is not None and a.view.world.rank == 1 else b  # who has rank 0 waits for the others
    began = time.monotonic()
    assert not quitter.leave(Reason.FINISHED, patience_s=60.0), "its word was heard by nobody"
    assert time.monotonic() - began < 30.0


def test_who_withdraws_while_etcd_is_away_for_a_moment_is_not_taken_for_lost(
    cluster: Cluster, run: str, ends: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = member(cluster.endpoints, run, Bounds(2, 2)), member(cluster.endpoints, run, Bounds(2, 2), "b")
    joined(ends, a, b)
    link = link_of(a)
    blips, speak = [EtcdUnavailableError("a moment")] * 2, link._speak

    def blip() -> float:
        if blips:
            raise blips.pop()
        return speak()

    monkeypatch.setattr(link, "_speak", blip)
    link._wake()
    until(lambda: not link.is_connected, "it seems that etcd is away")
    assert a.leave(Reason.WITHDREW, "the night is over")
    assert b.wait(lambda view: view.why == "a withdrew: the night is over", time.monotonic() + SOON_S), b.view.why


ENDING = """
    import atexit, sys
    def bye() -> None:
        print(handler.shutdown())
    atexit.register(bye)  # before anything of etcd's client is imported
    from rallypoint.elastic.api import RendezvousParameters
    from rallypoint.elastic.etcd_v3_handler import create_handler
    endpoint, run = sys.argv[1:]
    handler = create_handler(RendezvousParameters("etcd-v3", endpoint, run, 1, 1, "127.0.0.1"))
    print(handler.next_rendezvous().world_size, flush=True)
"""


def test_a_handler_that_is_shut_down_by_the_end_of_the_process_has_finished(cluster: Cluster, run: str) -> None:
    command = [sys.executable, "-c", textwrap.dedent(ENDING), cluster.endpoints, run]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("1\nTrue\n", "")
