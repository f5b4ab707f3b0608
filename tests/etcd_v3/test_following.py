"""What a node makes of the board and of what it alone is told."""

from __future__ import annotations

import pytest

from rallypoint.core import node as core
from rallypoint.core.model import Bounds, Node, Phase
from rallypoint.core.node import State, View
from rallypoint.core.notices import Fenced, KeepWaiting, Placed, Said, WaitingCount
from rallypoint.etcd.board import Board, Sealing
from rallypoint.etcd.following import notices

BOUNDS = Bounds(2, 2)


def place(incarnation: str, seal_id: str, number: int = 1) -> Placed:
    return Placed(incarnation, number, seal_id, rank=0, size=2, store="")


def board(incarnation: str, seal_id: str, number: int = 1) -> Board:
    sealing = Sealing(seal_id, number, 2, "", 1, 1)
    return Board(
        token="t", lease=1, phase=Phase.SEALED, incarnation=incarnation, bounds=BOUNDS, round=number, world=sealing
    )


def asking(view: View | None = None) -> View:
    return core.join(view or View(node=Node(id="a.1", name="a"), bounds=BOUNDS), 0.0, 60.0)[0]


def hears(view: View, board: Board, told: Said | None) -> View:
    for said in notices(view, board, told):
        view = core.hear(view, said)
    return view


def test_who_asked_takes_its_place_once_the_board_names_the_world() -> None:
    placed = place("r1", "s1")
    assert list(notices(asking(), board("r1", "s1"), placed)) == [placed, WaitingCount("s1", 0)]
    assert list(notices(asking(), board("r1", "s0"), placed)) == [KeepWaiting("r1", 1, "")]


@pytest.mark.parametrize("told", [None, place("r2", "s2")], ids=["nothing yet", "a place in it"])
def test_who_holds_a_world_of_a_run_that_was_founded_anew_hears_that_it_is_over(told: Placed | None) -> None:
    """A place that it has not asked for changes nothing in that: its workers are those of another world."""
    holds = hears(asking(), board("r1", "s1"), place("r1", "s1"))
    assert holds.state is State.HOLDS
    after = hears(holds, board("r2", "s2"), told)
    assert (after.state, after.why) == (State.FENCED, "the run was founded anew without this node")
    assert list(notices(holds, board("r2", "s2"), told)) == [Fenced("s1", after.why)]


def test_who_has_come_back_to_a_run_that_was_founded_anew_is_out_of_it_too() -> None:
    """It waits as a member of the world before, and comes back as another."""
    again = asking(hears(asking(), board("r1", "s1"), place("r1", "s1")))
    assert again.state is State.WAITING
    assert hears(again, board("r2", "s2"), place("r2", "s2")).state is State.FENCED


def test_a_place_that_was_taken_is_not_taken_again() -> None:
    holds = hears(asking(), board("r1", "s1"), place("r1", "s1"))
    assert list(notices(holds, board("r1", "s1"), place("r1", "s1"))) == [WaitingCount("s1", 0)]
    assert hears(asking(holds), board("r1", "s1"), place("r1", "s1")).state is State.WAITING
