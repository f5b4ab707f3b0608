"""Everyone edits the document: what comes of it, in a virtual world without threads, with and without a store beside it."""

from __future__ import annotations

import pytest

from rallypoint.core.model import Ending, Phase, Reason, Settings
from rallypoint.core.node import State, num_nodes_waiting
from rallypoint.document import page as pages
from tests.document.stage import FAST, Stage, hold_one_world, worlds


def _phase(stage: Stage) -> Phase:
    assert stage.paper.data is not None
    return pages.decode(stage.paper.data, "run").run.phase


@pytest.fixture(params=[False, True], ids=["in the document", "beside the document"])
def stage(request: pytest.FixtureRequest) -> Stage:
    return Stage(with_store=request.param)


def test_nodes_form_one_world(stage: Stage) -> None:
    nodes = stage.join("a", "b", "c", nodes=(3, 3))
    stage.until(lambda: hold_one_world(*nodes), 2.0)
    assert sorted(node.rank or 0 for node in nodes) == [0, 1, 2]
    assert {node.view.world.store for node in nodes if node.view.world} == {"10.0.0.1:0"}


def test_a_last_call_is_fixed_however_many_come_during_it(stage: Stage) -> None:
    first = stage.join("a", "b", nodes=(2, 9))
    stage.pass_time(2.0)
    late = stage.join("c", nodes=(2, 9))
    stage.pass_time(0.8)
    later = stage.join("d", nodes=(2, 9))
    took = stage.until(lambda: hold_one_world(*first, *late, *later))
    # Two nodes were here at the start, so three seconds later it is over; who reads the document late knows as well.
    assert took < 0.7
    assert {node.view.world.size for node in first if node.view.world} == {4}


def test_the_documents_clock_never_goes_back(stage: Stage) -> None:
    nodes = stage.join("a", "b", nodes=(2, 3))
    stage.until(lambda: hold_one_world(*nodes))
    stage.pass_time(100.0)
    # A newcomer's own clock has just begun; it writes what time it is by the document's.
    (late,) = stage.join("c", nodes=(2, 3))
    stage.until(lambda: late.editor.is_listed, 5.0)
    assert late.editor.page is not None
    assert late.editor.page.clock > 95.0


def test_a_killed_member_is_given_up_and_the_others_are_told(stage: Stage) -> None:
    nodes = stage.join("a", "b", "c", nodes=(2, 3))
    stage.until(lambda: hold_one_world(*nodes))
    stage.pass_time(3.0)
    a, b, c = sorted(nodes, key=lambda node: node.rank or 0)
    stage.kill(c)
    took = stage.until(lambda: a.view.state is b.view.state is State.BROKEN)
    assert 4.0 <= took <= 7.5
    assert a.view.why == f"{c.name} was lost: nothing was heard of it for 5.0 s"
    assert num_nodes_waiting(a.view, a.now()) == 1
    stage.again(a, b)
    stage.until(lambda: hold_one_world(a, b), 2.0)
    assert (a.rank, b.rank) == (0, 1)


def test_a_paused_member_learns_that_it_is_out(stage: Stage) -> None:
    nodes = stage.join("a", "b", "c", nodes=(2, 3))
    stage.until(lambda: hold_one_world(*nodes))
    a, b, c = sorted(nodes, key=lambda node: node.rank or 0)
    c.is_paused = True
    stage.until(lambda: a.view.state is b.view.state is State.BROKEN)
    stage.again(a, b)
    stage.until(lambda: hold_one_world(a, b), 2.0)
    c.is_paused = False
    stage.until(lambda: c.view.state is State.FENCED, 2.0)
    assert num_nodes_waiting(c.view, c.now()) == 1


def test_who_was_paused_itself_gives_nobody_up(stage: Stage) -> None:
    nodes = stage.join("a", "b", nodes=(2, 2))
    stage.until(lambda: hold_one_world(*nodes))
    for node in nodes:
        node.is_paused = True
    stage.pass_time(60.0)
    for node in nodes:
        node.is_paused = False
    stage.pass_time(4.0)
    assert hold_one_world(*nodes)


def test_nobody_is_given_up_after_an_outage(stage: Stage) -> None:
    nodes = stage.join("a", "b", "c", nodes=(2, 3))
    stage.until(lambda: hold_one_world(*nodes))
    world = worlds(*nodes)
    stage.paper.is_away = True
    stage.pass_time(20.0)
    assert {num_nodes_waiting(node.view, node.now()) for node in nodes} == {0}
    stage.paper.is_away = False
    stage.pass_time(20.0)
    assert worlds(*nodes) == world


def test_an_outage_is_nobodys_last_call(stage: Stage) -> None:
    nodes = stage.join("a", "b", nodes=(2, 3))
    stage.pass_time(1.0)
    stage.paper.is_away = True
    stage.pass_time(30.0)
    stage.paper.is_away = False
    late = stage.join("c", nodes=(2, 3))
    stage.until(lambda: hold_one_world(*nodes, *late), 3.0)


