"""Many rounds while nodes, the serving node and members of etcd are killed at random: no invariant is broken."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from rallypoint.messages.types import Bounds, Ending, RecordedWorld, rank_bitmap
from rallypoint.record import Claim, Record, RecordedEnding
from tests.etcd_v3.invariants import History, check
from tests.etcd_v3.random_faults import NodeGroup, play
from tests.support.etcd_node_processes import EtcdProcesses, Observer, observing
from tests.support.etcd_servers import survives_kills
from tests.support.etcd_tools import etcd
from tests.support.run_invariants import LATE_S, Event, recorded
from tests.support.waiting import until

BOUNDS = Bounds(2, 4)
QUIET_S = 1.5
START = datetime(2026, 1, 1, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("version", "seed", "rounds", "ending"),
    [
        ("3.4", 1, 30, "finished"),
        pytest.param("3.5", 4, 30, "closed", marks=pytest.mark.soak),
        pytest.param("3.4", 2, 200, "closed", marks=pytest.mark.soak),
        pytest.param("3.5", 3, 200, "finished", marks=pytest.mark.soak),
    ],
)
def test_rounds_under_random_kills(
    processes: EtcdProcesses, run: str, tmp_path: Path, version: str, seed: int, rounds: int, ending: str
) -> None:
    with etcd(version, 3) as cluster, observing(cluster.endpoints, run) as observer:
        group = NodeGroup(processes, cluster, run, tmp_path, kills_members=survives_kills(version))
        done = play(group, observer, seed, rounds)
        for what in ("kill", "server", "member"):
            assert done[what] >= rounds / 15, done
        stay_together(group, observer)
        if ending == "finished":
            finish_one_by_one(group, observer)
        else:
            told_closed(group, observer)
        check(recorded(tmp_path), observer.history(), BOUNDS, group.killed)


def stay_together(group: NodeGroup, observer: Observer) -> None:
    """Long after the last fault everybody is where they should be, and stays there."""
    round_, stalls = group.round, stalls_of(group)
    until(lambda: observer.is_quiet(QUIET_S), "nothing changes any more")
    group.meet()
    assert group.round == round_ or stalls_of(group) > stalls


def stalls_of(group: NodeGroup) -> int:
    """How often processes stood still up to now, on a machine that is too busy."""
    return sum(map(group.stalls, group.alive))


def finish_one_by_one(group: NodeGroup, observer: Observer) -> None:
    """In the end those who are in the world finish, one after the other, and nobody is told to regroup (rule 8)."""
    members = sorted(group.members, key=lambda node: -int(group.place(node)["rank"]))
    server, round_ = observer.server(group.alive), group.round
    spares = [node for node in group.alive if node not in members]
    for number, node in enumerate(members, 1):
        node.order("finish")
        if node is not server and node is not members[-1]:
            assert node.expect("left")["done"], node.account()
        until(lambda number=number: have_finished(observer, number), "it is recorded")  # type: ignore[misc]
        for other in members[number:]:
            assert other.standing()["state"] == "HOLDS", other.account()
            assert group.place(other)["round"] == round_, other.account()
    for spare in spares:
        assert spare.failed("RendezvousGracefulExitError"), "it was not needed, and ends well (rule 7)"
    closing = observer.known().closing
    assert closing is not None
    assert closing.ending is Ending.SUCCEEDED


def have_finished(observer: Observer, count: int) -> bool:
    record = observer.known()
    return record.closing is not None or (
        record.world is not None and len(list(record.world.finished_ranks())) == count
    )


def told_closed(group: NodeGroup, observer: Observer) -> None:
    """In the end the run is closed, and everybody hears of it, be it later."""
    members = group.members
    members[0].ask("close", "closed")
    closing = observer.known().closing
    assert closing is not None, "what is acknowledged is recorded"
    for node in group.alive:
        if node in members:
            node.expect("ended")
        else:
            node.failed("RendezvousClosedError")
    late = group.processes.node("late")
    late.join(group.cluster.endpoints, "2:4", group.run)
    late.failed("RendezvousClosedError")


@pytest.mark.parametrize(
    ("release", "is_killed"),
    [("3.4.30", True), ("3.5.0", False), ("3.5.2", False), ("3.5.3", True), ("3.5.21", True), ("3.6.0-rc.1", True)],
)
def test_members_are_killed_whatever_they_are_called_unless_their_release_does_not_survive_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str, is_killed: bool
) -> None:
    program = tmp_path / "etcd"
    program.write_text(f"#!/bin/sh\necho etcd Version: {release}\necho Git SHA: 1\n", encoding="ascii")
    program.chmod(0o700)
    monkeypatch.setenv("ETCD", str(program))
    assert survives_kills("3.5") is is_killed


# The judge itself -----------------------------------------------------------------------------------------------------


def event(kind: str, at_s: float = 0.0, **details: Any) -> Event:
    """Something that happened so many seconds after some moment."""
    return {"kind": kind, "at": (START + timedelta(seconds=at_s)).isoformat(), "why": "", "details": details}


def placed(seal_id: str, round_: int, rank: int, node: str, size: int = 2) -> Event:
    return event("placed", seal_id=seal_id, round=round_, rank=rank, size=size, node=node)


def over(seal_id: str, state: str = "BROKEN", node: str = "a.1", at_s: float = 2.0) -> Event:
    return event("over", at_s, seal_id=seal_id, state=state, node=node)


def record(
    seal_id: str = "",
    round_: int = 0,
    *,
    epoch: int = 1,
    claim: str = "c1",
    size: int = 2,
    finished: tuple[int, ...] = (),
    is_closed: bool = False,
    incarnation: str = "i",
) -> Record:
    return Record(
        run_id="run",
        incarnation=incarnation,
        epoch=epoch,
        round=round_,
        write_id="w",
        bounds=Bounds(2, 9),
        claim=Claim(claim, ("a",), 1, 5.0) if claim else None,
        world=RecordedWorld(round_, seal_id, size, rank_bitmap(finished)) if seal_id else None,
        closing=RecordedEnding(Ending.FAILED) if is_closed else None,
    )


def history(*records: Record | None) -> History:
    return list(enumerate(records, 1))


SEALED = event("sealed", seal_id="s1", round=1, members=["a.1", "b.1"])
WITHDREW = event("withdrew", 1.0, node="b.1")
A = [SEALED, placed("s1", 1, 0, "a.1"), over("s1"), placed("s2", 2, 0, "a.1")]
B = [placed("s1", 1, 1, "b.1"), WITHDREW, placed("s2", 2, 1, "b.2")]
GOOD = (record(), record("s1", 1), record("s1", 1, epoch=2, claim="c2"), record("s2", 2, epoch=2, claim="c2"))


def test_the_check_lets_pass_what_is_right() -> None:
    check({"a": A, "b": B}, history(*GOOD), BOUNDS, {})
    lost = event("lost", 4.0, node="b.2")
    check({"a": [*A, lost], "b": B}, history(*GOOD), BOUNDS, {"b": START.timestamp() + 1.0})
    check({"a": [*A, lost], "b": [*B, event("stalled", 5.0, seconds=3.0)]}, history(*GOOD), BOUNDS, {})
    closed = record("s2", 2, epoch=2, claim="", is_closed=True)
    check({"a": A, "b": B}, history(*GOOD, closed), BOUNDS, {})


@pytest.mark.parametrize(
    ("complaint", "events"),
    [
        ("holds two worlds", [SEALED, A[1], A[3]]),
        ("a went back", [*A, over("s2"), A[1]]),
        ("a world that is not recorded", [*A, over("s2"), placed("s9", 9, 0, "a.1")]),
        ("a world was told that is not recorded", [event("sealed", seal_id="s9", round=9, members=["a.1"])]),
        ("knows its world otherwise", [placed("s1", 2, 0, "a.1")]),
        ("one roster", [SEALED, event("sealed", seal_id="s1", round=1, members=["b.1", "a.1"])]),
        ("the world is as recorded", [event("sealed", seal_id="s1", round=1, members=["a.1"])]),
        ("has the rank of b.1", [SEALED, placed("s1", 1, 1, "a.1")]),
        ("a rank given twice", [placed("s1", 1, 1, "b.1")]),
        ("that it is not in", [SEALED, A[1], over("s7")]),
        ("none of its members had gone", [SEALED, A[1], over("s1", at_s=0.5), A[3]]),
        ("b was given up although it was there", [*A, event("lost", node="b.1")]),
        ("a was put out although it was there", [*A[:2], over("s1", "FENCED"), A[3]]),
    ],
)
def test_the_check_finds_what_is_wrong_in_a_record(complaint: str, events: list[Event]) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check({"a": events, "b": B}, history(*GOOD), BOUNDS, {})


@pytest.mark.parametrize(
    ("complaint", "records"),
    [
        ("nobody deletes the record", (*GOOD, None)),
        ("epochs only grow", (*GOOD, record("s2", 2))),
        ("rounds only grow", (record("", 5), *GOOD)),
        ("a new world has a new round", (*GOOD[:2], record("s2", 1))),
        ("no world comes back", (*GOOD, record("s1", 1, epoch=2, claim="c2"))),
        ("one round and one size", (*GOOD[:2], record("s1", 1, size=3))),
        ("every claim has an epoch of its own", (*GOOD, record("s2", 2, epoch=2, claim="c3"))),
        ("the run was never founded anew", (*GOOD, record("s2", 2, epoch=2, claim="c2", incarnation="j"))),
        ("what is closed stays closed", (*GOOD[:2], record("s1", 1, is_closed=True), *GOOD[2:])),
        ("no world is sealed in a run that is closed", (*GOOD[:2], record("s2", 2, is_closed=True))),
        ("a world of 5 where 2:4 are asked for", (record("s1", 1, size=5),)),
        (r"ranks \[1\] had finished", (*GOOD[:1], record("s1", 1, finished=(1,)), *GOOD[1:])),
    ],
)
def test_the_check_finds_what_is_wrong_in_etcd(complaint: str, records: tuple[Record | None, ...]) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check({"a": A, "b": B}, history(*records), BOUNDS, {})


@pytest.mark.parametrize("at_s", [1.0, 5.0 + LATE_S + 0.1], ids=["before", "long after"])
@pytest.mark.parametrize("what", ["given up", "put out"])
def test_the_check_takes_a_standstill_at_another_time_for_no_excuse(what: str, at_s: float) -> None:
    """A node that stood still from the second to the fifth second may have been missed then, and a little later."""
    stalled = event("stalled", 5.0, seconds=3.0)
    lost = event("lost", at_s, node="b.1")
    a, b = ([*A, lost], B) if what == "given up" else (A, [B[0], over("s1", "FENCED", at_s=at_s), B[2]])
    with pytest.raises(AssertionError, match=f"b was {what} although it was there|none of its members had gone"):
        check({"a": a, "b": [*b, stalled]}, history(*GOOD), BOUNDS, {})


def test_the_check_takes_no_later_death_for_an_excuse() -> None:
    with pytest.raises(AssertionError, match="b was given up although it was there"):
        check({"a": [*A, event("lost", node="b.1")], "b": B}, history(*GOOD), BOUNDS, {"b": START.timestamp() + 1.0})
