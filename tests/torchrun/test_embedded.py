"""No server of its own: the first agent that can bind the endpoint serves the others."""

from __future__ import annotations

import pytest

from tests.support.node_processes import free_port
from tests.torchrun.agents import FAST
from tests.torchrun.backends import CLOSED
from tests.torchrun.job import Job, formed, learned

pytestmark = pytest.mark.parametrize("backend", ["rallypoint", *CLOSED], indirect=True)

EMBEDDED = {**FAST, "is_host": None}


@pytest.mark.soak
def test_when_the_agent_that_serves_is_killed_another_on_its_machine_takes_over(job: Job) -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    (host,) = job.start("host", "2:3", endpoint=endpoint, options=EMBEDDED)
    host.says("run 'job': waiting: 1 of")  # it serves by then, as nobody else does
    others = job.start("b c", "2:3", endpoint=endpoint, options=EMBEDDED)
    formed(host, *others)
    host.reach(12)
    host.kill()
    again = formed(*others)
    assert all(place["step"] >= 10 for place in again)
    for agent in others:
        agent.reach(30)
    learned(*others)
    job.finish(*others)
