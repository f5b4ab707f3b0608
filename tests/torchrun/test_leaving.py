"""Leaving is not closing (rule 8): what failing, being stopped, giving up and finishing mean to the others."""

from __future__ import annotations

import os
import signal

import pytest

from tests.torchrun.agents import WORKER
from tests.torchrun.job import Job, formed, in_order, learned, started


def test_a_script_that_fails_is_started_again_with_all_the_others(job: Job) -> None:
    failing = (WORKER, "--until", str(job.stop_file), "--fail-once", str(job.folder / "failed"))
    (once,) = job.start("once", "2", script=failing)
    (other,) = job.start("other", "2", script=job.works())
    firsts = [agent.expect("started", world_size=2, restarts=0) for agent in (once, other)]
    again = [once.expect("started", world_size=2, restarts=1), other.expect("started", world_size=2, restarts=0)]
    assert {place["rank"] for place in again} == {0, 1}
    assert not {place["pid"] for place in firsts} & {place["pid"] for place in again}
    assert again[0]["master"] == again[1]["master"] != firsts[0]["master"]
    job.finish(once, other)


def test_an_agent_that_is_stopped_does_not_stop_the_others(job: Job) -> None:
    agents = job.start("a b c", "2:3", script=job.works())
    first, second, third = in_order(agents, started(*agents))
    third.send(signal.SIGTERM)
    assert [place["rank"] for place in started(first, second)] == [0, 1]
    assert third.exit_code() != 0
    job.finish(first, second)
    assert f"{third.name} withdrew: its process was stopped" in first.errors() + second.errors()


def test_who_gives_up_where_all_are_needed_takes_the_run_along(job: Job) -> None:
    fail = job.folder / "fail"
    (bad,) = job.start("bad", "2", script=(WORKER, "--until", str(fail), "--exit", "3"), max_restarts=0)
    (good,) = job.start("good", "2", script=job.works())
    good.expect("started", world_size=2)
    fail.touch()
    assert bad.exit_code() == 1
    if not job.backend.has_server:
        # Whether a third agent is told so depends on who served: it may found the next incarnation (rule 17h).
        job.finish(good)
        return
    # Its worker runs on, as nothing is wrong with it; a third agent is told at once that the run is over.
    (late,) = job.start("late", "2", script=(WORKER,))
    assert late.exit_code() == 1
    errors = late.errors()
    assert "RendezvousClosedError" in errors
    assert "is closed as failed: bad gave up: its workers failed, and it has no restarts left: exit code 3" in errors
    job.finish(good)


@pytest.mark.parametrize(
    ("nnodes", "options"),
    [
        pytest.param("1:2", {}, id="min<max"),
        pytest.param("2", {"on_give_up": "wait"}, id="wait", marks=pytest.mark.soak),
    ],
)
def test_who_gives_up_where_others_can_go_on_leaves_alone(job: Job, nnodes: str, options: dict[str, str]) -> None:
    script, fail = (WORKER, "--until", str(job.stop_file)), job.folder / "fail"
    (good,) = job.start("good", nnodes, script=script, options=options)
    failing = (WORKER, "--until", str(fail), "--exit", "3")
    (bad,) = job.start("bad", nnodes, script=failing, options=options, max_restarts=0)
    good.expect("started", world_size=2)
    fail.touch()
    assert bad.exit_code() == 1
    if nnodes == "2":
        (fresh,) = job.start("fresh", nnodes, script=script, options=options)
        assert {agent.expect("started", world_size=2)["rank"] for agent in (good, fresh)} == {0, 1}
        job.finish(good, fresh)
    else:
        good.expect("started", world_size=1, restarts=0)
        job.finish(good)


def test_all_finish_close_together_and_a_spare_ends_well_with_them(job: Job) -> None:
    agents = job.start("a b", "2", script=job.works())
    for agent in agents:
        agent.expect("started", world_size=2)
    (spare,) = job.start("spare", "2", script=(WORKER,), options={"role": "spare"})
    spare.says("standing by")
    job.finish(*agents)
    assert spare.exit_code(30.0) == 0
    assert "Error" not in spare.errors()
    assert not [event for event in spare.seen if event["event"] == "started"]
    for agent in agents:
        assert "Error" not in agent.errors()


@pytest.mark.soak
def test_a_worker_that_is_killed_is_started_again_and_training_resumes(job: Job) -> None:
    agents = job.start("a b c", "3")
    places = formed(*agents)
    first, second, third = in_order(agents, places)
    third.reach(12)
    (pid,) = [place["pid"] for place in places if place["rank"] == 2]
    os.kill(pid, signal.SIGKILL)
    again = formed(first, second, third)
    assert [place["rank"] for place in again] == [0, 1, 2]
    assert again[2]["restarts"] == 1, "its own agent is charged"
    assert not {place["pid"] for place in places} & {place["pid"] for place in again}
    for agent in agents:
        agent.reach(30)
    learned(*agents)
    job.finish(*agents)
