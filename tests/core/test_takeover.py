"""A server that takes over has the record and nothing else: taking over is recovery (rule 17f)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as effort

from rallypoint import record
from rallypoint.client import view as views
from rallypoint.client.view import State, View
from rallypoint.core import recovery, transition
from rallypoint.core.changes import Durability
from rallypoint.core.model import EndedIncarnation, Phase, Predecessor, RecordedWorld, Run, rank_bitmap
from rallypoint.messages.notices import Broken, Fenced, KeepWaiting, Placed, Refused, RunClosed, StandBy
from rallypoint.messages.requests import Announced, Joined, Left, NodeMessage, Seat, Standing
from rallypoint.messages.types import Bounds, Ending, Reason, Role, Settings
from rallypoint.record import Claim, Record, RecordedEnding
from tests.core.random_histories import KEEPING, History, histories
from tests.core.test_recovery import HOLD_S, claim, restarted
from tests.support.run_driver import Stage, member

CLAIM = Claim("c1", ("10.0.0.1",), 29400, 5.0)
GRACE_S = 0.125
"""Near to the reconnect grace, and exact: times are compared."""
DEFAULTS = Settings()
ENDED = EndedIncarnation("old", Ending.FAILED, "nobody of round 4 came back")


def a_record(low: int = 2, high: int = 3, **fields: Any) -> Record:
    """A record of the incarnation `old`, which has come to round 4."""
    known: dict[str, Any] = {"epoch": 3, "round": 4, "write_id": "w", "bounds": Bounds(low, high), **fields}
    return Record(run_id="run", incarnation="old", **known)


def started(written: Record, predecessor: Predecessor | None = None, **settings: Any) -> Stage:
    """A stage whose server has just started with this record."""
    stage = Stage(written.bounds.min, written.bounds.max, **settings)
    stage.run = record.restored(record.decode(record.encode(written)), stage.now, HOLD_S, predecessor)
    return stage


def took_over(
    low: int = 2,
    high: int = 3,
    *,
    size: int = 3,
    finished: Iterable[int] = (),
    left: Iterable[int] = (),
    gone: tuple[int, ...] = (),
    seal_id: str = "s4",
    settings: Settings = DEFAULTS,
    **world: Any,
) -> Stage:
    """A server with a record of round 4; the ranks that are `gone` were in the process that served before."""
    recorded = RecordedWorld(4, "s4", size, rank_bitmap(finished), gone=rank_bitmap(left), **world)
    predecessor = Predecessor(seal_id, gone, 100.0 + GRACE_S) if gone else None
    return started(a_record(low, high, world=recorded, settings=settings), predecessor)


def announces(stage: Stage, node_id: str, rank: int, standing: Standing = Standing.HOLDS, **said: Any) -> None:
    """A node speaks of its place in a world of the incarnation `old`, by default of round 4."""
    claim(stage, node_id, rank, standing, **said)


def say(stage: Stage, view: View, said: NodeMessage | None) -> View:
    """A node says something, and hears the answers."""
    assert said is not None
    stage.take(said)
    for told in stage.heard(view.node.id):
        view = views.hear(view, told)
    return view


# The recorded world ---------------------------------------------------------------------------------------------------


def test_a_recorded_world_that_every_rank_still_holds_goes_on_and_nobody_is_disturbed() -> None:
    """Rule 17f."""
    stage = took_over()
    assert "0 of 3 ranks of round 4 were heard, missing: rank 0, rank 1, rank 2; at most 7.0 s" in stage.situation()
    for rank, node_id in enumerate("abc"):
        announces(stage, node_id, rank)
        assert stage.sends == []
    assert (stage.ranked, stage.world.seal_id, stage.world.incarnation) == (["a", "b", "c"], "s4", "old")


def test_ranks_not_heard_when_the_hold_ends_are_lost_and_those_who_are_here_regroup() -> None:
    """Rule 17f."""
    stage = took_over()
    announces(stage, "a", 0)
    announces(stage, "c", 2)
    stage.wait(HOLD_S)
    assert dict(stage.sends) == dict.fromkeys("ac", Broken("s4", "only 2 of 3 ranks of round 4 still hold it"))
    stage.join_again("a", "c")
    assert (stage.ranked, stage.world.round, stage.world.incarnation) == (["a", "c"], 5, "old")


def test_max_fresh_nodes_do_not_skip_the_hold_of_a_recorded_world() -> None:
    """Rule 17f: only the recorded world can be current."""
    stage = took_over()
    stage.join("x", "y", "z")
    assert stage.phase is Phase.RECOVERING
    assert "0 of 3 ranks of round 4 were heard" in stage.answer("z", KeepWaiting).why
    for rank, node_id in enumerate("abc"):
        announces(stage, node_id, rank)
    assert stage.ranked == ["a", "b", "c"]
    assert list(stage.run.queue) == ["x", "y", "z"]


@pytest.mark.parametrize(("round_", "seal_id"), [(3, "s3"), (4, "another")])
def test_whoever_speaks_of_another_world_than_the_recorded_one_is_told_that_it_is_broken(
    round_: int, seal_id: str
) -> None:
    """Rule 17f: only the recorded world can be current."""
    stage = took_over()
    announces(stage, "a", 0, round_=round_, seal_id=seal_id)
    assert stage.heard("a") == [Broken(seal_id, "round 4 came after it")]
    assert not stage.run.heard


def test_a_rank_of_the_recorded_world_has_one_node_and_lies_in_a_world_of_that_size() -> None:
    stage = took_over()
    announces(stage, "a", 0)
    announces(stage, "impostor", 0)
    assert "rank 0 of round 4 is a" in stage.answer("impostor", Fenced).why
    announces(stage, "b", 1, size=2)
    assert "not of the same world" in stage.answer("b", Fenced).why


def test_a_stranger_is_fenced_while_the_server_recovers() -> None:
    stage = took_over()
    announces(stage, "x", 0, incarnation="other")
    assert "an incarnation of the run that is gone" in stage.answer("x", Fenced).why
    assert not stage.run.heard


def test_a_server_that_takes_over_wakes_at_the_end_of_its_hold() -> None:
    stage = took_over(gone=(0,))
    assert transition.wake_at(stage.run, stage.now) == 100.0 + GRACE_S
    stage.wait(GRACE_S)
    assert transition.wake_at(stage.run, stage.now) == 100.0 + HOLD_S


# Finished ranks -------------------------------------------------------------------------------------------------------


def test_recorded_finished_ranks_are_not_awaited() -> None:
    """Rule 17f: a finished node cannot announce itself, and must not break a healthy world."""
    stage = took_over(finished=[1])
    assert "1 of 3 ranks of round 4 were heard, missing: rank 0, rank 2" in stage.situation()
    announces(stage, "a", 0)
    announces(stage, "c", 2)
    assert stage.phase is Phase.SEALED
    assert stage.sends == []
    assert sorted(stage.run.active) == ["a", "c"]
    stage.finish("a", "c")
    assert stage.answer("c", RunClosed).ending is Ending.SUCCEEDED


def test_an_incarnation_whose_ranks_have_all_finished_has_succeeded() -> None:
    """Rule 17f: nobody is awaited, and who asks is told."""
    stage = took_over(finished=[0, 1, 2])
    stage.wait(0)
    assert stage.run.closing is not None
    assert (stage.run.closing.ending, stage.run.closing.why) == (Ending.SUCCEEDED, "all members have finished")
    assert stage.step.durability is Durability.SEAL_OR_CLOSE
    announces(stage, "b", 1, Standing.FINISHED)
    assert stage.answer("b", RunClosed) == RunClosed("old", Ending.SUCCEEDED, "all members have finished")


def test_too_few_that_are_left_beside_recorded_finished_ranks_end_the_run() -> None:
    """Rule 8."""
    stage = took_over(finished=[1])
    announces(stage, "a", 0)
    stage.wait(HOLD_S)
    assert stage.answer("a", RunClosed).why == "1 finished, and of the rest 1 are left where 2 are needed"


def test_nobody_new_is_admitted_after_a_takeover_once_somebody_has_finished_in_an_earlier_world() -> None:
    """Rule 8: the record counts those whom no rank of the world stands for."""
    stage = took_over(ended_before=2)
    for rank, node_id in enumerate("abc"):
        announces(stage, node_id, rank)
    assert stage.situation() == "round 4 runs with 3 nodes, 2 nodes finished"
    stage.join("new")
    assert "the run is ending, 2 nodes finished" in stage.answer("new", StandBy).why
    assert record.of(stage.run, epoch=4, write_id="w2").world == RecordedWorld(4, "s4", 3, b"", 2)


@pytest.mark.parametrize("late", [False, True])
def test_a_recorded_finished_node_that_is_heard_after_all_is_told_how_the_run_ends(late: bool) -> None:
    """Rule 17f: it may still be in its shutdown, waiting for the others."""
    stage = took_over(finished=[1])
    if not late:
        announces(stage, "b", 1, Standing.FINISHED)
        assert (stage.sends, stage.step.durability) == ([], Durability.NONE)
    announces(stage, "a", 0)
    announces(stage, "c", 2)
    for _ in range(2):
        announces(stage, "b", 1, Standing.FINISHED)
        assert (stage.sends, stage.step.durability) == ([], Durability.NONE)
        assert list(stage.run.finished.items()) == [("b", 1)]
        assert [node.id for node in stage.world.members] == ["a", "b", "c"]
    stage.finish("a", "c")
    assert stage.answer("b", RunClosed).ending is Ending.SUCCEEDED


def test_a_recorded_finished_rank_is_one_node_and_another_that_claims_it_is_fenced() -> None:
    stage = took_over(finished=[1])
    announces(stage, "a", 0)
    announces(stage, "c", 2)
    before = stage.run
    announces(stage, "x", 0, Standing.FINISHED)
    stage.answer("x", Fenced)
    announces(stage, "y", 7, Standing.FINISHED, size=8, bounds=Bounds(2, 8))
    stage.answer("y", Fenced)
    announces(stage, "z", 1, Standing.FINISHED, round_=3)
    stage.answer("z", Fenced)
    assert stage.run == before
    announces(stage, "b", 1, Standing.FINISHED)
    announces(stage, "impostor", 1, Standing.FINISHED)
    stage.answer("impostor", Fenced)
    assert list(stage.run.finished) == ["b"]


def test_who_the_record_has_as_finished_cannot_hold_or_break_its_world_again() -> None:
    """Rule 14: finished is sticky, an older message may arrive late."""
    stage = took_over(finished=[1])
    announces(stage, "b", 1, Standing.HOLDS)
    announces(stage, "b", 1, Standing.WAITING)
    stage.lose("b")
    announces(stage, "a", 0)
    announces(stage, "c", 2)
    assert (stage.phase, list(stage.run.finished)) == (Phase.SEALED, ["b"])


# The process that served before ---------------------------------------------------------------------------------------


def test_the_ranks_of_the_process_that_served_before_are_lost_after_their_grace() -> None:
    """Rule 17f: the hold ends as soon as every rank is heard or accounted for."""
    stage = took_over(gone=(0,))
    announces(stage, "b", 1)
    announces(stage, "c", 2)
    stage.wait(GRACE_S / 2)
    assert (stage.phase, stage.sends) == (Phase.RECOVERING, [])
    stage.wait(GRACE_S / 2)
    assert stage.phase is Phase.GATHERING
    assert {to for to, _ in stage.sends} == {"b", "c"}
    assert sorted(stage.run.active) == ["b", "c"]


def test_the_ranks_of_the_process_that_served_before_are_kept_if_they_speak_in_time() -> None:
    stage = took_over(gone=(0,))
    for rank, node_id in enumerate("abc"):
        announces(stage, node_id, rank)
    assert stage.ranked == ["a", "b", "c"]


def test_a_rank_that_speaks_after_it_was_given_up_is_heard_while_others_are_awaited() -> None:
    """Nobody was told of its loss yet, so the world may still be whole."""
    stage = took_over(gone=(0,))
    stage.wait(GRACE_S)
    for rank, node_id in enumerate("abc"):
        announces(stage, node_id, rank)
    assert stage.ranked == ["a", "b", "c"]


def test_a_predecessor_has_finished_ranks_and_may_name_more_than_the_world_has() -> None:
    stage = took_over(size=2, finished=[0], gone=(0, 9))
    stage.wait(GRACE_S)
    assert [(rank, heard.finished) for rank, heard in stage.run.heard.items()] == [(0, True)]
    assert stage.run.predecessor is None


def test_the_predecessor_of_another_world_is_nobodys_loss() -> None:
    stage = took_over(gone=(0,), seal_id="s3")
    stage.wait(GRACE_S)
    assert not stage.run.heard
    for rank, node_id in enumerate("abc"):
        announces(stage, node_id, rank)
    assert stage.ranked == ["a", "b", "c"]


def test_a_server_without_a_record_gives_up_its_predecessor_when_it_hears_of_its_world() -> None:
    """Rule 14: the welcome named the node that served."""
    stage = restarted(2, 3)
    stage.run = recovery.without(stage.run, Predecessor("s4", (0,), stage.now + GRACE_S))
    stage.wait(1)
    assert stage.run.predecessor is not None
    announces(stage, "b", 1)
    announces(stage, "c", 2)
    assert stage.phase is Phase.GATHERING
    assert "only 2 of 3 ranks" in stage.why


def test_a_run_that_is_closed_while_the_server_listens_has_no_predecessor_any_more() -> None:
    stage = restarted(2, 3)
    stage.run = recovery.without(stage.run, Predecessor("s4", (0,), stage.now + GRACE_S))
    stage.close()
    assert (stage.phase, stage.run.predecessor) == (Phase.CLOSED, None)


def test_a_run_that_is_not_recovered_has_no_predecessor() -> None:
    run = Run(run_id="run")
    assert recovery.without(run, Predecessor("s4", (0,), 0.0)) is run


# The end of an incarnation --------------------------------------------------------------------------------------------


def test_where_nobody_comes_the_incarnation_ends_and_a_fresh_node_founds_the_next_with_its_own_bounds() -> None:
    """Rule 17f."""
    stage = took_over(2, 3, finished=[1])
    stage.bounds = Bounds(1, 2)
    stage.join("x")
    stage.bounds = Bounds(2, 3)
    stage.join("y")
    stage.join("s", role=Role.SPARE)
    stage.bounds = Bounds(1, 2)
    stage.join("t", role=Role.SPARE)
    stage.wait(HOLD_S)
    assert "nobody of round 4 came back: that incarnation of the run has ended" in stage.why
    assert stage.run.last == ENDED
    assert (stage.run.bounds, stage.run.incarnation) == (Bounds(1, 2), f"r{stage.minted}")
    for node_id in "ys":
        assert "was founded for 1:2 nodes" in stage.answer(node_id, Refused).why
    assert (list(stage.run.queue), list(stage.run.spares)) == (["x"], ["t"])
    stage.join("z")
    assert (stage.ranked, stage.world.round) == (["x", "z"], 5)


def test_where_nobody_comes_at_all_the_run_is_empty_and_remembers_how_it_ended() -> None:
    """Rule 17f: a server without a fresh node has nothing to found."""
    stage = took_over()
    stage.wait(HOLD_S)
    assert stage.run == Run(run_id="run", round=4, last=ENDED)
    assert "that incarnation of the run has ended" in stage.why
    stage.join("x", "y", "z")
    assert (stage.world.round, stage.run.last) == (5, ENDED)


@pytest.mark.parametrize(("finished", "bounds"), [([], Bounds(1, 1)), ([0], Bounds(2, 3))])
def test_a_fresh_node_that_beats_during_the_hold_does_not_keep_the_old_incarnation_going(
    finished: list[int], bounds: Bounds
) -> None:
    """Rule 17f: whether it goes on is decided by those who know it, and not by those who were told of it."""
    stage = took_over(finished=finished)
    view, said = views.join(View(node=member("new"), bounds=bounds), 0.0, 600.0)
    view = say(stage, view, said)
    say(stage, view, views.announce(view))
    stage.wait(HOLD_S)
    assert stage.run.bounds == bounds
    assert stage.run.last == ENDED


def a_fresh_spare(stage: Stage) -> View:
    """A spare that has never heard of the run, as it knows it once it has asked."""
    view, said = views.join(View(node=member("s", role=Role.SPARE), bounds=Bounds(1, 3)), 0.0, 600.0)
    return say(stage, view, said)


def test_a_fresh_spare_that_beats_during_the_hold_does_not_keep_the_old_incarnation_going() -> None:
    """Rule 17f: it stands by, but not in that incarnation."""
    stage = took_over()
    view = a_fresh_spare(stage)
    say(stage, view, views.announce(view))
    stage.wait(HOLD_S)
    assert stage.run.last == ENDED


def test_a_fresh_spare_that_came_during_the_hold_is_not_told_that_its_run_has_failed() -> None:
    """Rule 7: what ended was the incarnation before it came, and it goes on standing by."""
    stage = took_over()
    view = a_fresh_spare(stage)
    stage.wait(HOLD_S)
    assert say(stage, view, views.announce(view)).state is State.SPARE


@pytest.mark.parametrize("named", ["", "old", "other"])
def test_who_waits_during_a_hold_is_told_no_incarnation_but_the_one_that_it_named(named: str) -> None:
    """Rule 17f: who waits in the incarnation keeps it going, and nobody else does."""
    stage = took_over()
    stage.take(Announced(member("x"), stage.bounds, Standing.WAITING, incarnation=named))
    assert stage.answer("x", KeepWaiting).incarnation == named
    stage.wait(HOLD_S)
    assert stage.run.last == (None if named == "old" else ENDED)


@pytest.mark.parametrize("finished", [[], [0]])
def test_a_rank_policy_that_nobody_knows_is_refused_to_whoever_may_found_the_next_incarnation(
    finished: list[int],
) -> None:
    """Rule 15: otherwise the end of the hold could not seal."""
    stage = took_over(finished=finished)
    stage.bounds = Bounds(1, 1)
    stage.join("a")
    stage.settings = Settings(rank_policy="fastest")
    stage.join("b")
    assert "there is no rank policy 'fastest'" in stage.answer("b", Refused).why
    stage.lose("a")
    stage.wait(HOLD_S)
    assert stage.run == Run(run_id="run", round=4, arrivals=1, last=ENDED)


def test_a_recorded_rank_policy_that_this_server_does_not_know_does_not_stop_the_run() -> None:
    """Rule 15: the server before had a policy of its own; the run goes on by the usual one, and says so."""
    stage = took_over(settings=Settings(rank_policy="fastest"))
    announces(stage, "a", 0)
    announces(stage, "b", 1)
    stage.wait(HOLD_S)
    stage.join_again("a", "b")
    assert stage.ranked == ["a", "b"]
    assert "there is no rank policy 'fastest' here: 'sticky' is used" in stage.why


def test_the_last_call_of_the_next_incarnation_is_its_own() -> None:
    """Rule 4: it runs for the time that its founder set, from the moment that it was founded."""
    stage = took_over(settings=Settings(last_call_s=0.0))
    stage.settings = Settings(last_call_s=30.0)
    stage.join("x", "y")
    stage.wait(HOLD_S)
    assert (stage.phase, stage.run.last_call_ends) == (Phase.GATHERING, stage.now + 30.0)
    stage.wait(30)
    assert (stage.ranked, stage.world.round) == (["x", "y"], 5)


@pytest.mark.parametrize("founded", [False, True])
def test_a_member_that_comes_too_late_is_told_that_its_incarnation_has_ended(founded: bool) -> None:
    """Rule 17h: a member of `last` is told how it ended, and is not fenced."""
    stage = took_over()
    stage.wait(HOLD_S)
    if founded:
        stage.join("x", "y", "z")
        assert stage.phase is Phase.SEALED
    announces(stage, "a", 0)
    assert stage.heard("a") == [RunClosed("old", Ending.FAILED, "nobody of round 4 came back")]
    announces(stage, "a", 0, Standing.WAITING)
    assert stage.heard("a") == [RunClosed("old", Ending.FAILED, "nobody of round 4 came back")]
    announces(stage, "older", 0, incarnation="older")
    stage.answer("older", Fenced)


def test_finished_and_lost_ranks_do_not_keep_an_incarnation_going() -> None:
    """Rule 17f: nobody unfinished announced a world of it."""
    stage = took_over()
    announces(stage, "a", 0, Standing.FINISHED)
    announces(stage, "b", 1)
    stage.lose("b")
    stage.wait(HOLD_S)
    assert stage.run.last == ENDED


def test_a_spare_of_the_incarnation_keeps_it_going() -> None:
    """Rule 17f: it has announced that it stands by in it."""
    stage = took_over(1, 3)
    spare = member("s", role=Role.SPARE)
    stage.take(Announced(spare, stage.bounds, Standing.SPARE, incarnation="old", round_seen=4))
    stage.wait(HOLD_S)
    assert stage.run.last is None
    assert (stage.run.incarnation, stage.world.round, stage.ranked) == ("old", 5, ["s"])


def test_the_waiters_of_an_incarnation_that_goes_on_are_held_to_its_bounds() -> None:
    """Rule 17f: nobody is refused for bounds during a hold, and rule 1 applies when it is over."""
    stage = took_over()
    stage.bounds = Bounds(1, 1)
    stage.join("wrong")
    assert "0 of 3 ranks" in stage.answer("wrong", KeepWaiting).why
    stage.bounds = Bounds(2, 3)
    stage.join("right")
    for rank, node_id in enumerate("abc"):
        announces(stage, node_id, rank)
    assert "was founded for 2:3 nodes" in stage.answer("wrong", Refused).why
    assert [waiter.request for waiter in stage.run.queue.values()] == [None]
    assert list(stage.run.queue) == ["right"]


def test_who_waited_through_the_hold_is_compared_with_the_members_of_the_world_that_goes_on() -> None:
    """Rule 2: loopback does not mix with other addresses, whoever was here first."""
    stage = took_over(2, 4)
    stage.join("x", address="127.0.0.1")
    for rank, node_id in enumerate("abc"):
        here = member(node_id, address="10.0.0.1")
        stage.take(Announced(here, stage.bounds, Standing.HOLDS, incarnation="old", seat=Seat(4, "s4", 3, rank)))
    assert "x gives its address as 127.0.0.1 and a as 10.0.0.1" in stage.answer("x", Refused).why
    assert stage.ranked == ["a", "b", "c"]


def test_the_ending_before_is_remembered_until_another_incarnation_ends() -> None:
    before = EndedIncarnation("before", Ending.SUCCEEDED, "done")
    stage = started(a_record(last=before, world=RecordedWorld(4, "s4", 3)))
    announces(stage, "x", 0, incarnation="before", round_=2)
    assert stage.heard("x") == [RunClosed("before", Ending.SUCCEEDED, "done")]
    stage.wait(HOLD_S)
    assert stage.run.last == ENDED


# A record that knows less than the nodes ------------------------------------------------------------------------------


def test_a_world_that_the_record_forgot_is_recovered_from_its_nodes() -> None:
    """Rule 17f: rule 14 without a record applies."""
    stage = started(a_record(round=0, claim=CLAIM))
    assert (stage.phase, stage.run.hold_ends) == (Phase.GATHERING, None)
    announces(stage, "a", 0)
    assert (stage.phase, stage.run.hold_ends) == (Phase.RECOVERING, stage.now + stage.settings.hold_s)
    announces(stage, "b", 1)
    announces(stage, "c", 2)
    assert (stage.ranked, stage.world.seal_id, stage.sends) == (["a", "b", "c"], "s4", [])


def test_a_run_that_did_not_begin_by_a_claim_was_forgotten_by_no_register() -> None:
    """Rule 9: whoever speaks of a world that the server does not know is out of it."""
    stage = started(a_record(round=0))
    announces(stage, "a", 0)
    assert "it was given up or left behind" in stage.answer("a", Fenced).why
    assert stage.phase is Phase.GATHERING


def test_nothing_is_sealed_beside_a_world_that_the_record_forgot() -> None:
    """Rule 17f: who waits keeps its place, and is judged when the hold is over."""
    stage = started(a_record(round=0, claim=CLAIM))
    stage.take(Joined(member("x"), stage.bounds, incarnation="old"))
    stage.join("s", role=Role.SPARE)
    announces(stage, "a", 0)
    assert (list(stage.run.queue), list(stage.run.spares)) == (["x"], ["s"])
    stage.join("y", "z")
    assert stage.phase is Phase.RECOVERING
    stage.wait(HOLD_S)
    assert (stage.phase, list(stage.run.active)) == (Phase.GATHERING, ["a"])
    assert (list(stage.run.queue), list(stage.run.spares)) == (["x", "y", "z"], ["s"])
    assert {waiter.request for waiter in stage.run.queue.values()} == {None}
    assert stage.run.incarnation == "old"


def test_who_waited_when_a_forgotten_world_was_heard_of_keeps_its_incarnation_going() -> None:
    """Rules 4, 14 and 17f: the last call runs together with the hold, and not after it."""
    stage = started(a_record(round=0, claim=CLAIM))
    stage.join("x", "y")
    announces(stage, "a", 0)
    assert stage.run.last_call_ends == stage.now + 30.0
    stage.lose("a")
    stage.wait(HOLD_S)
    assert (stage.run.incarnation, stage.run.last) == ("old", None)
    assert (stage.ranked, stage.world.round) == (["x", "y"], 5)


@pytest.mark.parametrize(("incarnation", "size"), [("old", 4), ("", 3)])
def test_what_is_fenced_as_a_contradiction_does_not_start_a_hold(incarnation: str, size: int) -> None:
    """Rule 15: it is checked before it is believed, and those who wait keep their places."""
    stage = started(msgspec.structs.replace(a_record(round=0, claim=CLAIM), incarnation=incarnation))
    if incarnation:
        stage.join("a", "b")
    before = stage.run
    announces(stage, "x", 0, size=size, incarnation=incarnation)
    stage.answer("x", Fenced)
    assert stage.run == msgspec.structs.replace(before, round=4)


def test_a_forgotten_world_whose_close_one_node_knows_is_closed() -> None:
    stage = started(a_record(round=0, claim=CLAIM))
    announces(stage, "a", 0, Standing.CLOSED, ending=Ending.SUCCEEDED, why="done")
    assert stage.run.closing is not None
    assert (stage.run.closing.ending, stage.run.incarnation) == (Ending.SUCCEEDED, "old")


def test_a_forgotten_world_cannot_be_closed_in_the_name_of_another_incarnation() -> None:
    stage = started(a_record(round=0, claim=CLAIM))
    announces(stage, "a", 0)
    stage.announce("x", Standing.CLOSED, incarnation="other")
    assert stage.phase is Phase.RECOVERING
    assert "an incarnation that is gone" in stage.why


def test_a_higher_world_than_the_recorded_one_takes_its_place() -> None:
    """Rule 17f: rule 14 without a record applies, and the hold begins anew."""
    stage = took_over(finished=[1], settings=Settings(heartbeat_timeout_s=18.0))
    stage.wait(5)
    announces(stage, "a", 0)
    announces(stage, "b", 1, round_=5)
    assert stage.sends == [("a", Broken("s4", "round 5 came after it"))]
    assert stage.run.hold_ends == stage.now + 20.0
    announces(stage, "c", 2, round_=5)
    announces(stage, "d", 0, round_=5)
    assert (stage.ranked, stage.world.round) == (["d", "b", "c"], 5)
    assert stage.run.settings.heartbeat_timeout_s == 18.0


def test_a_higher_world_does_not_shorten_the_hold() -> None:
    stage = took_over(settings=Settings(heartbeat_timeout_s=1.0))
    announces(stage, "b", 1, round_=5)
    assert stage.run.hold_ends == stage.now + HOLD_S


def test_a_higher_world_beyond_the_recorded_bounds_is_not_believed() -> None:
    """Rule 1: the founder sets the bounds."""
    stage = took_over(2, 2, size=2)
    announces(stage, "x", 0, round_=5, bounds=Bounds(2, 3))
    assert "a world of 3, where 2 are the most that the run was founded for" in stage.answer("x", Fenced).why
    for rank, node_id in enumerate("ab"):
        announces(stage, node_id, rank, size=2)
    assert (stage.ranked, stage.world.round) == (["a", "b"], 4)


# Broken and closed ----------------------------------------------------------------------------------------------------


def test_a_world_that_the_record_calls_broken_cannot_be_held() -> None:
    """Rule 17g: the server's node withdrew, and one write removed the claim and marked the world broken."""
    stage = took_over(broken=True)
    for _ in range(2):
        announces(stage, "a", 0)
    announces(stage, "b", 1)
    announces(stage, "c", 2)
    assert "only 0 of 3 ranks of round 4 still hold it" in stage.why
    assert {to for to, said in stage.sends if isinstance(said, Broken)} == {"a", "b", "c"}
    stage.join_again("a", "b", "c")
    assert (stage.ranked, stage.world.round) == (["a", "b", "c"], 5)


