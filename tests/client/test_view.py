"""A rendezvous as one node sees it (rules 6a, 6b, 9, 13, 14)."""

from __future__ import annotations

from typing import Any

import pytest

from rallypoint.client import view as views
from rallypoint.client.view import State, View
from rallypoint.messages.notices import (
    Broken,
    Fenced,
    KeepWaiting,
    NodeNotice,
    Placed,
    Refused,
    RunClosed,
    StandBy,
    WaitingCount,
)
from rallypoint.messages.requests import Seat, Standing
from rallypoint.messages.types import Bounds, Ending, Reason
from tests.support.run_driver import member

FIRST = Placed("inc", 1, "s1", 0, 2, "host:1")
SECOND = Placed("inc", 2, "s2", 1, 3, "host:2", remark="rank 0 was wanted, but b has it")
CLOSED = RunClosed("inc", Ending.SUCCEEDED, "all members have finished")


def view(*heard: NodeNotice, **fields: Any) -> View:
    """A node that joined at 0 with a deadline of 60 s and has heard this since."""
    asking, _ = views.join(View(node=member("a"), bounds=Bounds(2, 3), **fields), 0.0, 60.0)
    for said in heard:
        asking = views.hear(asking, said)
    return asking


def in_state(state: State) -> View:
    """A node in any state, with a world where it can have one."""
    holds = view(FIRST)
    return {
        State.IDLE: View(node=member("a"), bounds=Bounds(2, 3)),
        State.WAITING: views.join(views.hear(holds, Broken("s1", "b was lost")), 0.0, 60.0)[0],
        State.SPARE: view(StandBy("inc", 1, "surplus")),
        State.HOLDS: holds,
        State.BROKEN: views.hear(holds, Broken("s1", "b was lost")),
        State.FINISHED: views.leave(holds, Reason.FINISHED)[0],
        State.CLOSED: views.hear(holds, CLOSED),
        State.REFUSED: view(Refused("other bounds")),
        State.FENCED: views.hear(holds, Fenced("s1", "given up")),
    }[state]


# Joining --------------------------------------------------------------------------------------------------------------


def test_a_first_join_names_no_world() -> None:
    asking, said = views.join(View(node=member("a"), bounds=Bounds(2, 3)), 0.0, 60.0)
    assert (asking.state, asking.why) == (State.WAITING, "the server has not answered")
    assert (said.node, said.bounds, said.seat, said.incarnation) == (member("a"), Bounds(2, 3), None, "")


def test_joining_again_names_the_world_that_was_last_received() -> None:
    asking, said = views.join(view(FIRST), 5.0, 60.0)
    assert said.seat == Seat(1, "s1", 2, 0)
    assert (said.incarnation, said.round_seen) == ("inc", 1)
    assert (asking.state, asking.deadline) == (State.WAITING, 65.0)


@pytest.mark.parametrize("state", [State.CLOSED, State.REFUSED, State.FENCED, State.FINISHED])
def test_who_is_out_cannot_join(state: State) -> None:
    with pytest.raises(ValueError, match=f"a node that is {state.name} cannot join"):
        views.join(in_state(state), 0.0, 60.0)


def test_a_placed_node_holds_its_world_and_has_no_deadline_any_more() -> None:
    held = view(SECOND)
    assert (held.state, held.world, held.incarnation, held.round_seen) == (State.HOLDS, SECOND, "inc", 2)
    assert held.why == SECOND.remark
    assert held.deadline is None


def test_a_place_in_no_later_world_than_the_last_is_ignored() -> None:
    again = in_state(State.WAITING)
    assert views.hear(again, FIRST) is again
    assert views.hear(again, Placed("another", 9, "s9", 0, 1, "")) is again
    assert views.hear(again, SECOND).state is State.HOLDS


@pytest.mark.parametrize("state", [State.HOLDS, State.BROKEN, State.FINISHED, State.CLOSED, State.IDLE])
def test_who_does_not_ask_takes_no_answers(state: State) -> None:
    before = in_state(state)
    for said in (SECOND, KeepWaiting("inc", 5, "wait"), StandBy("inc", 5, "stand by"), Refused("no")):
        assert views.hear(before, said) is before


def test_the_deadline_runs_while_waiting_and_covers_every_answer_but_a_place() -> None:
    waits = view(KeepWaiting("inc", 3, "b must come"))
    assert (waits.state, waits.why, waits.incarnation, waits.round_seen) == (State.WAITING, "b must come", "inc", 3)
    assert waits.deadline == 60.0


