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
from rallypoint.core.model import EndedIncarnation, Phase, Predecessor, Run
from rallypoint.messages.notices import Broken, Fenced, KeepWaiting, Placed, Refused, RunClosed, StandBy
from rallypoint.messages.requests import Announced, Joined, Left, NodeMessage, Seat, Standing
from rallypoint.messages.types import Bounds, Ending, Reason, RecordedWorld, Role, Settings, rank_bitmap
from rallypoint.record import Claim, Record, RecordedEnding
from tests.core.random_histories import KEEPING, History, histories
from tests.core.test_recovery import HOLD_S, claim, restarted
from tests.support.run_driver import RunDriver, member

CLAIM = Claim("c1", ("10.0.0.1",), 29400, 5.0)
GRACE_S = 0.125
"""Near to the reconnect grace, and exact: times are compared."""
DEFAULTS = Settings()
ENDED = EndedIncarnation("old", Ending.FAILED, "nobody of round 4 came back")


def a_record(low: int = 2, high: int = 3, **fields: Any) -> Record:
    """A record of the incarnation `old`, which has come to round 4."""
    known: dict[str, Any] = {"epoch": 3, "round": 4, "write_id": "w", "bounds": Bounds(low, high), **fields}
    return Record(run_id="run", incarnation="old", **known)


def started(written: Record, predecessor: Predecessor | None = None, **settings: Any) -> RunDriver:
    """A driver whose server has just started with this record."""
    driver = RunDriver(written.bounds.min, written.bounds.max, **settings)
    driver.run = record.restored(record.decode(record.encode(written)), driver.now, HOLD_S, predecessor)
    return driver


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
) -> RunDriver:
    """A server with a record of round 4; the ranks that are `gone` were in the process that served before."""
    recorded = RecordedWorld(4, "s4", size, rank_bitmap(finished), gone=rank_bitmap(left), **world)
    predecessor = Predecessor(seal_id, gone, 100.0 + GRACE_S) if gone else None
    return started(a_record(low, high, world=recorded, settings=settings), predecessor)


def announces(driver: RunDriver, node_id: str, rank: int, standing: Standing = Standing.HOLDS, **said: Any) -> None:
    """A node speaks of its place in a world of the incarnation `old`, by default of round 4."""
    claim(driver, node_id, rank, standing, **said)


def say(driver: RunDriver, view: View, said: NodeMessage | None) -> View:
    """A node says something, and hears the answers."""
    assert said is not None
    driver.take(said)
    for told in driver.heard(view.node.id):
        view = views.hear(view, told)
    return view


# The recorded world ---------------------------------------------------------------------------------------------------


def test_a_recorded_world_that_every_rank_still_holds_goes_on_and_nobody_is_disturbed() -> None:
    """Rule 17f."""
    driver = took_over()
    assert "0 of 3 ranks of round 4 were heard, missing: rank 0, rank 1, rank 2; at most 7.0 s" in driver.situation()
    for rank, node_id in enumerate("abc"):
        announces(driver, node_id, rank)
        assert driver.sends == []
    assert (driver.ranked, driver.world.seal_id, driver.world.incarnation) == (["a", "b", "c"], "s4", "old")


def test_ranks_not_heard_when_the_hold_ends_are_lost_and_those_who_are_here_regroup() -> None:
    """Rule 17f."""
    driver = took_over()
    announces(driver, "a", 0)
    announces(driver, "c", 2)
    driver.wait(HOLD_S)
    assert dict(driver.sends) == dict.fromkeys("ac", Broken("s4", "only 2 of 3 ranks of round 4 still hold it"))
    driver.join_again("a", "c")
    assert (driver.ranked, driver.world.round, driver.world.incarnation) == (["a", "c"], 5, "old")


def test_max_fresh_nodes_do_not_skip_the_hold_of_a_recorded_world() -> None:
    """Rule 17f: only the recorded world can be current."""
    driver = took_over()
    driver.join("x", "y", "z")
    assert driver.phase is Phase.RECOVERING
    assert "0 of 3 ranks of round 4 were heard" in driver.answer("z", KeepWaiting).why
    for rank, node_id in enumerate("abc"):
        announces(driver, node_id, rank)
    assert driver.ranked == ["a", "b", "c"]
    assert list(driver.run.queue) == ["x", "y", "z"]


@pytest.mark.parametrize(("round_", "seal_id"), [(3, "s3"), (4, "another")])
def test_whoever_speaks_of_another_world_than_the_recorded_one_is_told_that_it_is_broken(
    round_: int, seal_id: str
) -> None:
    """Rule 17f: only the recorded world can be current."""
    driver = took_over()
    announces(driver, "a", 0, round_=round_, seal_id=seal_id)
    assert driver.heard("a") == [Broken(seal_id, "round 4 came after it")]
    assert not driver.run.heard