@pytest.mark.parametrize("finished", [False, True])
def test_ranks_that_left_before_the_server_handed_over_are_not_awaited(finished: bool) -> None:
    """Rule 17g: the hold ends when all the others were heard; one of them may still come to say that it has finished."""
    stage = took_over(broken=True, left=[0])
    if finished:
        announces(stage, "a", 0, Standing.FINISHED)
        assert stage.step.durability is Durability.FINISH
        stage = started(record.of(stage.run, epoch=4, write_id="w2"))
    announces(stage, "b", 1)
    assert stage.sends == []
    announces(stage, "c", 2)
    assert {to for to, said in stage.sends if isinstance(said, Broken)} == {"b", "c"}
    assert (sorted(stage.run.active), list(stage.run.finished.values())) == (["b", "c"], [0] if finished else [])


def test_who_finished_in_a_world_that_the_record_calls_broken_has_finished() -> None:
    """Rules 8 and 17g."""
    stage = took_over(2, 3, broken=True)
    announces(stage, "a", 0, Standing.FINISHED)
    assert stage.step.durability is Durability.FINISH
    announces(stage, "b", 1)
    announces(stage, "c", 2)
    assert (stage.phase, list(stage.run.finished)) == (Phase.GATHERING, ["a"])
    stage.join_again("b", "c")
    assert stage.ranked == ["b", "c"]


