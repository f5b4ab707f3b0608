"""The server is away, comes back, comes late, or is asked for the same run again."""

from __future__ import annotations

import subprocess

import pytest

from rallypoint.stores import TcpStore
from tests.support.waiting import until
from tests.torchrun.agents import is_alive
from tests.torchrun.job import Job, formed, in_order, learned, started


def test_workers_keep_their_process_ids_while_the_server_is_killed_and_restarted(job: Job) -> None:
    agents = job.start("a b", "1:2", script=job.works("--steps"))
    places = started(*agents)
    pids = {place["pid"] for place in places}
    first, second = in_order(agents, places)
    first.reach(5)
    job.backend.kill()
    first.reach(25)
    job.backend.start()
    first.reach(45)
    second.reach(45)
    steps = [event for agent in agents for event in agent.seen if event["event"] == "step"]
    assert {event["pid"] for event in steps} == pids, "the workers are the same"
    # The server is back for good: a loss is noticed, and the rest regroup.
    second.kill()
    (again,) = started(first)
    assert again["pid"] not in pids
    job.finish(first)


@pytest.mark.soak
def test_a_run_id_is_used_again_at_once_after_everything_was_killed(job: Job) -> None:
    agents = job.start("a b", "2")
    host, port = formed(*agents)[0]["master"].split()
    with TcpStore(host, int(port)) as store:
        store.set("left behind", b"1")
    pids = [event["pid"] for agent in agents for event in agent.seen if event["event"] == "training"]
    for agent in agents:
        agent.kill()
    until(lambda: not any(is_alive(pid) for pid in pids), "what was killed is gone")
    again = job.start("a b", "2")
    places = formed(*again)
    assert {place["restarts"] for place in places} == {0}
    host, port = places[0]["master"].split()
    with TcpStore(host, int(port)) as store:
        assert not store.check(["left behind"])
    again[0].reach(20)
    learned(again[0])
    job.finish(*again)


@pytest.mark.soak
def test_an_agent_that_starts_half_a_minute_before_the_server_waits_for_it(job: Job) -> None:
    job.backend.kill()
    agents = job.start("a b", "2")
    with pytest.raises(subprocess.TimeoutExpired):
        agents[0].process.wait(30.0)
    job.backend.start()
    formed(*agents)
    for agent in agents:
        agent.reach(20)
    learned(*agents)
    job.finish(*agents)