def test_a_rank_of_the_recorded_world_has_one_node_and_lies_in_a_world_of_that_size() -> None:
    driver = took_over()
    announces(driver, "a", 0)
    announces(driver, "impostor", 0)
    assert "rank 0 of round 4 is a" in driver.answer("impostor", Fenced).why
    announces(driver, "b", 1, size=2)
    assert "not of the same world" in driver.answer("b", Fenced).why


def test_a_stranger_is_fenced_while_the_server_recovers() -> None:
    driver = took_over()
    announces(driver, "x", 0, incarnation="other")
    assert "an incarnation of the run that is gone" in driver.answer("x", Fenced).why
    assert not driver.run.heard


def test_a_server_that_takes_over_wakes_at_the_end_of_its_hold() -> None:
    driver = took_over(gone=(0,))
    assert transition.wake_at(driver.run, driver.now) == 100.0 + GRACE_S
    driver.wait(GRACE_S)
    assert transition.wake_at(driver.run, driver.now) == 100.0 + HOLD_S


# Finished ranks -------------------------------------------------------------------------------------------------------


def test_recorded_finished_ranks_are_not_awaited() -> None:
    """Rule 17f: a finished node cannot announce itself, and must not break a healthy world."""
    driver = took_over(finished=[1])
    assert "1 of 3 ranks of round 4 were heard, missing: rank 0, rank 2" in driver.situation()
    announces(driver, "a", 0)
    announces(driver, "c", 2)
    assert driver.phase is Phase.SEALED
    assert driver.sends == []
    assert sorted(driver.run.active) == ["a", "c"]
    driver.finish("a", "c")
    assert driver.answer("c", RunClosed).ending is Ending.SUCCEEDED


def test_an_incarnation_whose_ranks_have_all_finished_has_succeeded() -> None:
    """Rule 17f: nobody is awaited, and who asks is told."""
    driver = took_over(finished=[0, 1, 2])
    driver.wait(0)
    assert driver.run.closing is not None
    assert (driver.run.closing.ending, driver.run.closing.why) == (Ending.SUCCEEDED, "all members have finished")
    assert driver.step.durability is Durability.SEAL_OR_CLOSE
    announces(driver, "b", 1, Standing.FINISHED)
    assert driver.answer("b", RunClosed) == RunClosed("old", Ending.SUCCEEDED, "all members have finished")


def test_too_few_that_are_left_beside_recorded_finished_ranks_end_the_run() -> None:
    """Rule 8."""
    driver = took_over(finished=[1])
    announces(driver, "a", 0)
    driver.wait(HOLD_S)
    assert driver.answer("a", RunClosed).why == "1 finished, and of the rest 1 are left where 2 are needed"


def test_nobody_new_is_admitted_after_a_takeover_once_somebody_has_finished_in_an_earlier_world() -> None:
    """Rule 8: the record counts those whom no rank of the world stands for."""
    driver = took_over(ended_before=2)
    for rank, node_id in enumerate("abc"):
        announces(driver, node_id, rank)
    assert driver.situation() == "round 4 runs with 3 nodes, 2 nodes finished"
    driver.join("new")
    assert "the run is ending, 2 nodes finished" in driver.answer("new", StandBy).why
    assert record.of(driver.run, epoch=4, write_id="w2").world == RecordedWorld(4, "s4", 3, b"", 2)


@pytest.mark.parametrize("late", [False, True])
def test_a_recorded_finished_node_that_is_heard_after_all_is_told_how_the_run_ends(late: bool) -> None:
    """Rule 17f: it may still be in its shutdown, waiting for the others."""
    driver = took_over(finished=[1])
    if not late:
        announces(driver, "b", 1, Standing.FINISHED)
        assert (driver.sends, driver.step.durability) == ([], Durability.NONE)
    announces(driver, "a", 0)
    announces(driver, "c", 2)
    for _ in range(2):
        announces(driver, "b", 1, Standing.FINISHED)
        assert (driver.sends, driver.step.durability) == ([], Durability.NONE)
        assert list(driver.run.finished.items()) == [("b", 1)]
        assert [node.id for node in driver.world.members] == ["a", "b", "c"]
    driver.finish("a", "c")
    assert driver.answer("b", RunClosed).ending is Ending.SUCCEEDED


def test_a_recorded_finished_rank_is_one_node_and_another_that_claims_it_is_fenced() -> None:
    driver = took_over(finished=[1])
    announces(driver, "a", 0)
    announces(driver, "c", 2)
    before = driver.run
    announces(driver, "x", 0, Standing.FINISHED)
    driver.answer("x", Fenced)
    announces(driver, "y", 7, Standing.FINISHED, size=8, bounds=Bounds(2, 8))
    driver.answer("y", Fenced)
    announces(driver, "z", 1, Standing.FINISHED, round_=3)
    driver.answer("z", Fenced)
    assert driver.run == before
    announces(driver, "b", 1, Standing.FINISHED)
    announces(driver, "impostor", 1, Standing.FINISHED)
    driver.answer("impostor", Fenced)
    assert list(driver.run.finished) == ["b"]


