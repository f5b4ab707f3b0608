"""Agents that die, or are stopped: the others regroup, and training goes on."""

from __future__ import annotations

import socket
import time

import pytest

from tests.torchrun.job import Job, formed, in_order, learned


def test_survivors_of_a_killed_agent_regroup_and_resume(job: Job) -> None:
    agents = job.start("a b c", "2:3")
    places = formed(*agents)
    first, second, third = in_order(agents, places)
    third.reach(12)
    third.kill()
    killed_at = time.monotonic()
    again = formed(first, second)
    print(f"regrouped {max(place['at'] for place in again) - killed_at:.2f} s after the kill")
    assert [place["rank"] for place in again] == [0, 1], "ranks are sticky"
    before = {place["pid"] for place in places}
    assert not before & {place["pid"] for place in again}, "the workers are new"
    assert all(place["step"] >= 10 for place in again), "training resumes from the checkpoint"
    for agent in (first, second):
        agent.reach(30)
    learned(first, second)
    job.finish(first, second)


@pytest.mark.soak
def test_survivors_of_rank_0_agree_on_a_new_master_that_answers(job: Job) -> None:
    agents = job.start("a b c", "2:3")
    places = formed(*agents)
    first, second, third = in_order(agents, places)
    third.reach(12)
    first.kill()
    again = formed(second, third)
    assert again[0]["master"] != places[0]["master"]
    host, port = again[0]["master"].split()
    with socket.create_connection((host, int(port)), timeout=5):
        pass
    for agent in (second, third):
        agent.reach(30)
    learned(second, third)
    job.finish(second, third)


@pytest.mark.soak
def test_workers_whose_agent_is_killed_do_not_hold_the_others_up(job: Job) -> None:
    """They live on, so that nobody's workers crash: it is the notice alone that lets the others regroup."""
    agents = job.start("a b c", "2:3")
    places = formed(*agents)
    first, second, third = in_order(agents, places)
    third.reach(12)
    third.kill_alone()
    again = formed(first, second)
    assert [place["rank"] for place in again] == [0, 1]
    for agent in (first, second):
        agent.reach(30)
    learned(first, second)
    job.finish(first, second)