def test_a_run_can_be_closed_while_its_ranks_are_awaited() -> None:
    stage = took_over()
    announces(stage, "a", 0)
    stage.join("new")
    stage.close("new", why="never mind", incarnation="old")
    assert {to for to, said in stage.sends if isinstance(said, RunClosed)} >= {"a", "new"}
    announces(stage, "b", 1)
    assert stage.answer("b", RunClosed) == RunClosed("old", Ending.FAILED, "never mind")


def test_one_rank_that_knows_of_the_close_suffices_unless_all_have_finished() -> None:
    """Rule 14: closed is sticky."""
    stage = took_over()
    announces(stage, "a", 0, Standing.CLOSED, why="enough")
    assert stage.run.closing is not None
    assert stage.run.closing.why == "enough"
    done = took_over(finished=[0, 1, 2])
    announces(done, "a", 0, Standing.CLOSED, why="enough")
    assert done.run.closing is not None
    assert done.run.closing.ending is Ending.SUCCEEDED
    done = took_over(finished=[0, 1, 2])
    done.close()
    assert done.run.closing is not None
    assert done.run.closing.ending is Ending.SUCCEEDED


def test_a_closed_record_answers_its_members_and_a_fresh_node_founds_the_next_incarnation() -> None:
    """Rule 17h."""
    world = RecordedWorld(4, "s4", 3)
    stage = started(a_record(world=world, closing=RecordedEnding(Ending.SUCCEEDED, "done")))
    told = RunClosed("old", Ending.SUCCEEDED, "done")
    for standing in (Standing.HOLDS, Standing.WAITING, Standing.FINISHED):
        announces(stage, "a", 0, standing)
        assert stage.heard("a") == [told]
    stage.take(Announced(member("s"), stage.bounds, Standing.SPARE, incarnation="old"))
    assert stage.heard("s") == [told]
    stage.join("x", "y", "z")
    assert (stage.ranked, stage.world.round) == (["x", "y", "z"], 5)
    assert stage.run.last == EndedIncarnation("old", Ending.SUCCEEDED, "done")
    announces(stage, "b", 1)
    assert stage.heard("b") == [told]


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_closed_record_that_names_no_incarnation_leaves_the_one_before_in_memory(forgotten: bool) -> None:
    before = EndedIncarnation("before", Ending.SUCCEEDED, "done")
    written = msgspec.structs.replace(a_record(last=before, closing=RecordedEnding(Ending.FAILED)), incarnation="")
    stage = started(written)
    stage.wait(60 if forgotten else 0)
    stage.join("x")
    assert stage.run.last == before