def test_who_the_record_has_as_finished_cannot_hold_or_break_its_world_again() -> None:
    """Rule 14: finished is sticky, an older message may arrive late."""
    driver = took_over(finished=[1])
    announces(driver, "b", 1, Standing.HOLDS)
    announces(driver, "b", 1, Standing.WAITING)
    driver.lose("b")
    announces(driver, "a", 0)
    announces(driver, "c", 2)
    assert (driver.phase, list(driver.run.finished)) == (Phase.SEALED, ["b"])


# The process that served before ---------------------------------------------------------------------------------------


def test_the_ranks_of_the_process_that_served_before_are_lost_after_their_grace() -> None:
    """Rule 17f: the hold ends as soon as every rank is heard or accounted for."""
    driver = took_over(gone=(0,))
    announces(driver, "b", 1)
    announces(driver, "c", 2)
    driver.wait(GRACE_S / 2)
    assert (driver.phase, driver.sends) == (Phase.RECOVERING, [])
    driver.wait(GRACE_S / 2)
    assert driver.phase is Phase.GATHERING
    assert {to for to, _ in driver.sends} == {"b", "c"}
    assert sorted(driver.run.active) == ["b", "c"]


def test_the_ranks_of_the_process_that_served_before_are_kept_if_they_speak_in_time() -> None:
    driver = took_over(gone=(0,))
    for rank, node_id in enumerate("abc"):
        announces(driver, node_id, rank)
    assert driver.ranked == ["a", "b", "c"]


def test_a_rank_that_speaks_after_it_was_given_up_is_heard_while_others_are_awaited() -> None:
    """Nobody was told of its loss yet, so the world may still be whole."""
    driver = took_over(gone=(0,))
    driver.wait(GRACE_S)
    for rank, node_id in enumerate("abc"):
        announces(driver, node_id, rank)
    assert driver.ranked == ["a", "b", "c"]


def test_a_predecessor_has_finished_ranks_and_may_name_more_than_the_world_has() -> None:
    driver = took_over(size=2, finished=[0], gone=(0, 9))
    driver.wait(GRACE_S)
    assert [(rank, heard.finished) for rank, heard in driver.run.heard.items()] == [(0, True)]
    assert driver.run.predecessor is None


def test_the_predecessor_of_another_world_is_nobodys_loss() -> None:
    driver = took_over(gone=(0,), seal_id="s3")
    driver.wait(GRACE_S)
    assert not driver.run.heard
    for rank, node_id in enumerate("abc"):
        announces(driver, node_id, rank)
    assert driver.ranked == ["a", "b", "c"]


def test_a_server_without_a_record_gives_up_its_predecessor_when_it_hears_of_its_world() -> None:
    """Rule 14: the welcome named the node that served."""
    driver = restarted(2, 3)
    driver.run = recovery.without(driver.run, Predecessor("s4", (0,), driver.now + GRACE_S))
    driver.wait(1)
    assert driver.run.predecessor is not None
    announces(driver, "b", 1)
    announces(driver, "c", 2)
    assert driver.phase is Phase.GATHERING
    assert "only 2 of 3 ranks" in driver.why


def test_a_run_that_is_closed_while_the_server_listens_has_no_predecessor_any_more() -> None:
    driver = restarted(2, 3)
    driver.run = recovery.without(driver.run, Predecessor("s4", (0,), driver.now + GRACE_S))
    driver.close()
    assert (driver.phase, driver.run.predecessor) == (Phase.CLOSED, None)


def test_a_run_that_is_not_recovered_has_no_predecessor() -> None:
    run = Run(run_id="run")
    assert recovery.without(run, Predecessor("s4", (0,), 0.0)) is run


# The end of an incarnation --------------------------------------------------------------------------------------------


def test_where_nobody_comes_the_incarnation_ends_and_a_fresh_node_founds_the_next_with_its_own_bounds() -> None:
    """Rule 17f."""
    driver = took_over(2, 3, finished=[1])
    driver.bounds = Bounds(1, 2)
    driver.join("x")
    driver.bounds = Bounds(2, 3)
    driver.join("y")
    driver.join("s", role=Role.SPARE)
    driver.bounds = Bounds(1, 2)
    driver.join("t", role=Role.SPARE)
    driver.wait(HOLD_S)
    assert "nobody of round 4 came back: that incarnation of the run has ended" in driver.why
    assert driver.run.last == ENDED
    assert (driver.run.bounds, driver.run.incarnation) == (Bounds(1, 2), f"r{driver.minted}")
    for node_id in "ys":
        assert "was founded for 1:2 nodes" in driver.answer(node_id, Refused).why
    assert (list(driver.run.queue), list(driver.run.spares)) == (["x"], ["t"])
    driver.join("z")
    assert (driver.ranked, driver.world.round) == (["x", "z"], 5)


