"""Torch's own agent on our c10d backend, three of them with one, one and two workers: every run gives its sum, none hangs."""

from __future__ import annotations

import faulthandler
import multiprocessing
from multiprocessing.connection import Connection
from typing import Any

import pytest

from tests.support.node_processes import free_port
from tests.support.remote_stores import start_process

WORKERS = (2, 1, 1)
SUM = sum(range(sum(WORKERS)))
# A run takes a few seconds; on a busy machine a multiple of that.  Where it hangs, the stacks are printed.
HANGS_S = 180


def all_reduce() -> int:
    """What every worker does: the sum of all ranks."""
    import torch
    import torch.distributed as dist

    dist.init_process_group(backend="gloo")
    mine = torch.tensor(dist.get_rank())
    dist.all_reduce(mine)
    dist.destroy_process_group()
    return int(mine.item())


def run_agent(port: int, run_id: str, number: int, pipe: Connection) -> None:
    """One agent, as torch's own tests make them."""
    from torch.distributed.elastic.agent.server.api import WorkerSpec
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

    from rallypoint.elastic.api import RendezvousParameters
    from rallypoint.elastic.registry import get_rendezvous_handler

    faulthandler.dump_traceback_later(HANGS_S - 10, exit=False)
    parameters = RendezvousParameters(
        "c10d", f"127.0.0.1:{port}", run_id, len(WORKERS), len(WORKERS), is_host=number == 0, local_addr="127.0.0.1"
    )
    handler: Any = get_rendezvous_handler(parameters)
    spec = WorkerSpec(
        role="sum", local_world_size=WORKERS[number], entrypoint=all_reduce, rdzv_handler=handler, monitor_interval=0.1
    )
    result = LocalElasticAgent(spec, logs_specs=DefaultLogsSpecs(), start_method="spawn").run()
    pipe.send((result.is_failed(), dict(result.return_values)))
    handler.shutdown()


@pytest.mark.parametrize("runs", [2, pytest.param(200, marks=pytest.mark.soak)])
def test_agents_with_unequal_numbers_of_workers_sum_their_ranks(runs: int) -> None:
    for run in range(runs):
        port, pipes, agents = free_port(), [], []
        for number in range(len(WORKERS)):
            ours, theirs = multiprocessing.Pipe()
            agents.append(start_process(run_agent, port, f"unequal-{run}", number, theirs, daemon=False))
            theirs.close()
            pipes.append(ours)
        try:
            answers: dict[int, int] = {}
            for number, pipe in enumerate(pipes):
                assert pipe.poll(HANGS_S), f"run {run}: agent {number} gives no result"
                failed, values = pipe.recv()
                assert not failed
                answers |= values
            assert answers == dict.fromkeys(range(sum(WORKERS)), SUM)
            for agent in agents:
                agent.join(HANGS_S)
                assert agent.exitcode == 0
        finally:
            for agent in agents:
                agent.kill()
