"""Agents that show a token or certificates, and some that cannot: rejected in words, and unnoticed by the others (rule 16)."""

from __future__ import annotations

import pytest

from tests.support.access_files import CERTIFICATES, TOKEN
from tests.torchrun.backends import CLOSED, ClosedServer
from tests.torchrun.job import Job, in_order, started

SENTENCES = {
    (TOKEN, "none"): "this server wants a token: give its file as token_file, or put it into RALLYPOINT_TOKEN",
    (TOKEN, "another"): "the server did not prove that it has this node's token",
    (CERTIFICATES, "none"): "something else may listen there, or it wants certificates: give cacert, cert and key",
    (CERTIFICATES, "another"): "the two do not believe each other's certificates",
}


@pytest.mark.parametrize("backend", CLOSED, indirect=True)
def test_a_stranger_is_told_why_and_the_others_train_on_and_regroup(job: Job) -> None:
    server = job.backend
    assert isinstance(server, ClosedServer)
    agents = job.start("a b", "1:3", script=job.works("--steps"), options={"last_call_timeout": 3})
    places = started(*agents)
    first, second = in_order(agents, places)
    for shown, options in (("none", server.files.bare), ("another", server.files.stranger)):
        stranger = job.agent(shown, "1:3", options={**options, "join_timeout": 4}, script=job.works())
        assert stranger.exit_code() == 1
        assert SENTENCES[server.way, shown] in stranger.errors()
    reached = first.reach(0)["step"]
    for agent in agents:
        agent.reach(reached + 5)
    steps = [event for agent in agents for event in agent.seen if event["event"] == "step"]
    assert {event["pid"] for event in steps} == {place["pid"] for place in places}, "nobody was disturbed"
    second.kill()
    (again,) = started(first)
    assert again["pid"] not in {place["pid"] for place in places}
    job.finish(first)
