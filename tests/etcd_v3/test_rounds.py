"""Many rounds while nodes and members of etcd are killed at random; what every process recorded breaks no invariant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rallypoint.core.model import Bounds, Ending, Phase
from rallypoint.etcd.board import Board, Ended, Sealing
from tests.etcd_client.stage import etcd
from tests.etcd_v3.crowd import CROWD, Crowd, play
from tests.etcd_v3.harness import EtcdStage, Observer, observing, until
from tests.etcd_v3.judging import Event, History, Rejoining, check, history_of, recorded
from tests.etcd_v3.test_campaign import check_boards

BOUNDS = Bounds(2, 4)
QUIET_S = 1.5


@pytest.mark.parametrize(
    ("version", "seed", "rounds"),
    [
        ("3.4", 1, 15),
        ("3.5", 4, 15),
        *(pytest.param(version, seed, 200, marks=pytest.mark.soak) for version, seed in (("3.4", 2), ("3.5", 3))),
    ],
)
def test_rounds_under_random_kills(
    stage: EtcdStage, run: str, tmp_path: Path, version: str, seed: int, rounds: int
) -> None:
    with etcd(version, 3) as cluster, observing(cluster.endpoints, run) as observer:
        crowd = Crowd(stage, cluster, run, tmp_path, kills_members=version != "3.5")
        done = play(crowd, seed, rounds)
        assert done["kill"] >= rounds / 15, done
        assert done["member"] >= rounds / 15, done
        stay_together(crowd, observer)
        told_closed(crowd, observer)
        history = history_of(observer)
        check(recorded(tmp_path), history, BOUNDS, crowd.killed)
        check_boards([board for _, board in history.boards])


def stay_together(crowd: Crowd, observer: Observer) -> None:
    """Long after the last fault everybody is where they should be, and stays there."""
    round_, stalls = crowd.round, stalls_in(crowd.folder)
    until(lambda: observer.is_quiet(QUIET_S), "nothing changes any more")
    crowd.meet()
    assert crowd.round == round_ or stalls_in(crowd.folder) > stalls


def stalls_in(folder: Path) -> int:
    """How often processes stood still up to now, on a machine that is too busy."""
    return sum(event["kind"] == "stalled" for events in recorded(folder).values() for event in events)


def told_closed(crowd: Crowd, observer: Observer) -> None:
    """In the end the run is closed, and everybody hears of it, be it later."""
    crowd.alive[0].ask("close", "closed")
    for node in crowd.alive:
        node.expect("ended")
    late = crowd.stage.nodes(*(f"late{number}" for number in range(CROWD)))
    for node in late:
        node.join(crowd.cluster.endpoints, "2:4", crowd.run)
    for node in late:
        node.failed("RendezvousClosedError")
    board = observer.board()
    assert board is not None
    assert board.ended is not None


def event(kind: str, **details: Any) -> Event:
    return {"kind": kind, "details": details}


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
        ended=Ended(Ending.FAILED, "") if is_closed else None,
    )


def history(*boards: Board, rejoined: int = 4, **rosters: list[str]) -> History:
    """Boards at revisions 1, 2 …; at one of them a node of the first world has joined again."""
    known = {"s1": ["a.1", "b.1"], "s2": ["a.1", "b.1"], **rosters}
    return History([*enumerate(boards, 1)], known, [Rejoining(rejoined, "a.1", "s1")])


SEALED = event("sealed", seal_id="s1", round=1, members=["a.1", "b.1"])
A = [SEALED, placed("s1", 1, 0, "a.1"), over("s1"), placed("s2", 2, 0, "a.1")]
B = [placed("s1", 1, 1, "b.1"), over("s1", node="b.1"), placed("s2", 2, 1, "b.1")]
UNTOLD = [SEALED, A[1], over("s1", "HOLDS"), A[3]]
GOOD = [board(), board("s1", 1), board("s1", 1, is_up=False), board("s2", 2), board("s2", 2, is_closed=True)]


def test_the_check_lets_pass_what_is_right() -> None:
    check({"a": A, "b": B}, history(*GOOD), BOUNDS, ())
    lost = event("lost", node="b.1")
    check({"a": [*A, lost], "b": B}, history(*GOOD), BOUNDS, {"b"})
    check({"a": [*A, lost], "b": [*B, event("stalled", seconds=3.0)]}, history(*GOOD), BOUNDS, ())
    for_a_newcomer = history(board("s1", 1), board("s1", 1, waiting=1), board("s2", 2), rejoined=3)
    check({"a": UNTOLD, "b": B}, for_a_newcomer, BOUNDS, ())


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
        check({"a": events, "b": B}, history(*GOOD), BOUNDS, ())


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
    ],
)
def test_the_check_finds_what_is_wrong_in_etcd(complaint: str, told: History) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check({"a": A, "b": B}, told, BOUNDS, ())


def test_the_check_finds_a_node_that_joined_again_for_no_reason() -> None:
    with pytest.raises(AssertionError, match=r"a.1 left a world that was up and needed nobody"):
        check({"a": UNTOLD, "b": B}, history(*GOOD, rejoined=3), BOUNDS, ())
