"""Jobs whose server is found by a c10d store that an agent serves, as torch's own c10d has it; nothing else is set up.

The quick suite shows the two apart: agents of torch's on c10d in `test_local_agents`, the loss of one in `test_losses`.
"""

from __future__ import annotations

import pytest

from tests.support.node_processes import free_port
from tests.torchrun.job import Job, formed, in_order, learned

pytestmark = [pytest.mark.soak, pytest.mark.parametrize("backend", ["c10d"], indirect=True)]


def test_an_agent_serves_the_store_another_is_killed_and_the_rest_resume(job: Job) -> None:
    endpoint = f"c10d://127.0.0.1:{free_port()}"
    host = job.agent("host", "2:3", endpoint=endpoint, options={"is_host": "true"})
    others = [job.agent(name, "2:3", endpoint=endpoint) for name in ("b", "c")]
    agents = [host, *others]
    by_rank = in_order(agents, formed(*agents))
    by_rank[0].reach(12)
    victim = next(agent for agent in reversed(by_rank) if agent is not host)
    victim.kill()
    rest = [agent for agent in by_rank if agent is not victim]
    again = formed(*rest)
    assert all(place["step"] >= 10 for place in again), "training resumes from the checkpoint"
    for agent in rest:
        agent.reach(30)
    learned(*rest)
    job.finish(*rest)