def test_where_nobody_comes_at_all_the_run_is_empty_and_remembers_how_it_ended() -> None:
    """Rule 17f: a server without a fresh node has nothing to found."""
    driver = took_over()
    driver.wait(HOLD_S)
    assert driver.run == Run(run_id="run", round=4, last=ENDED)
    assert "that incarnation of the run has ended" in driver.why
    driver.join("x", "y", "z")
    assert (driver.world.round, driver.run.last) == (5, ENDED)


@pytest.mark.parametrize(("finished", "bounds"), [([], Bounds(1, 1)), ([0], Bounds(2, 3))])
def test_a_fresh_node_that_beats_during_the_hold_does_not_keep_the_old_incarnation_going(
    finished: list[int], bounds: Bounds
) -> None:
    """Rule 17f: whether it goes on is decided by those who know it, and not by those who were told of it."""
    driver = took_over(finished=finished)
    view, said = views.join(View(node=member("new"), bounds=bounds), 0.0, 600.0)
    view = say(driver, view, said)
    say(driver, view, views.announce(view))
    driver.wait(HOLD_S)
    assert driver.run.bounds == bounds
    assert driver.run.last == ENDED


def a_fresh_spare(driver: RunDriver) -> View:
    """A spare that has never heard of the run, as it knows it once it has asked."""
    view, said = views.join(View(node=member("s", role=Role.SPARE), bounds=Bounds(1, 3)), 0.0, 600.0)
    return say(driver, view, said)


def test_a_fresh_spare_that_beats_during_the_hold_does_not_keep_the_old_incarnation_going() -> None:
    """Rule 17f: it stands by, but not in that incarnation."""
    driver = took_over()
    view = a_fresh_spare(driver)
    say(driver, view, views.announce(view))
    driver.wait(HOLD_S)
    assert driver.run.last == ENDED


def test_a_fresh_spare_that_came_during_the_hold_is_not_told_that_its_run_has_failed() -> None:
    """Rule 7: what ended was the incarnation before it came, and it goes on standing by."""
    driver = took_over()
    view = a_fresh_spare(driver)
    driver.wait(HOLD_S)
    assert say(driver, view, views.announce(view)).state is State.SPARE


@pytest.mark.parametrize("named", ["", "old", "other"])
def test_who_waits_during_a_hold_is_told_no_incarnation_but_the_one_that_it_named(named: str) -> None:
    """Rule 17f: a node that waits in the incarnation keeps it going, and no other does."""
    driver = took_over()
    driver.take(Announced(member("x"), driver.bounds, Standing.WAITING, incarnation=named))
    assert driver.answer("x", KeepWaiting).incarnation == named
    driver.wait(HOLD_S)
    assert driver.run.last == (None if named == "old" else ENDED)


@pytest.mark.parametrize("finished", [[], [0]])
def test_a_rank_policy_that_nobody_knows_is_refused_to_whoever_may_found_the_next_incarnation(
    finished: list[int],
) -> None:
    """Rule 15: otherwise the end of the hold could not seal."""
    driver = took_over(finished=finished)
    driver.bounds = Bounds(1, 1)
    driver.join("a")
    driver.settings = Settings(rank_policy="fastest")
    driver.join("b")
    assert "there is no rank policy 'fastest'" in driver.answer("b", Refused).why
    driver.lose("a")
    driver.wait(HOLD_S)
    assert driver.run == Run(run_id="run", round=4, arrivals=1, last=ENDED)


def test_a_recorded_rank_policy_that_this_server_does_not_know_does_not_stop_the_run() -> None:
    """Rule 15: the server before had a policy of its own; the run goes on by the usual one, and says so."""
    driver = took_over(settings=Settings(rank_policy="fastest"))
    announces(driver, "a", 0)
    announces(driver, "b", 1)
    driver.wait(HOLD_S)
    driver.join_again("a", "b")
    assert driver.ranked == ["a", "b"]
    assert "there is no rank policy 'fastest' here: 'sticky' is used" in driver.why


def test_the_last_call_of_the_next_incarnation_is_its_own() -> None:
    """Rule 4: it runs for the time that its founder set, from the moment that it was founded."""
    driver = took_over(settings=Settings(last_call_s=0.0))
    driver.settings = Settings(last_call_s=30.0)
    driver.join("x", "y")
    driver.wait(HOLD_S)
    assert (driver.phase, driver.run.last_call_ends) == (Phase.GATHERING, driver.now + 30.0)
    driver.wait(30)
    assert (driver.ranked, driver.world.round) == (["x", "y"], 5)