# Before the first world -----------------------------------------------------------------------------------------------


def test_without_a_world_in_the_record_nobody_is_awaited() -> None:
    """Rule 17f: there is no hold."""
    stage = started(a_record(claim=CLAIM))
    stage.join("a", "b", "c")
    assert stage.answer("a", Placed).incarnation == "old"
    assert stage.world.round == 5


@pytest.mark.parametrize(
    "before", [{"round": 0}, {"last": EndedIncarnation("older", Ending.SUCCEEDED, "all members have finished")}]
)
def test_the_first_node_that_joins_sets_the_bounds_and_not_the_one_that_claimed(before: dict[str, Any]) -> None:
    """Rules 1 and 17a: a process may claim for a node that never joins."""
    stage = started(a_record(claim=CLAIM, **before))
    stage.bounds = Bounds(2, 2)
    stage.join("x")
    assert (stage.run.incarnation, stage.run.bounds) == ("old", Bounds(2, 2))
    stage.bounds = Bounds(2, 3)
    stage.join("a")
    assert "was founded for 2 nodes" in stage.answer("a", Refused).why


def test_where_the_register_forgot_the_claim_has_set_the_bounds() -> None:
    """Rules 1 and 17f: members of a world are on their way, and a node that knows nothing must not put them out."""
    stage = started(a_record(claim=CLAIM))
    stage.bounds = Bounds(1, 1)
    stage.join("x")
    assert "was founded for 2:3 nodes" in stage.answer("x", Refused).why
    stage.bounds = Bounds(2, 3)
    stage.join("a")
    assert stage.run.incarnation == "old"