def test_an_outage_longer_than_the_grace_breaks_the_world(stage: Stage) -> None:
    settings = Settings(last_call_s=1.0, heartbeat_interval_s=1.0, heartbeat_timeout_s=5.0, outage_grace_s=10.0)
    nodes = [stage.writer(name, (2, 2), settings) for name in "ab"]
    stage.again(*nodes)
    stage.until(lambda: hold_one_world(*nodes))
    stage.paper.is_away = True
    stage.pass_time(11.0)
    assert {num_nodes_waiting(node.view, node.now()) for node in nodes} == {1}


def test_clocks_that_differ_by_days_change_nothing(stage: Stage) -> None:
    nodes = [stage.writer(name, (2, 3), FAST, starts_at) for name, starts_at in [("a", 0.0), ("b", 20.0), ("c", 9e5)]]
    stage.again(*nodes)
    stage.until(lambda: hold_one_world(*nodes), 5.0)
    world = worlds(*nodes)
    stage.pass_time(30.0)
    assert worlds(*nodes) == world


def test_a_document_of_killed_nodes_takes_one_time_out_to_be_judged(stage: Stage) -> None:
    old = stage.join("a", "b", "c", nodes=(3, 3))
    stage.until(lambda: hold_one_world(*old))
    for node in old:
        stage.kill(node)
    stage.pass_time(600.0)
    fresh = stage.join("x", "y", "z", nodes=(3, 3))
    took = stage.until(lambda: hold_one_world(*fresh))
    assert 5.0 <= took <= 9.0
    assert {node.view.world.round for node in fresh if node.view.world} == {2}


def test_a_closed_run_whose_nodes_were_killed_starts_anew_after_one_time_out(stage: Stage) -> None:
    old = stage.join("a", "b")
    stage.until(lambda: hold_one_world(*old))
    old[0].editor.close()
    stage.until(lambda: old[1].view.state is State.CLOSED)
    for node in old:
        stage.kill(node)
    fresh = stage.join("x", "y")
    stage.pass_time(2.0)
    assert fresh[0].view.state is State.WAITING
    assert fresh[0].view.why.startswith("the run is closed; whether a node of it is still there is seen within")
    stage.until(lambda: hold_one_world(*fresh), 10.0)


def test_a_newcomer_is_told_that_the_run_is_closed_while_one_of_its_nodes_lives(stage: Stage) -> None:
    old = stage.join("a", "b")
    stage.until(lambda: hold_one_world(*old))
    old[0].editor.close()
    stage.until(lambda: old[1].view.state is State.CLOSED)
    (fresh,) = stage.join("x")
    took = stage.until(lambda: fresh.view.state is State.CLOSED)
    assert took <= 3.0


def test_a_late_node_is_announced_and_admitted(stage: Stage) -> None:
    nodes = stage.join("a", "b", nodes=(2, 3))
    stage.until(lambda: hold_one_world(*nodes))
    (late,) = stage.join("c", nodes=(2, 3))
    stage.until(lambda: {num_nodes_waiting(node.view, node.now()) for node in nodes} == {1}, 2.0)
    stage.again(*nodes)
    stage.until(lambda: hold_one_world(*nodes, late), 2.0)
    assert late.rank == 2


def test_a_surplus_node_stands_by_and_replaces_a_lost_one(stage: Stage) -> None:
    nodes = stage.join("a", "b")
    stage.until(lambda: hold_one_world(*nodes))
    (spare,) = stage.join("c", timeout_s=1.0)
    stage.until(lambda: spare.view.state is State.SPARE, 2.0)
    assert {num_nodes_waiting(node.view, node.now()) for node in nodes} == {0}
    a, b = sorted(nodes, key=lambda node: node.rank or 0)
    stage.kill(b)
    stage.until(lambda: a.view.state is State.BROKEN)
    stage.again(a)
    stage.until(lambda: hold_one_world(a, spare), 2.0)


def test_an_early_finisher_does_not_break_the_world_and_all_of_them_end_the_run(stage: Stage) -> None:
    nodes = stage.join("a", "b", "c", nodes=(3, 3))
    stage.until(lambda: hold_one_world(*nodes))
    stage.leave(nodes[2], Reason.FINISHED)
    stage.until(lambda: nodes[2].editor.errand is None, 2.0)
    stage.pass_time(10.0)
    assert hold_one_world(nodes[0], nodes[1])
    for node in nodes[:2]:
        stage.leave(node, Reason.FINISHED)
    stage.until(lambda: {node.view.state for node in nodes} == {State.CLOSED}, 2.0)
    assert {node.view.ending for node in nodes} == {Ending.SUCCEEDED}