def test_the_deadline_does_not_run_while_standing_by() -> None:
    spare = in_state(State.SPARE)
    assert (spare.state, spare.why) == (State.SPARE, "surplus")
    assert spare.deadline is None
    needed = views.hear(spare, KeepWaiting("inc", 1, "a must come back"))
    assert needed.deadline is None
    assert views.hear(needed, SECOND).state is State.HOLDS


def test_a_wait_does_not_change_the_incarnation_of_who_had_a_world() -> None:
    waits = views.hear(in_state(State.WAITING), KeepWaiting("another", 7, "wait"))
    assert (waits.incarnation, waits.round_seen) == ("inc", 7)


def test_a_refusal_is_kept_with_its_reason() -> None:
    refused = in_state(State.REFUSED)
    assert (refused.state, refused.why) == (State.REFUSED, "other bounds")
    assert views.announce(refused) is None


# Notices of a world ---------------------------------------------------------------------------------------------------


def test_notices_with_another_seal_id_are_ignored() -> None:
    for before in (view(FIRST), view()):
        for said in (Broken("s0", "old"), WaitingCount("s0", 3), Fenced("s0", "old")):
            assert views.hear(before, said) is before


def test_a_broken_world_is_joined_again() -> None:
    broken = in_state(State.BROKEN)
    assert (broken.state, broken.why) == (State.BROKEN, "b was lost")
    assert views.num_nodes_waiting(broken, 0.0) == 1
    assert views.hear(broken, WaitingCount("s1", 3)) is broken


def test_a_fenced_node_comes_back_as_another_with_no_memory() -> None:
    fenced = in_state(State.FENCED)
    assert (fenced.state, fenced.why) == (State.FENCED, "given up")
    assert views.num_nodes_waiting(fenced, 0.0) == 1
    assert views.announce(fenced) is None
    reborn = views.reborn(fenced, member("a.2"))
    assert reborn == View(node=member("a.2"), bounds=Bounds(2, 3))


def test_a_node_that_waits_for_the_next_world_can_be_fenced_too() -> None:
    assert views.hear(in_state(State.WAITING), Fenced("s1", "given up")).state is State.FENCED


@pytest.mark.parametrize("state", [State.FINISHED, State.CLOSED])
def test_who_is_done_is_not_fenced(state: State) -> None:
    done = in_state(state)
    assert views.hear(done, Fenced("s1", "given up")) is done


# Waiting counts -------------------------------------------------------------------------------------------------------


def test_the_number_of_waiting_nodes_is_answered_from_memory() -> None:
    held = views.hear(view(FIRST), WaitingCount("s1", 2))
    assert views.num_nodes_waiting(held, 0.0) == 2
    again, _ = views.join(held, 0.0, 60.0)
    assert again.waiting == 0


@pytest.mark.parametrize("state", [State.IDLE, State.WAITING, State.SPARE, State.FINISHED, State.CLOSED, State.REFUSED])
def test_nobody_waits_where_there_is_no_world_to_leave(state: State) -> None:
    assert views.num_nodes_waiting(in_state(state), 0.0) == 0


# Closing and leaving --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [State.WAITING, State.SPARE, State.HOLDS, State.BROKEN, State.FINISHED])
def test_a_closed_run_is_closed_for_whoever_is_in_it(state: State) -> None:
    closed = views.hear(in_state(state), CLOSED)
    assert (closed.state, closed.ending, closed.why) == (State.CLOSED, Ending.SUCCEEDED, CLOSED.why)
    assert closed.deadline is None


def test_a_fresh_node_is_told_of_a_closed_run_whatever_its_incarnation() -> None:
    assert view(RunClosed("other", Ending.FAILED, "enough")).incarnation == "other"


def test_the_closing_of_another_incarnation_is_ignored_by_who_had_a_world() -> None:
    for state in (State.HOLDS, State.WAITING):
        before = in_state(state)
        assert views.hear(before, RunClosed("other", Ending.FAILED, "enough")) is before


@pytest.mark.parametrize("state", [State.IDLE, State.REFUSED, State.FENCED])
def test_who_is_not_in_the_run_does_not_mind_that_it_closes(state: State) -> None:
    before = in_state(state)
    assert views.hear(before, RunClosed(before.incarnation, Ending.FAILED, "enough")) is before