def test_without_a_claim_the_first_node_to_come_founds_the_run() -> None:
    stage = started(a_record())
    stage.bounds = Bounds(1, 1)
    stage.join("x")
    assert (stage.ranked, stage.world.round) == (["x"], 5)
    assert stage.run.incarnation not in ("", "old")


# Recorded before told -------------------------------------------------------------------------------------------------


def test_a_finish_that_is_heard_while_the_server_recovers_must_be_recorded_once() -> None:
    """Rule 17c: the node may be gone when the next server asks."""
    stage = took_over()
    durability = []
    for standing in (Standing.HOLDS, Standing.FINISHED, Standing.FINISHED, Standing.HOLDS):
        announces(stage, "a", 0, standing)
        durability.append(stage.step.durability)
    assert durability == [Durability.NONE, Durability.FINISH, Durability.NONE, Durability.NONE]
    world = record.of(stage.run, epoch=4, write_id="w2").world
    assert world == RecordedWorld(4, "s4", 3, rank_bitmap([0]))


def test_a_finish_that_is_the_first_word_of_a_recovery_must_be_recorded() -> None:
    """Rule 17c."""
    stage = restarted(2, 3)
    durability = []
    for rank, standing in enumerate((Standing.FINISHED, Standing.HOLDS, Standing.HOLDS)):
        announces(stage, "abc"[rank], rank, standing)
        durability.append(stage.step.durability)
    assert stage.phase is Phase.SEALED
    # No record named the world that all hold: from now on one does.
    assert durability == [Durability.FINISH, Durability.NONE, Durability.SEAL_OR_CLOSE]


