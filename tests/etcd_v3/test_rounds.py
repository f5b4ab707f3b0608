"""Many rounds while nodes and members of etcd are killed at random; what every process recorded breaks no invariant."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rallypoint.core.model import Bounds, Ending, Node, Phase
from rallypoint.etcd.adopting import Estate
from rallypoint.etcd.board import Board, Ended, Sealing, Seated
from tests.etcd_client.stage import etcd
from tests.etcd_v3.crowd import CROWD, Crowd, play
from tests.etcd_v3.harness import EtcdStage, Observer, observing
from tests.etcd_v3.judging import LATE_S, Event, History, Parting, Rejoining, check, history_of, recorded
from tests.etcd_v3.test_campaign import check_boards
from tests.waiting import until

BOUNDS = Bounds(2, 4)
QUIET_S = 1.5
START = datetime(2026, 1, 1, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("version", "seed", "rounds", "ending"),
    [
        ("3.4", 1, 30, "finished"),
        ("3.5", 4, 15, "closed"),
        pytest.param("3.4", 2, 200, "closed", marks=pytest.mark.soak),
        pytest.param("3.5", 3, 200, "finished", marks=pytest.mark.soak),
    ],
)
def test_rounds_under_random_kills(
    stage: EtcdStage, run: str, tmp_path: Path, version: str, seed: int, rounds: int, ending: str
) -> None:
    with etcd(version, 3) as cluster, observing(cluster.endpoints, run) as observer:
        crowd = Crowd(stage, cluster, run, tmp_path, kills_members=version != "3.5")
        done = play(crowd, seed, rounds)
        assert done["kill"] >= rounds / 15, done
        assert done["member"] >= rounds / 15, done
        stay_together(crowd, observer)
        if ending == "finished":
            finish_one_by_one(crowd, observer)
        else:
            told_closed(crowd, observer)
        history = history_of(observer)
        assert len(history.stood_by) > 1, "some were too many, and stood by"
        check(recorded(tmp_path), history, BOUNDS, crowd.killed)
        check_boards([board for _, board in history.boards])


def stay_together(crowd: Crowd, observer: Observer) -> None:
    """Long after the last fault everybody is where they should be, and stays there."""
    round_, stalls = crowd.round, stalls_of(crowd)
    until(lambda: observer.is_quiet(QUIET_S), "nothing changes any more")
    crowd.meet()
    assert crowd.round == round_ or stalls_of(crowd) > stalls


def stalls_of(crowd: Crowd) -> int:
    """How often processes stood still up to now, on a machine that is too busy."""
    return sum(map(crowd.stalls, crowd.alive))


def finish_one_by_one(crowd: Crowd, observer: Observer) -> None:
    """In the end those who are in the world finish, one after the other, and nobody is told to regroup (rule 8)."""
    members = sorted(crowd.members, key=lambda node: -int(crowd.place(node)["rank"]))
    spares = [node for node in crowd.alive if node not in members]
    for number, node in enumerate(members, 1):
        # Rank 0 is the last, and stays until the run has ended: it has the store.
        assert node.ask("finish", "left")["done"], node.account()
        until(partial(have_finished, observer, number), "it has finished")
        for other in members[number:]:
            assert other.standing()["state"] == "HOLDS", other.account()
            assert crowd.place(other)["round"] == crowd.round, other.account()
    for spare in spares:
        assert spare.failed("RendezvousGracefulExitError"), "it was not needed, and ends well (rule 7)"
    board = observer.board()
    assert board is not None
    assert board.ended is not None
    assert board.ended.ending is Ending.SUCCEEDED


def have_finished(observer: Observer, count: int) -> bool:
    board = observer.board()
    return board is not None and (board.ended is not None or board.finished == count)


def told_closed(crowd: Crowd, observer: Observer) -> None:
    """In the end the run is closed, and everybody hears of it, be it later."""
    members = crowd.members
    members[0].ask("close", "closed")
    for node in crowd.alive:
        if node in members:
            node.expect("ended")
        else:
            node.failed("RendezvousClosedError")
    late = crowd.stage.nodes(*(f"late{number}" for number in range(CROWD)))
    for node in late:
        node.join(crowd.cluster.endpoints, "2:4", crowd.run)
    for node in late:
        node.failed("RendezvousClosedError")
    board = observer.board()
    assert board is not None
    assert board.ended is not None


def event(kind: str, at_s: float = 0.0, **details: Any) -> Event:
    """Something that happened so many seconds after some moment."""
    return {"kind": kind, "at": (START + timedelta(seconds=at_s)).isoformat(), "details": details}


def placed(seal_id: str, round_: int, rank: int, node: str) -> Event:
    return event("placed", seal_id=seal_id, round=round_, rank=rank, size=2, node=node)


def over(seal_id: str, state: str = "BROKEN", node: str = "a.1") -> Event:
    return event("over", seal_id=seal_id, state=state, node=node)


def board(
    seal_id: str = "",
    round_: int = 0,
    *,
    size: int = 2,
    is_up: bool = True,
    waiting: int = 0,
    is_closed: bool = False,
    ending: Ending = Ending.FAILED,
) -> Board:
    world = Sealing(seal_id, round_, size, "", 1, 1) if seal_id else None
    phase = Phase.CLOSED if is_closed else Phase.SEALED if world is not None and is_up else Phase.GATHERING
    return Board(
        token="t",
        lease=1,
        phase=phase,
        incarnation="i",
        bounds=BOUNDS,
        round=round_,
        world=world,
        waiting=waiting,
        ended=Ended(ending, "") if is_closed else None,
    )


def history(*boards: Board, rejoined: int = 4, gone: str = "b.1", **rosters: list[str]) -> History:
    """Boards at revisions 1, 2 …; at the second a node has gone, at another one of the first world has joined again."""
    known = {"s1": ["a.1", "b.1"], "s2": ["a.1", "b.1"], **rosters}
    return History([*enumerate(boards, 1)], known, [Rejoining(rejoined, "a.1", "s1")], [Parting(2, gone)])


SEALED = event("sealed", seal_id="s1", round=1, members=["a.1", "b.1"])
A = [SEALED, placed("s1", 1, 0, "a.1"), over("s1"), placed("s2", 2, 0, "a.1")]
B = [placed("s1", 1, 1, "b.1"), over("s1", node="b.1"), placed("s2", 2, 1, "b.1")]
UNTOLD = [SEALED, A[1], over("s1", "HOLDS"), A[3]]
GOOD = [board(), board("s1", 1), board("s1", 1, is_up=False), board("s2", 2), board("s2", 2, is_closed=True)]


def test_the_check_lets_pass_what_is_right() -> None:
    check({"a": A, "b": B}, history(*GOOD), BOUNDS, {})
    lost = event("lost", 4.0, node="b.1")
    check({"a": [*A, lost], "b": B}, history(*GOOD), BOUNDS, {"b": START.timestamp() + 1.0})
    check({"a": [*A, lost], "b": [*B, event("stalled", 5.0, seconds=3.0)]}, history(*GOOD), BOUNDS, {})
    for_a_newcomer = history(board("s1", 1), board("s1", 1, waiting=1), board("s2", 2), rejoined=3)
    check({"a": UNTOLD, "b": B}, for_a_newcomer, BOUNDS, {})


@pytest.mark.parametrize(
    ("complaint", "events"),
    [
        ("holds two worlds", [SEALED, A[1], A[3]]),
        ("a went back", [*A, over("s2"), A[1]]),
        ("a world that nobody sealed", [*A, event("broken", seal_id="s9", round=1)]),
        ("by another round", [*A, event("broken", seal_id="s1", round=2)]),
        ("a world is sealed once", [SEALED, SEALED]),
        ("as it was sealed", [event("sealed", seal_id="s1", round=1, members=["b.1", "a.1"])]),
        ("by another size", [event("placed", seal_id="s1", round=1, rank=0, size=3, node="a.1")]),
        ("has the rank of b.1", [placed("s1", 1, 1, "a.1")]),
        ("a rank given twice", [placed("s1", 1, 1, "b.1")]),
        ("that it is not in", [SEALED, A[1], over("s7")]),
        ("b was given up although it was there", [*A, event("lost", node="b.1")]),
        ("a was put out although it was there", [*A[:2], over("s1", "FENCED"), A[3]]),
    ],
)
def test_the_check_finds_what_is_wrong_in_a_record(complaint: str, events: list[Event]) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check({"a": events, "b": B}, history(*GOOD), BOUNDS, {})


@pytest.mark.parametrize(
    ("complaint", "told"),
    [
        ("rounds only grow", history(*GOOD[:4], board("s1", 1))),
        ("a new world has a new round", history(*GOOD[:2], board("s2", 1))),
        ("no world comes back", history(*GOOD[:4], board("s1", 2))),
        ("a world has one round", history(*GOOD[:2], board("s1", 2))),
        ("what is closed stays closed", history(*GOOD, board("s2", 2))),
        (
            "no world is sealed in a run that is closed",
            history(board("s1", 1, is_closed=True), board("s2", 2, is_closed=True)),
        ),
        ("a world of 5 where 2:4 are asked for", history(board("s1", 1, size=5), s1=[*"abcde"])),
        ("each member has one rank", history(*GOOD, s2=["a.1", "a.1"])),
        ("its world never broke", history(*GOOD, rejoined=3)),
        ("round 1 broke, and none of its members had gone", history(*GOOD, gone="c.1")),
        (
            "ended well before all of its members had finished",
            history(*GOOD[:4], board("s2", 2, is_closed=True, ending=Ending.SUCCEEDED)),
        ),
    ],
)
def test_the_check_finds_what_is_wrong_in_etcd(complaint: str, told: History) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check({"a": A, "b": B}, told, BOUNDS, {})


def test_the_check_finds_a_node_that_joined_again_for_no_reason() -> None:
    with pytest.raises(AssertionError, match=r"a.1 left a world that was up and needed nobody"):
        check({"a": UNTOLD, "b": B}, history(*GOOD, rejoined=3), BOUNDS, {})


@pytest.mark.parametrize("at_s", [1.0, 5.0 + LATE_S + 0.1], ids=["before", "long after"])
@pytest.mark.parametrize("what", ["given up", "put out"])
def test_the_check_takes_a_standstill_at_another_time_for_no_excuse(what: str, at_s: float) -> None:
    """Who stood still from the second to the fifth second may have been missed then, and a little later."""
    stalled = event("stalled", 5.0, seconds=3.0)
    lost = event("lost", at_s, node="b.1")
    fenced = event("over", at_s, seal_id="s1", state="FENCED", node="b.1")
    a, b = ([*A, lost], B) if what == "given up" else (A, [B[0], fenced, B[2]])
    with pytest.raises(AssertionError, match=f"b was {what} although it was there"):
        check({"a": a, "b": [*b, stalled]}, history(*GOOD), BOUNDS, {})


def test_the_check_takes_no_later_death_for_an_excuse() -> None:
    with pytest.raises(AssertionError, match="b was given up although it was there"):
        check({"a": [*A, event("lost", node="b.1")], "b": B}, history(*GOOD), BOUNDS, {"b": START.timestamp() + 1.0})


def test_the_check_finds_a_run_that_nobody_could_take_over() -> None:
    told = history(*GOOD)
    a, b = (Seated(Node(id=f"{name}.1", name=name), 1) for name in "ab")
    told.estates = [Estate(2, board=GOOD[1], shown=2, roster=(a, b))]
    check({"a": A, "b": B}, told, BOUNDS, {})
    told.estates = [Estate(2, board=GOOD[1], shown=2, roster=(a, a))]
    with pytest.raises(AssertionError, match=r"at revision 2 the run is damaged: .*a node has two ranks"):
        check({"a": A, "b": B}, told, BOUNDS, {})
