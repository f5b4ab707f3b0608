"""A board that is deleted by a hand, or with the lease of the run: the leader has all in mind, and writes it down anew."""

from __future__ import annotations

import pytest

from rallypoint.core.events import Left
from rallypoint.core.model import Ending, Phase
from rallypoint.etcd.board import Board
from rallypoint.etcd.leading import message_of
from tests.etcd.servers import VERSIONS, Cluster, shared
from tests.etcd_v3.harness import EtcdNode, EtcdStage, Observer, by_rank, observing, undisturbed
from tests.waiting import until


def form(stage: EtcdStage, cluster: Cluster, run: str, *names: str) -> list[EtcdNode]:
    """A world of these nodes, by rank."""
    made = stage.nodes(*names)
    for node in made:
        node.join(cluster.endpoints, f"1:{len(names)}", run, last_call_timeout=30.0)
    return by_rank(made, round=1, size=len(names))


def known(observer: Observer) -> Board:
    board = observer.board()
    assert board is not None
    return board


def written_anew(observer: Observer, before: Board) -> Board:
    """Wait for another board; it has the same world."""
    until(lambda: (board := observer.board()) is not None and board.token != before.token, "it is written anew")
    after = known(observer)
    assert after.world is not None
    assert before.world is not None
    assert (after.incarnation, after.world.seal_id) == (before.incarnation, before.world.seal_id)
    return after


@pytest.mark.parametrize("version", VERSIONS)
def test_the_lease_of_a_run_is_revoked_and_nobody_need_regroup(stage: EtcdStage, run: str, version: str) -> None:
    cluster = shared(version, 3)
    a, b, c, quitter = nodes = form(stage, cluster, run, "a", "b", "c", "d")
    quitter_id = quitter.standing()["node"]
    with observing(cluster.endpoints, run) as observer:
        assert quitter.ask("finish", "left")["done"]
        until(lambda: observer.finished() == 1, "the leader knows")
        # If the one that finished led, whoever leads next must have read the board before it is deleted.
        until(lambda: observer.leader() not in ("", quitter_id, *known(observer).successors), "another leads")
        before = known(observer)
        observer.client.revoke(before.lease)
        after = written_anew(observer, before)
        assert after.lease != before.lease
        assert after.finished == 1
        undisturbed([a, b, c])
        # Whoever leads next finds all that it needs, the last word of the one that finished too.
        leader = observer.leading([node for node in nodes if node is not quitter])
        leader.kill()
        rest = [node for node in (a, b, c) if node is not leader]
        for node in rest:
            assert node.changed()["why"] == f"{leader.name} was lost: its lease ended"
            node.again()
        by_rank(rest, round=2, size=2)
        assert observer.finished() == 1
        for node in rest:
            node.order("finish")
        for node in rest:
            assert node.expect("left")["done"]
        ended = known(observer).ended
        assert ended is not None
        assert ended.ending is Ending.SUCCEEDED


@pytest.mark.parametrize("what", ["its board", "all that the leader wrote"])
def test_what_a_leader_wrote_is_deleted_by_a_hand_and_nobody_need_regroup(
    stage: EtcdStage, cluster: Cluster, run: str, observer: Observer, what: str
) -> None:
    a, b = nodes = form(stage, cluster, run, "a", "b")
    before = known(observer)
    kept = len(observer.everything())
    if what == "its board":
        observer.client.delete(observer.keys.board)
    else:
        observer.client.delete(f"{observer.keys.run}out/", prefix=True)
    after = written_anew(observer, before)
    assert after.lease == before.lease
    assert len(observer.everything()) == kept
    undisturbed(nodes)
    assert "its board is gone from etcd" in observer.leading(nodes).account()
    b.ask("withdraw", "left")
    a.changed()
    a.again()
    a.placed(round=2, size=1)


def test_a_run_that_is_deleted_while_nobody_leads_is_founded_anew_by_those_who_are_left(
    stage: EtcdStage, cluster: Cluster, run: str, observer: Observer
) -> None:
    """Nobody has it in mind: nobody goes on in a world that no leader knows, be it that nothing has happened to it."""
    nodes = stage.nodes("a", "b", "c")
    for node in nodes:
        node.join(cluster.endpoints, 3, run)
    by_rank(nodes)
    before, leader = known(observer), observer.leading(nodes)
    leader.pause()
    observer.client.revoke(before.lease)
    leader.kill()
    observer.client.delete(observer.keys.leader)  # its lease would end in a moment
    rest = [node for node in nodes if node is not leader]
    for node in rest:
        node.changed()
        node.again()
    (late,) = stage.nodes("late")
    late.join(cluster.endpoints, 3, run)
    by_rank([*rest, late], size=3)
    assert known(observer).incarnation != before.incarnation


def test_a_last_word_that_is_said_while_the_board_is_gone_counts(
    stage: EtcdStage, cluster: Cluster, run: str, observer: Observer
) -> None:
    a, b, c = form(stage, cluster, run, "a", "b", "c")
    before = known(observer)
    leader = observer.leading([a, b, c])
    quitter = c if c is not leader else b
    leader.pause()
    observer.client.revoke(before.lease)
    quitter.order("finish")
    until(lambda: "about to write it anew" in quitter.account(), "it waits for a board")
    leader.resume()
    assert quitter.expect("left")["done"]
    until(lambda: isinstance(message_of(observer.word(quitter)), Left), "its word is there")
    until(lambda: observer.finished() == 1, "the leader knows")
    undisturbed([node for node in (a, b, c) if node is not quitter])


def test_a_tombstone_goes_and_is_not_written_anew(
    stage: EtcdStage, cluster: Cluster, run: str, observer: Observer
) -> None:
    a, b = stage.nodes("a", "b")
    for node in (a, b):
        node.join(cluster.endpoints, 2, run, closed_ttl=1.0)
    by_rank([a, b])
    leader = observer.leading([a, b])
    leader.ask("close", "closed")
    assert known(observer).phase is Phase.CLOSED
    until(lambda: observer.board() is None, "the tombstone goes")
    assert observer.is_quiet(1.5) or observer.board() is None
    assert "its board is gone from etcd" not in leader.account()


def test_a_node_whose_own_key_is_deleted_is_lost_to_the_others_and_comes_back_as_another(
    stage: EtcdStage, cluster: Cluster, run: str, observer: Observer
) -> None:
    """Its lease lives on, and it is told all the same: nobody works in a world that is over."""
    nodes = form(stage, cluster, run, "a", "b", "c")
    victim = next(node for node in nodes if node is not observer.leading(nodes))
    observer.client.delete(observer.keys.node(f"{victim.name}."), prefix=True)
    for node in nodes:
        node.changed()
    before = victim.standing()
    others = [node for node in nodes if node is not victim]
    for node in others:
        node.again()
    by_rank(others, round=2, size=2)
    victim.again()
    for node in others:
        node.changed()
        node.again()
    by_rank(nodes, round=3, size=3)
    assert victim.standing()["node"] != before["node"], victim.account()