def test_the_record_of_a_finish_holds_it_where_the_world_was_only_announced() -> None:
    """Rule 17c: a world above the recorded one has taken its place."""
    stage = took_over()
    announces(stage, "b", 1, round_=5)
    announces(stage, "a", 0, Standing.FINISHED, round_=5)
    assert stage.step.durability is Durability.FINISH
    written = record.of(stage.run, epoch=4, write_id="w2")
    assert (written.incarnation, written.world) == ("old", RecordedWorld(5, "s5", 3, rank_bitmap([0])))


@pytest.mark.parametrize(
    ("reason", "durability"), [(Reason.FINISHED, Durability.FINISH), (Reason.WITHDREW, Durability.NONE)]
)
def test_a_rank_that_leaves_while_the_server_recovers_must_be_recorded_if_it_finished(
    reason: Reason, durability: Durability
) -> None:
    """Rule 17c: for other leaves the next server misses the rank."""
    stage = took_over()
    announces(stage, "a", 0)
    stage.take(Left("a", reason, "s4"))
    assert stage.step.durability is durability
    stage.take(Left("nobody", reason))
    assert stage.step.durability is Durability.NONE
    world = record.of(stage.run, epoch=4, write_id="w2").world
    assert world is not None
    assert list(world.finished_ranks()) == ([0] if reason is Reason.FINISHED else [])