@pytest.mark.parametrize("founded", [False, True])
def test_a_member_that_comes_too_late_is_told_that_its_incarnation_has_ended(founded: bool) -> None:
    """Rule 17h: a member of `last` is told how it ended, and is not fenced."""
    driver = took_over()
    driver.wait(HOLD_S)
    if founded:
        driver.join("x", "y", "z")
        assert driver.phase is Phase.SEALED
    announces(driver, "a", 0)
    assert driver.heard("a") == [RunClosed("old", Ending.FAILED, "nobody of round 4 came back")]
    announces(driver, "a", 0, Standing.WAITING)
    assert driver.heard("a") == [RunClosed("old", Ending.FAILED, "nobody of round 4 came back")]
    announces(driver, "older", 0, incarnation="older")
    driver.answer("older", Fenced)


def test_finished_and_lost_ranks_do_not_keep_an_incarnation_going() -> None:
    """Rule 17f: nobody unfinished announced a world of it."""
    driver = took_over()
    announces(driver, "a", 0, Standing.FINISHED)
    announces(driver, "b", 1)
    driver.lose("b")
    driver.wait(HOLD_S)
    assert driver.run.last == ENDED


def test_a_spare_of_the_incarnation_keeps_it_going() -> None:
    """Rule 17f: it has announced that it stands by in it."""
    driver = took_over(1, 3)
    spare = member("s", role=Role.SPARE)
    driver.take(Announced(spare, driver.bounds, Standing.SPARE, incarnation="old", round_seen=4))
    driver.wait(HOLD_S)
    assert driver.run.last is None
    assert (driver.run.incarnation, driver.world.round, driver.ranked) == ("old", 5, ["s"])


def test_the_waiters_of_an_incarnation_that_goes_on_are_held_to_its_bounds() -> None:
    """Rule 17f: nobody is refused for bounds during a hold, and rule 1 applies when it is over."""
    driver = took_over()
    driver.bounds = Bounds(1, 1)
    driver.join("wrong")
    assert "0 of 3 ranks" in driver.answer("wrong", KeepWaiting).why
    driver.bounds = Bounds(2, 3)
    driver.join("right")
    for rank, node_id in enumerate("abc"):
        announces(driver, node_id, rank)
    assert "was founded for 2:3 nodes" in driver.answer("wrong", Refused).why
    assert [waiter.request for waiter in driver.run.queue.values()] == [None]
    assert list(driver.run.queue) == ["right"]


def test_who_waited_through_the_hold_is_compared_with_the_members_of_the_world_that_goes_on() -> None:
    """Rule 2: loopback does not mix with other addresses, in either order of arrival."""
    driver = took_over(2, 4)
    driver.join("x", address="127.0.0.1")
    for rank, node_id in enumerate("abc"):
        here = member(node_id, address="10.0.0.1")
        driver.take(Announced(here, driver.bounds, Standing.HOLDS, incarnation="old", seat=Seat(4, "s4", 3, rank)))
    assert "x gives its address as 127.0.0.1 and a as 10.0.0.1" in driver.answer("x", Refused).why
    assert driver.ranked == ["a", "b", "c"]


def test_the_ending_before_is_remembered_until_another_incarnation_ends() -> None:
    before = EndedIncarnation("before", Ending.SUCCEEDED, "done")
    driver = started(a_record(last=before, world=RecordedWorld(4, "s4", 3)))
    announces(driver, "x", 0, incarnation="before", round_=2)
    assert driver.heard("x") == [RunClosed("before", Ending.SUCCEEDED, "done")]
    driver.wait(HOLD_S)
    assert driver.run.last == ENDED


# A record that knows less than the nodes ------------------------------------------------------------------------------


def test_a_world_that_the_record_forgot_is_recovered_from_its_nodes() -> None:
    """Rule 17f: rule 14 without a record applies."""
    driver = started(a_record(round=0, claim=CLAIM))
    assert (driver.phase, driver.run.hold_ends) == (Phase.GATHERING, None)
    announces(driver, "a", 0)
    assert (driver.phase, driver.run.hold_ends) == (Phase.RECOVERING, driver.now + driver.settings.hold_s)
    announces(driver, "b", 1)
    announces(driver, "c", 2)
    assert (driver.ranked, driver.world.seal_id, driver.sends) == (["a", "b", "c"], "s4", [])


def test_a_run_that_did_not_begin_by_a_claim_was_forgotten_by_no_register() -> None:
    """Rule 9: a node that speaks of a world that the server does not know is out of it."""
    driver = started(a_record(round=0))
    announces(driver, "a", 0)
    assert "it was given up or left behind" in driver.answer("a", Fenced).why
    assert driver.phase is Phase.GATHERING


