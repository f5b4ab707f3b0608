"""What is always true of a run."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rallypoint.core.changes import change
from rallypoint.core.model import HeardRank, Phase, Predecessor, Run, WaitingNode
from rallypoint.messages.types import Bounds, RecordedWorld, Role
from rallypoint.sorted_map import SortedMap
from simulation.check import complaints
from tests.support.run_driver import RunDriver, member, sealed


def test_a_sound_run_gives_no_cause_for_complaint() -> None:
    assert list(complaints(sealed(2).run)) == []


def test_a_node_stands_under_its_own_name() -> None:
    run = change(sealed(2).run, arrivals=9, queue=SortedMap.build([("x", WaitingNode(member("y"), 1))]))
    assert list(complaints(run)) == ["node 'y' stands under the name 'x'"]


def test_the_pauses_are_those_of_the_paused_nodes() -> None:
    run = change(sealed(2).run, pauses=SortedMap.build([((5.0, "x"), None)]))
    assert list(complaints(run)) == ["the pauses are not those of the paused nodes"]


def test_ranks_that_were_heard_belong_to_recovery() -> None:
    heard = HeardRank(member("a"), holds=True)
    assert list(complaints(change(sealed(2).run, heard=SortedMap.build([(0, heard)])))) == [
        "ranks that were heard belong to recovery, not to sealed"
    ]


@pytest.mark.parametrize(
    "known", [{"recorded": RecordedWorld(1, "s1", 2)}, {"predecessor": Predecessor("s1", (0,), 5.0)}]
)
def test_what_a_server_recovers_from_belongs_to_recovery(known: dict[str, Any]) -> None:
    assert list(complaints(change(sealed(2).run, **known))) == [
        "ranks that were heard belong to recovery, not to sealed"
    ]


def test_a_last_call_may_run_while_the_server_recovers() -> None:
    run = change(Run(run_id="run"), phase=Phase.RECOVERING, hold_ends=7.0, last_call_ends=30.0)
    assert list(complaints(run)) == []
    assert list(complaints(change(run, regroup_ends=60.0))) == [
        "members are awaited back while the phase is recovering"
    ]


def test_a_world_has_members() -> None:
    run = sealed(2).run
    assert run.world is not None
    empty = change(run, world=msgspec.structs.replace(run.world, members=()))
    assert list(complaints(empty)) == ["the world has no members"]


def test_ranks_are_those_of_the_world() -> None:
    run = sealed(2).run
    swapped = SortedMap.build([("a", 1), ("b", 0)])
    assert list(complaints(change(run, ranks=swapped, active=swapped))) == [
        "node 'a' is not rank 1",
        "node 'b' is not rank 0",
    ]
    beyond = SortedMap.build([("a", 0), ("b", 2)])
    assert "node 'b' is not rank 2" in list(complaints(change(run, ranks=beyond)))


def test_members_are_active_under_their_own_rank() -> None:
    run = change(sealed(2).run, active=SortedMap.build([("a", 1), ("stranger", 0)]))
    assert list(complaints(run)) == [
        "node 'a' is active as rank 1 but has rank 0",
        "node 'stranger' is active as rank 0 but has rank None",
    ]


def running() -> Run:
    """A run with somebody in most places: three members, one of them finished, a newcomer and a spare."""
    driver = sealed(2, 4, members="abcd")
    driver.join("e")
    driver.join("s", role=Role.SPARE)
    driver.finish("c")
    assert all((driver.run.active, driver.run.finished, driver.run.queue, driver.run.spares))
    return driver.run


def broken() -> Run:
    """A run that regroups: one member is back, one is awaited."""
    driver = sealed(2)
    driver.join_again("a")
    return driver.run


def founded() -> Run:
    """A run that has sealed nothing yet."""
    driver = RunDriver(2)
    driver.join("a")
    return driver.run


def closed() -> Run:
    driver = sealed(2)
    driver.close()
    return driver.run


def in_world(run: Run, **fields: Any) -> dict[str, Any]:
    """The run's world with some fields replaced."""
    assert run.world is not None
    return {"world": msgspec.structs.replace(run.world, **fields)}


NOBODY: SortedMap[str, Any] = SortedMap.build([])


@pytest.mark.parametrize(
    ("run", "damage", "complaint"),
    [
        (running(), {"spares": running().queue}, "stands in two places"),
        (running(), {"arrivals": 0}, "but only 0 came"),
        (running(), {"phase": Phase.CLOSED}, "the phase is closed, but how it closed is unknown"),
        (closed(), {"phase": Phase.GATHERING}, "the phase is gathering, but how it closed is known"),
        (running(), {"phase": Phase.RECOVERING}, "a hold belongs to recovery, not to recovering"),
        (running(), {"world": None, "ranks": NOBODY}, "the phase is sealed, but there is no world"),
        (running(), {"queue": NOBODY, "returned": running().queue}, "nodes came back to a world that is current"),
        (running(), {"active": NOBODY}, "a current world has no member left"),
        (running(), {"last_call_ends": 5.0}, "a call runs while the phase is sealed"),
        (closed(), {"last_call_ends": 5.0}, "a call runs while the phase is closed"),
        (closed(), {"regroup_ends": 5.0}, "members are awaited back while the phase is closed"),
        (founded(), {"incarnation": ""}, "nodes are here, but the run has no incarnation"),
        (broken(), {"world": None, "active": NOBODY}, "nodes came back, but there was no world"),
        (founded(), {"finished": SortedMap.build([("x", -1)])}, "there are members, but no world"),
        (sealed(2).run, in_world(sealed(2).run, members=(member("a"), member("a"))), "a node has two ranks"),
        (running(), {"incarnation": "other"}, "the world is of incarnation 'r1', the run of 'other'"),
        (running(), in_world(running(), seal_id=""), "the world is of incarnation"),
        (running(), in_world(running(), round=99), "the world is of round 99"),
        (running(), in_world(running(), round=0), "the world is of round 0"),
        (running(), {"bounds": Bounds(1, 1)}, "the world has 4 members where 1 are allowed"),
    ],
)
def test_a_run_that_does_not_hold_together_is_complained_about(
    run: Run, damage: dict[str, Any], complaint: str
) -> None:
    assert any(complaint in told for told in complaints(change(run, **damage)))
