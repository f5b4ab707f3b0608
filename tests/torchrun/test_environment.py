"""torchrun's environment variables, as Kubeflow sets them: no argument names the backend."""

from __future__ import annotations

from tests.torchrun.agents import WORKER, Agent
from tests.torchrun.job import Job


def test_the_backend_and_the_rank_come_from_the_environment(job: Job) -> None:
    given = {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "2",
        "PET_RDZV_BACKEND": job.backend.name,
        "PET_RDZV_ENDPOINT": job.backend.endpoint,
        "PET_RDZV_ID": job.run_id,
        "PET_RDZV_CONF": ",".join(f"{key}={value}" for key, value in job.backend.options.items() if value is not None),
    }
    agents = [Agent(f"n{rank}", [WORKER], environment={**given, "PET_NODE_RANK": str(rank)}) for rank in (1, 0)]
    job.agents += agents
    ranks = [sorted(agent.expect("started", world_size=4)["rank"] for _ in range(2)) for agent in agents]
    assert ranks == [[2, 3], [0, 1]], "the node that asked for rank 0 has it, though it came second"
    assert [agent.exit_code() for agent in agents] == [0, 0]
