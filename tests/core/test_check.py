"""What is always true of a run, where a record could not even say that it is not; the rest is in test_codec."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rallypoint.core.changes import change
from rallypoint.core.check import complaints
from rallypoint.core.model import HeardRank, Phase, Predecessor, RecordedWorld, Run, Waiter
from rallypoint.core.table import Table
from tests.core.stage import member, sealed


def test_a_sound_run_gives_no_cause_for_complaint() -> None:
    assert list(complaints(sealed(2).run)) == []


def test_a_node_stands_under_its_own_name() -> None:
    run = change(sealed(2).run, arrivals=9, queue=Table.build([("x", Waiter(member("y"), 1))]))
    assert list(complaints(run)) == ["node 'y' stands under the name 'x'"]


def test_the_pauses_are_those_of_the_paused_nodes() -> None:
    run = change(sealed(2).run, pauses=Table.build([((5.0, "x"), None)]))
    assert list(complaints(run)) == ["the pauses are not those of the paused nodes"]


def test_ranks_that_were_heard_belong_to_recovery() -> None:
    heard = HeardRank(member("a"), "inc", 1, "s1", 2, holds=True)
    assert list(complaints(change(sealed(2).run, heard=Table.build([(0, heard)])))) == [
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
    swapped = Table.build([("a", 1), ("b", 0)])
    assert list(complaints(change(run, ranks=swapped, active=swapped))) == [
        "node 'a' is not rank 1",
        "node 'b' is not rank 0",
    ]
    beyond = Table.build([("a", 0), ("b", 2)])
    assert "node 'b' is not rank 2" in list(complaints(change(run, ranks=beyond)))


def test_members_are_active_under_their_own_rank() -> None:
    run = change(sealed(2).run, active=Table.build([("a", 1), ("stranger", 0)]))
    assert list(complaints(run)) == [
        "node 'a' is active as rank 1 but has rank 0",
        "node 'stranger' is active as rank 0 but has rank None",
    ]