def test_nothing_is_sealed_beside_a_world_that_the_record_forgot() -> None:
    """Rule 17f: a node that waits keeps its place, and is judged when the hold is over."""
    driver = started(a_record(round=0, claim=CLAIM))
    driver.take(Joined(member("x"), driver.bounds, incarnation="old"))
    driver.join("s", role=Role.SPARE)
    announces(driver, "a", 0)
    assert (list(driver.run.queue), list(driver.run.spares)) == (["x"], ["s"])
    driver.join("y", "z")
    assert driver.phase is Phase.RECOVERING
    driver.wait(HOLD_S)
    assert (driver.phase, list(driver.run.active)) == (Phase.GATHERING, ["a"])
    assert (list(driver.run.queue), list(driver.run.spares)) == (["x", "y", "z"], ["s"])
    assert {waiter.request for waiter in driver.run.queue.values()} == {None}
    assert driver.run.incarnation == "old"


def test_who_waited_when_a_forgotten_world_was_heard_of_keeps_its_incarnation_going() -> None:
    """Rules 4, 14 and 17f: the last call runs together with the hold, and not after it."""
    driver = started(a_record(round=0, claim=CLAIM))
    driver.join("x", "y")
    announces(driver, "a", 0)
    assert driver.run.last_call_ends == driver.now + 30.0
    driver.lose("a")
    driver.wait(HOLD_S)
    assert (driver.run.incarnation, driver.run.last) == ("old", None)
    assert (driver.ranked, driver.world.round) == (["x", "y"], 5)


@pytest.mark.parametrize(("incarnation", "size"), [("old", 4), ("", 3)])
def test_what_is_fenced_as_a_contradiction_does_not_start_a_hold(incarnation: str, size: int) -> None:
    """Rule 15: it is checked before it is believed, and those who wait keep their places."""
    driver = started(msgspec.structs.replace(a_record(round=0, claim=CLAIM), incarnation=incarnation))
    if incarnation:
        driver.join("a", "b")
    before = driver.run
    announces(driver, "x", 0, size=size, incarnation=incarnation)
    driver.answer("x", Fenced)
    assert driver.run == msgspec.structs.replace(before, round=4)


def test_a_forgotten_world_whose_close_one_node_knows_is_closed() -> None:
    driver = started(a_record(round=0, claim=CLAIM))
    announces(driver, "a", 0, Standing.CLOSED, ending=Ending.SUCCEEDED, why="done")
    assert driver.run.closing is not None
    assert (driver.run.closing.ending, driver.run.incarnation) == (Ending.SUCCEEDED, "old")


def test_a_forgotten_world_cannot_be_closed_in_the_name_of_another_incarnation() -> None:
    driver = started(a_record(round=0, claim=CLAIM))
    announces(driver, "a", 0)
    driver.announce("x", Standing.CLOSED, incarnation="other")
    assert driver.phase is Phase.RECOVERING
    assert "an incarnation that is gone" in driver.why


def test_a_higher_world_than_the_recorded_one_takes_its_place() -> None:
    """Rule 17f: rule 14 without a record applies, and the hold begins anew."""
    driver = took_over(finished=[1], settings=Settings(heartbeat_timeout_s=18.0))
    driver.wait(5)
    announces(driver, "a", 0)
    announces(driver, "b", 1, round_=5)
    assert driver.sends == [("a", Broken("s4", "round 5 came after it"))]
    assert driver.run.hold_ends == driver.now + 20.0
    announces(driver, "c", 2, round_=5)
    announces(driver, "d", 0, round_=5)
    assert (driver.ranked, driver.world.round) == (["d", "b", "c"], 5)
    assert driver.run.settings.heartbeat_timeout_s == 18.0


def test_a_higher_world_does_not_shorten_the_hold() -> None:
    driver = took_over(settings=Settings(heartbeat_timeout_s=1.0))
    announces(driver, "b", 1, round_=5)
    assert driver.run.hold_ends == driver.now + HOLD_S


def test_a_higher_world_beyond_the_recorded_bounds_is_not_believed() -> None:
    """Rule 1: the founder sets the bounds."""
    driver = took_over(2, 2, size=2)
    announces(driver, "x", 0, round_=5, bounds=Bounds(2, 3))
    assert "a world of 3, where 2 are the most that the run was founded for" in driver.answer("x", Fenced).why
    for rank, node_id in enumerate("ab"):
        announces(driver, node_id, rank, size=2)
    assert (driver.ranked, driver.world.round) == (["a", "b"], 4)


# Broken and closed ----------------------------------------------------------------------------------------------------


def test_a_world_that_the_record_calls_broken_cannot_be_held() -> None:
    """Rule 17g: the server's node withdrew, and one write removed the claim and marked the world broken."""
    driver = took_over(broken=True)
    for _ in range(2):
        announces(driver, "a", 0)
    announces(driver, "b", 1)
    announces(driver, "c", 2)
    assert "only 0 of 3 ranks of round 4 still hold it" in driver.why
    assert {to for to, said in driver.sends if isinstance(said, Broken)} == {"a", "b", "c"}
    driver.join_again("a", "b", "c")
    assert (driver.ranked, driver.world.round) == (["a", "b", "c"], 5)