def test_a_node_that_withdraws_breaks_the_world(stage: Stage) -> None:
    nodes = stage.join("a", "b", "c", nodes=(2, 3))
    stage.until(lambda: hold_one_world(*nodes))
    stage.leave(nodes[2], Reason.WITHDREW)
    took = stage.until(lambda: nodes[0].view.state is nodes[1].view.state is State.BROKEN, 2.0)
    assert took <= 1.0


def test_a_node_with_other_bounds_is_refused_and_changes_nothing(stage: Stage) -> None:
    (a,) = stage.join("a")
    stage.pass_time(0.5)
    writes = stage.paper.writes
    (odd,) = stage.join("odd", nodes=(2, 4))
    stage.until(lambda: odd.view.state is State.REFUSED, 2.0)
    assert "asks for 2:4 nodes, but run 'run' was founded for 2 nodes" in odd.view.why
    assert a.view.state is State.WAITING
    assert stage.paper.writes == writes


def test_a_document_that_was_lost_is_put_back_by_who_remembers_it(stage: Stage) -> None:
    nodes = stage.join("a", "b")
    stage.until(lambda: hold_one_world(*nodes))
    world = worlds(*nodes)
    stage.paper.data = None
    stage.pass_time(20.0)
    assert _phase(stage) is Phase.SEALED
    assert worlds(*nodes) == world


def test_a_document_that_went_back_in_time_is_put_right(stage: Stage) -> None:
    nodes = stage.join("a", "b")
    stage.pass_time(0.05)
    early = stage.paper.data
    stage.until(lambda: hold_one_world(*nodes))
    world = worlds(*nodes)
    stage.paper.data = early
    stage.pass_time(10.0)
    assert worlds(*nodes) == world
    assert _phase(stage) is Phase.SEALED


def test_heartbeats_beside_the_document_do_not_rewrite_it() -> None:
    stage = Stage(with_store=True)
    nodes = stage.join("a", "b")
    stage.until(lambda: hold_one_world(*nodes))
    writes = stage.paper.writes
    stage.pass_time(60.0)
    assert stage.paper.writes == writes


def test_many_who_come_at_once_are_taken_in_with_few_writes() -> None:
    stage = Stage(with_store=True)
    nodes = stage.join(*(f"n{number}" for number in range(64)), nodes=(64, 64))
    stage.until(lambda: hold_one_world(*nodes), 10.0)
    assert stage.paper.writes <= 8


def test_a_store_that_is_not_shared_is_left_alone() -> None:
    stage = Stage(with_store=True)
    (a,) = stage.join("a")
    stage.pass_time(0.5)
    assert stage.beats_beside(a)
    (b,) = stage.join("b")
    b.editor.not_shared()
    stage.until(lambda: hold_one_world(a, b), 3.0)
    assert not stage.beats_beside(a)
    world = worlds(a, b)
    stage.pass_time(30.0)
    assert worlds(a, b) == world
    stage.kill(b)
    stage.until(lambda: a.view.state is State.BROKEN, 9.0)


def test_who_has_just_looked_looks_again_with_the_next_beat(stage: Stage) -> None:
    """Reading the signs takes a while; were the next look due that much after the next beat, it would be left out."""
    if stage.store is None:
        return
    a, b = stage.join("a", "b")
    stage.until(lambda: hold_one_world(a, b))
    now = a.now()
    a.editor.beat("1:0", now)
    a.editor.look({}, now + 0.05)
    assert a.editor.must_beat(now + FAST.heartbeat_interval_s)
    assert a.editor.must_look(now + FAST.heartbeat_interval_s)


def test_who_was_given_up_while_it_waited_comes_back_under_another_name() -> None:
    stage = Stage(with_store=True)
    a, b = stage.join("a", "b", nodes=(3, 3))
    stage.until(lambda: {"a.1", "b.1"} == set(a.editor.run.queue))
    b.is_paused = True
    stage.until(lambda: {"a.1"} == set(a.editor.run.queue), 10.0)
    b.is_paused = False
    stage.until(lambda: b.view.state is State.FENCED, 2.0)
    assert b.view.why == "it was silent for too long, and given up"
    writes = stage.paper.writes
    stage.pass_time(10.0)
    assert stage.paper.writes == writes


def test_who_was_given_up_closes_the_run_and_is_not_counted_in_it() -> None:
    stage = Stage(with_store=True)
    nodes = stage.join("a", "b", "c", nodes=(2, 3))
    stage.until(lambda: hold_one_world(*nodes))
    a, b, c = sorted(nodes, key=lambda node: node.rank or 0)
    c.is_paused = True
    stage.until(lambda: a.view.state is b.view.state is State.BROKEN)
    c.is_paused = False
    c.editor.close()
    stage.until(lambda: {node.view.state for node in nodes} == {State.CLOSED}, 5.0)
    writes = stage.paper.writes
    stage.pass_time(5.0)
    assert stage.paper.writes == writes
