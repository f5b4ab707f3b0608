"""Where torch's agent looks at nothing but its store: a member that dies there takes nobody with it.

The member that dies is a bare node, which takes part in the rendezvous and then does nothing that an agent does.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.access_files import flags
from tests.support.cli_processes import answer_json
from tests.support.node_processes import Node, Processes
from tests.support.waiting import until
from tests.torchrun.agents import WORKER
from tests.torchrun.job import Job

RANKS = [pytest.param(0, id="the store's host"), pytest.param(2, id="another member", marks=pytest.mark.soak)]
ROLE = {"role": "default", "rank": 2, "local_world_size": 1}


@pytest.fixture
def bare(job: Job) -> Iterator[Node]:
    processes = Processes()
    try:
        yield processes.node("bare")
    finally:
        processes.end()


def join(bare: Node, job: Job, nnodes: str, **options: Any) -> None:
    given = {**job.backend.options, **options}
    bare.join(job.backend.address, nnodes, job.run_id, **given)


def standings(job: Job) -> list[str]:
    """Where the nodes of the job stand, as its server says."""
    status = answer_json("status", job.run_id, "--endpoint", job.backend.address, *flags(job.backend.access))
    return [node["standing"] for node in status["nodes"]]


@pytest.mark.parametrize("rank", RANKS)
def test_a_member_dies_between_the_seal_and_the_start_of_the_workers(job: Job, bare: Node, rank: int) -> None:
    script = (WORKER, "--until", str(job.stop_file))
    agents = job.start("a b", "2:3", script=script)
    join(bare, job, "2:3", rank=rank)
    assert bare.placed()["rank"] == rank
    bare.kill()
    places = [agent.expect("started", world_size=2) for agent in agents]
    assert sorted(place["rank"] for place in places) == [0, 1]
    assert {place["restarts"] for place in places} == {0}, "nobody was charged a restart"
    assert len({place["master"] for place in places}) == 1
    job.finish(*agents)


@pytest.mark.parametrize("rank", RANKS)
def test_a_member_dies_while_the_others_stand_in_the_exit_barrier(job: Job, bare: Node, rank: int) -> None:
    agents = job.start("a b", "3", script=(WORKER,))
    join(bare, job, "3", rank=rank)
    assert bare.placed()["rank"] == rank
    # It tells the others just enough for their workers to start.
    roles = {"torchelastic/role_info/2": ROLE}
    ranks = {f"torchelastic/assigned_ranks/{peer}": [peer, 3, peer, 3] for peer in (1, 2)}
    for key, value in (ranks if rank == 0 else roles).items():
        bare.ask("set", "stored", key=key, value=json.dumps(value))
    for agent in agents:
        agent.expect("done", world_size=3)
    while bare.ask("get", "value", key="torchelastic/agent/terminal_state/num_members")["value"] != "2":
        pass  # they are still on their way into the barrier
    assert all(agent.process.poll() is None for agent in agents), "they wait for the third"
    bare.kill()
    assert [agent.exit_code(30.0) for agent in agents] == [0, 0]


def test_who_has_finished_is_let_go_when_the_others_regroup(job: Job, bare: Node) -> None:
    """The exit barrier of a world that broke: one is done, one is lost, and the third goes on with a newcomer."""
    done = job.agent("done", "1:3", script=(WORKER,))
    busy = job.agent("busy", "1:3", script=job.works(), options={"rank": 1})
    join(bare, job, "1:3", rank=2)
    bare.placed()
    bare.ask("set", "stored", key="torchelastic/role_info/2", value=json.dumps(ROLE))
    done.expect("done", world_size=3)
    while bare.ask("get", "value", key="torchelastic/agent/terminal_state/num_members")["value"] != "1":
        pass
    bare.kill()
    assert done.exit_code(30.0) == 0
    busy.expect("started", world_size=1, restarts=0)
    job.stop_file.touch()
    assert busy.exit_code() == 0


def test_an_agent_that_is_stopped_in_the_exit_barrier_ends_at_once(job: Job, bare: Node) -> None:
    """torch raises an exception of its own out of the wait then, and it is to arrive as what it is."""
    (agent,) = job.start("a", "2", script=(WORKER,))
    join(bare, job, "2", rank=0)
    bare.placed()
    bare.ask("set", "stored", key="torchelastic/assigned_ranks/1", value="[1, 2, 1, 2]")
    agent.expect("done")
    bare.ask("get", "value", key="torchelastic/agent/terminal_state/num_members")
    agent.send(signal.SIGTERM)
    assert agent.exit_code(30.0) == 1
    errors = agent.errors()
    assert "SignalException" in errors
    assert "DistNetworkError" not in errors


def test_a_newcomer_does_not_disturb_those_who_are_finishing(job: Job) -> None:
    """One stands in the exit barrier, one still works: from then on nobody is let in, and nobody is restarted."""
    options = {"last_call_timeout": 3}
    done = job.agent("done", "2:3", script=(WORKER,), options=options)
    busy = job.agent("busy", "2:3", script=job.works(), options=options)
    done.expect("done", world_size=2)
    pid = busy.expect("started", world_size=2)["pid"]
    until(lambda: "finished" in standings(job), "one has finished, as the server knows")
    late = job.agent("late", "2:3", script=(WORKER,), options=options)
    late.says("the run is ending, 1 node finished: nobody new is admitted")
    job.finish(busy)
    assert [event["pid"] for event in busy.seen if event["event"] == "started"] == [pid]
    assert [agent.exit_code(30.0) for agent in (done, late)] == [0, 0]
    assert not [event for event in late.seen if event["event"] == "started"]
