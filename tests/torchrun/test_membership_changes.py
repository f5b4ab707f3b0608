"""A world that grows, a spare that steps in, an agent that comes back: who trains, where, and what becomes of the rest."""

from __future__ import annotations

import pytest

from tests.torchrun.agents import is_alive
from tests.torchrun.job import Job, formed, in_order, learned, started


def test_a_newcomer_is_let_into_a_running_job(job: Job) -> None:
    options = {"last_call_timeout": 0}
    (old,) = job.start("old", "1:2", options=options, script=job.works())
    (before,) = started(old)
    (new,) = job.start("new", "1:2", options=options, script=job.works())
    places = started(old, new)
    assert [place["rank"] for place in places] == [0, 1], "who was there keeps its rank"
    assert places[0]["pid"] != before["pid"]
    assert places[0]["restarts"] == 0, "a newcomer costs nobody a restart"
    job.finish(old, new)


@pytest.mark.soak
def test_the_fifth_of_four_stands_by_replaces_a_killed_one_and_ends_well(job: Job) -> None:
    agents = job.start("a b c d", "4")
    places = formed(*agents)
    (spare,) = job.start("spare", "4")
    spare.says("standing by")
    (idle,) = job.start("idle", "4")
    idle.says("standing by")
    first, second, third, fourth = in_order(agents, places)
    fourth.reach(12)
    fourth.kill()
    again = formed(first, second, third, spare)
    assert [place["rank"] for place in again] == [0, 1, 2, 3], "ranks are sticky"
    assert not {place["pid"] for place in places} & {place["pid"] for place in again}
    for agent in (first, second, third):
        agent.reach(30)
    learned(first, second, third)
    job.finish(first, second, third, spare)
    assert idle.exit_code() == 0
    assert not [event for event in idle.seen if event["event"] == "training"]


@pytest.mark.soak
def test_an_agent_that_is_paused_for_longer_than_its_lease_comes_back_as_a_newcomer(job: Job) -> None:
    agents = job.start("a b c", "2:3")
    places = formed(*agents)
    first, second, third = in_order(agents, places)
    (old_pid,) = [place["pid"] for place in places if place["rank"] == 2]
    third.reach(12)
    third.pause()
    formed(first, second)
    began = first.expect("step", world_size=2)["at"]
    third.resume()
    again = formed(first, second, third)
    assert len({place["master"] for place in again}) == 1, "there is one world"
    assert not is_alive(old_pid), "the workers of the old world are gone"
    late = [
        event for event in third.seen if event["event"] == "step" and event["pid"] == old_pid and event["at"] > began
    ]
    assert not late, "no step was made in a world that was over"
    for agent in agents:
        agent.reach(40)
    learned(*agents)
    job.finish(*agents)
