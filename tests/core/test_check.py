"""What is always true of a run, where a record could not even say that it is not; the rest is in test_codec."""

from __future__ import annotations

import msgspec

from rallypoint.core.changes import change
from rallypoint.core.check import complaints
from rallypoint.core.model import Claim, Waiter
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


def test_claims_belong_to_recovery() -> None:
    claim = Claim(member("a"), "inc", 1, "s1", 2, holds=True)
    assert list(complaints(change(sealed(2).run, claims=Table.build([(0, claim)])))) == [
        "claims belong to recovery, not to sealed"
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