@pytest.mark.parametrize("finished", [False, True])
def test_ranks_that_left_before_the_server_handed_over_are_not_awaited(finished: bool) -> None:
    """Rule 17g: the hold ends when all the others were heard; one of them may still come to say that it has finished."""
    driver = took_over(broken=True, left=[0])
    if finished:
        announces(driver, "a", 0, Standing.FINISHED)
        assert driver.step.durability is Durability.FINISH
        driver = started(record.of(driver.run, epoch=4, write_id="w2"))
    announces(driver, "b", 1)
    assert driver.sends == []
    announces(driver, "c", 2)
    assert {to for to, said in driver.sends if isinstance(said, Broken)} == {"b", "c"}
    assert (sorted(driver.run.active), list(driver.run.finished.values())) == (["b", "c"], [0] if finished else [])


def test_who_finished_in_a_world_that_the_record_calls_broken_has_finished() -> None:
    """Rules 8 and 17g."""
    driver = took_over(2, 3, broken=True)
    announces(driver, "a", 0, Standing.FINISHED)
    assert driver.step.durability is Durability.FINISH
    announces(driver, "b", 1)
    announces(driver, "c", 2)
    assert (driver.phase, list(driver.run.finished)) == (Phase.GATHERING, ["a"])
    driver.join_again("b", "c")
    assert driver.ranked == ["b", "c"]


def test_a_run_can_be_closed_while_its_ranks_are_awaited() -> None:
    driver = took_over()
    announces(driver, "a", 0)
    driver.join("new")
    driver.close("new", why="never mind", incarnation="old")
    assert {to for to, said in driver.sends if isinstance(said, RunClosed)} >= {"a", "new"}
    announces(driver, "b", 1)
    assert driver.answer("b", RunClosed) == RunClosed("old", Ending.FAILED, "never mind")


def test_one_rank_that_knows_of_the_close_suffices_unless_all_have_finished() -> None:
    """Rule 14: closed is sticky."""
    driver = took_over()
    announces(driver, "a", 0, Standing.CLOSED, why="enough")
    assert driver.run.closing is not None
    assert driver.run.closing.why == "enough"
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
    driver = started(a_record(world=world, closing=RecordedEnding(Ending.SUCCEEDED, "done")))
    told = RunClosed("old", Ending.SUCCEEDED, "done")
    for standing in (Standing.HOLDS, Standing.WAITING, Standing.FINISHED):
        announces(driver, "a", 0, standing)
        assert driver.heard("a") == [told]
    driver.take(Announced(member("s"), driver.bounds, Standing.SPARE, incarnation="old"))
    assert driver.heard("s") == [told]
    driver.join("x", "y", "z")
    assert (driver.ranked, driver.world.round) == (["x", "y", "z"], 5)
    assert driver.run.last == EndedIncarnation("old", Ending.SUCCEEDED, "done")
    announces(driver, "b", 1)
    assert driver.heard("b") == [told]


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_closed_record_that_names_no_incarnation_leaves_the_one_before_in_memory(forgotten: bool) -> None:
    before = EndedIncarnation("before", Ending.SUCCEEDED, "done")
    written = msgspec.structs.replace(a_record(last=before, closing=RecordedEnding(Ending.FAILED)), incarnation="")
    driver = started(written)
    driver.wait(60 if forgotten else 0)
    driver.join("x")
    assert driver.run.last == before


# Before the first world -----------------------------------------------------------------------------------------------


def test_without_a_world_in_the_record_nobody_is_awaited() -> None:
    """Rule 17f: there is no hold."""
    driver = started(a_record(claim=CLAIM))
    driver.join("a", "b", "c")
    assert driver.answer("a", Placed).incarnation == "old"
    assert driver.world.round == 5


@pytest.mark.parametrize(
    "before", [{"round": 0}, {"last": EndedIncarnation("older", Ending.SUCCEEDED, "all members have finished")}]
)
def test_the_first_node_that_joins_sets_the_bounds_and_not_the_one_that_claimed(before: dict[str, Any]) -> None:
    """Rules 1 and 17a: a process may claim for a node that never joins."""
    driver = started(a_record(claim=CLAIM, **before))
    driver.bounds = Bounds(2, 2)
    driver.join("x")
    assert (driver.run.incarnation, driver.run.bounds) == ("old", Bounds(2, 2))
    driver.bounds = Bounds(2, 3)
    driver.join("a")
    assert "was founded for 2 nodes" in driver.answer("a", Refused).why