@pytest.mark.parametrize("fresh", [False, True])
def test_that_an_incarnation_has_ended_must_be_recorded_before_its_members_are_told(fresh: bool) -> None:
    """Rules 17c and 17h: the next server must not recover what a member was told is over."""
    stage = took_over()
    if fresh:
        stage.join("x")
    stage.wait(HOLD_S)
    assert stage.step.durability is Durability.SEAL_OR_CLOSE
    after = started(record.of(stage.run, epoch=4, write_id="w2"))
    announces(after, "a", 0)
    assert after.heard("a") == [RunClosed("old", Ending.FAILED, "nobody of round 4 came back")]
    assert after.phase is Phase.GATHERING


def test_that_there_was_no_world_needs_no_record() -> None:
    stage = restarted(2, 3)
    stage.join("x")
    stage.wait(HOLD_S)
    assert stage.step.durability is Durability.NONE


def test_a_world_that_goes_on_needs_no_record() -> None:
    """Rule 17c: it is in the register already."""
    stage = took_over()
    for rank, node_id in enumerate("abc"):
        announces(stage, node_id, rank)
        assert stage.step.durability is Durability.NONE


@effort(max_examples=100)
@given(histories(KEEPING))
def test_however_often_servers_change_a_round_is_sealed_once_and_rounds_only_grow(history: History) -> None:
    """Rules 3 and 17c: whatever was told is in the record that the next server starts with."""
    seal_ids: dict[int, str] = {}
    for moment in history.moments:
        world = moment.step.run.current
        if world is not None and world.round not in seal_ids:
            assert world.round > max(seal_ids, default=0)
            seal_ids[world.round] = world.seal_id
        assert world is None or seal_ids[world.round] == world.seal_id