def test_only_who_holds_its_world_can_finish_in_it() -> None:
    finished, said = views.leave(view(FIRST), Reason.FINISHED)
    assert (finished.state, said.reason, said.seal_id) == (State.FINISHED, Reason.FINISHED, "s1")
    gone, said = views.leave(in_state(State.BROKEN), Reason.FINISHED)
    assert (gone.state, said.reason) == (State.IDLE, Reason.WITHDREW)
    gone, said = views.leave(view(), Reason.GAVE_UP, "too long")
    assert (gone.state, said.reason, said.seal_id, said.why) == (State.IDLE, Reason.GAVE_UP, "", "too long")


# Announcements --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "standing"),
    [
        (State.WAITING, Standing.WAITING),
        (State.SPARE, Standing.SPARE),
        (State.HOLDS, Standing.HOLDS),
        (State.BROKEN, Standing.BROKEN),
        (State.FINISHED, Standing.FINISHED),
        (State.CLOSED, Standing.CLOSED),
    ],
)
def test_a_node_announces_how_it_stands(state: State, standing: Standing) -> None:
    before = in_state(state)
    said = views.announce(before)
    assert said is not None
    assert said.standing is standing
    assert said.seat == (None if state is State.SPARE else Seat(1, "s1", 2, 0))
    assert said.incarnation == "inc"
    assert said.why == (CLOSED.why if state is State.CLOSED else "")


def test_a_node_that_has_not_joined_has_nothing_to_announce() -> None:
    assert views.announce(in_state(State.IDLE)) is None


# Outages --------------------------------------------------------------------------------------------------------------


def test_an_outage_is_not_a_loss() -> None:
    out = views.disconnected(views.hear(view(FIRST), WaitingCount("s1", 2)), 10.0)
    assert views.disconnected(out, 200.0) is out
    assert views.in_outage(out, 309.9)
    assert views.num_nodes_waiting(out, 309.9) == 0
    assert views.passed(out, 309.9) is out
    back = views.connected(out)
    assert not views.in_outage(back, 100.0)
    assert views.num_nodes_waiting(back, 100.0) == 2
    assert views.passed(back, 1e9) is back


def test_after_the_outage_grace_a_node_stops_trusting_its_world() -> None:
    out = views.disconnected(view(FIRST), 10.0)
    assert not views.in_outage(out, 310.0)
    broken = views.passed(out, 310.0)
    assert (broken.state, broken.why) == (State.BROKEN, "the server has been away for more than 300 s")
    assert views.num_nodes_waiting(broken, 310.0) == 1
    assert views.passed(broken, 400.0) is broken


def test_a_node_that_was_itself_paused_distrusts_its_world_at_once() -> None:
    """Rule 9: the others may have gone on without it."""
    broken = views.paused(view(FIRST), 7.25)
    assert (broken.state, broken.why) == (State.BROKEN, "this node itself was paused for 7.2 s")
    assert views.num_nodes_waiting(broken, 0.0) == 1
    said = views.announce(broken)
    assert said is not None
    assert said.standing is Standing.BROKEN


def test_a_node_that_was_itself_paused_says_so_in_an_outage_too() -> None:
    """Rules 6b and 9: otherwise nobody is counted in an outage."""
    out = views.disconnected(views.paused(view(FIRST), 7.25), 10.0)
    assert views.in_outage(out, 20.0)
    assert views.num_nodes_waiting(out, 20.0) == 1
    assert views.num_nodes_waiting(views.disconnected(in_state(State.BROKEN), 10.0), 20.0) == 0


def test_a_pause_is_over_with_the_next_world() -> None:
    again, _ = views.join(views.paused(view(FIRST), 7.25), 0.0, 60.0)
    assert views.num_nodes_waiting(views.disconnected(again, 10.0), 20.0) == 0
    held = views.hear(again, SECOND)
    broken = views.hear(held, Broken("s2", "b was lost"))
    assert views.num_nodes_waiting(views.disconnected(broken, 10.0), 20.0) == 0


@pytest.mark.parametrize("state", [state for state in State if state is not State.HOLDS])
def test_a_pause_means_nothing_to_a_node_that_holds_no_world(state: State) -> None:
    before = in_state(state)
    assert views.paused(before, 1e6) is before