def test_where_the_register_forgot_the_claim_has_set_the_bounds() -> None:
    """Rules 1 and 17f: members of a world are on their way, and a node that knows nothing must not put them out."""
    driver = started(a_record(claim=CLAIM))
    driver.bounds = Bounds(1, 1)
    driver.join("x")
    assert "was founded for 2:3 nodes" in driver.answer("x", Refused).why
    driver.bounds = Bounds(2, 3)
    driver.join("a")
    assert driver.run.incarnation == "old"


def test_without_a_claim_the_first_node_to_come_founds_the_run() -> None:
    driver = started(a_record())
    driver.bounds = Bounds(1, 1)
    driver.join("x")
    assert (driver.ranked, driver.world.round) == (["x"], 5)
    assert driver.run.incarnation not in ("", "old")


# Recorded before told -------------------------------------------------------------------------------------------------


def test_a_finish_that_is_heard_while_the_server_recovers_must_be_recorded_once() -> None:
    """Rule 17c: the node may be gone when the next server asks."""
    driver = took_over()
    durability = []
    for standing in (Standing.HOLDS, Standing.FINISHED, Standing.FINISHED, Standing.HOLDS):
        announces(driver, "a", 0, standing)
        durability.append(driver.step.durability)
    assert durability == [Durability.NONE, Durability.FINISH, Durability.NONE, Durability.NONE]
    world = record.of(driver.run, epoch=4, write_id="w2").world
    assert world == RecordedWorld(4, "s4", 3, rank_bitmap([0]))


def test_a_finish_that_is_the_first_word_of_a_recovery_must_be_recorded() -> None:
    """Rule 17c."""
    driver = restarted(2, 3)
    durability = []
    for rank, standing in enumerate((Standing.FINISHED, Standing.HOLDS, Standing.HOLDS)):
        announces(driver, "abc"[rank], rank, standing)
        durability.append(driver.step.durability)
    assert driver.phase is Phase.SEALED
    # No record named the world that all hold: from now on one does.
    assert durability == [Durability.FINISH, Durability.NONE, Durability.SEAL_OR_CLOSE]


def test_the_record_of_a_finish_holds_it_where_the_world_was_only_announced() -> None:
    """Rule 17c: a world above the recorded one has taken its place."""
    driver = took_over()
    announces(driver, "b", 1, round_=5)
    announces(driver, "a", 0, Standing.FINISHED, round_=5)
    assert driver.step.durability is Durability.FINISH
    written = record.of(driver.run, epoch=4, write_id="w2")
    assert (written.incarnation, written.world) == ("old", RecordedWorld(5, "s5", 3, rank_bitmap([0])))


@pytest.mark.parametrize(
    ("reason", "durability"), [(Reason.FINISHED, Durability.FINISH), (Reason.WITHDREW, Durability.NONE)]
)
def test_a_rank_that_leaves_while_the_server_recovers_must_be_recorded_if_it_finished(
    reason: Reason, durability: Durability
) -> None:
    """Rule 17c: for other leaves the next server misses the rank."""
    driver = took_over()
    announces(driver, "a", 0)
    driver.take(Left("a", reason, "s4"))
    assert driver.step.durability is durability
    driver.take(Left("nobody", reason))
    assert driver.step.durability is Durability.NONE
    world = record.of(driver.run, epoch=4, write_id="w2").world
    assert world is not None
    assert list(world.finished_ranks()) == ([0] if reason is Reason.FINISHED else [])


@pytest.mark.parametrize("fresh", [False, True])
def test_that_an_incarnation_has_ended_must_be_recorded_before_its_members_are_told(fresh: bool) -> None:
    """Rules 17c and 17h: the next server must not recover what a member was told is over."""
    driver = took_over()
    if fresh:
        driver.join("x")
    driver.wait(HOLD_S)
    assert driver.step.durability is Durability.SEAL_OR_CLOSE
    after = started(record.of(driver.run, epoch=4, write_id="w2"))
    announces(after, "a", 0)
    assert after.heard("a") == [RunClosed("old", Ending.FAILED, "nobody of round 4 came back")]
    assert after.phase is Phase.GATHERING


def test_that_there_was_no_world_needs_no_record() -> None:
    driver = restarted(2, 3)
    driver.join("x")
    driver.wait(HOLD_S)
    assert driver.step.durability is Durability.NONE


def test_a_world_that_goes_on_needs_no_record() -> None:
    """Rule 17c: it is in the register already."""
    driver = took_over()
    for rank, node_id in enumerate("abc"):
        announces(driver, node_id, rank)
        assert driver.step.durability is Durability.NONE


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
    driver = took_over()
    for rank, node_id in enumerate("abc"):
        announces(driver, node_id, rank)
    driver.join("a", seat=Seat(4, "s4", 3, 0), incarnation="old")
    assert "a joined again" in driver.answer("b", Broken).why