@effort(max_examples=100)
@given(histories(KEEPING))
def test_however_often_servers_change_closed_is_final(history: History) -> None:
    """Rules 1 and 17c."""
    closed: dict[str, Ending] = {}
    for moment in history.moments:
        run = moment.step.run
        if run.closing is not None:
            assert closed.setdefault(run.incarnation, run.closing.ending) is run.closing.ending
        else:
            assert run.incarnation not in closed
        if run.last is not None:
            assert closed.setdefault(run.last.incarnation, run.last.ending) is run.last.ending


@effort(max_examples=100)
@given(histories(KEEPING))
def test_however_often_servers_change_who_has_finished_is_in_no_later_world(history: History) -> None:
    """Rules 8 and 17c."""
    finished: set[str] = set()
    for moment in history.moments:
        run = moment.step.run
        if run.phase is not Phase.RECOVERING:
            # In a closed run the queue holds members that are still here: they get no place any more.
            waiting = () if run.phase is Phase.CLOSED else (*run.queue, *run.paused, *run.spares)
            assert not finished.intersection((*run.active, *run.returned, *waiting))
            finished.update(run.finished)


def test_a_seat_of_the_recorded_world_is_joined_again_after_a_takeover() -> None:
    """Rule 6a: a join names the seal id that the caller last received."""
    stage = took_over()
    for rank, node_id in enumerate("abc"):
        announces(stage, node_id, rank)
    stage.join("a", seat=Seat(4, "s4", 3, 0), incarnation="old")
    assert "a joined again" in stage.answer("b", Broken).why
