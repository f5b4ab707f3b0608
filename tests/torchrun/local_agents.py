"""Torch's own agents on our backends, each in a process of its own, as torch's tests make them; and what their workers do."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import threading
import uuid
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.support.etcd_servers import shared
from tests.support.node_processes import free_port
from tests.support.remote_stores import start_process

BACKENDS = ("c10d", "etcd", "etcd-v2")

HANGS_S = 180
"""A run takes a few seconds; on a busy machine a multiple of that.  Where it hangs, the stacks are printed."""


# What a worker does ---------------------------------------------------------------------------------------------------


def sum_ranks() -> int:
    """The sum of all ranks."""
    import torch
    import torch.distributed as dist

    dist.init_process_group(backend="gloo")
    mine = torch.tensor(dist.get_rank())
    dist.all_reduce(mine)
    dist.destroy_process_group()
    return int(mine.item())


def fail_once_and_sum_ranks(failing: int, mark: str) -> int:
    """One rank fails when it is started for the first time, and leaves a mark."""
    if int(os.environ["RANK"]) == failing and not Path(mark).exists():
        Path(mark).touch()
        raise RuntimeError("it fails once")
    return sum_ranks()


def wait_for_company_and_sum_ranks(mark: str) -> int:
    """A worker that is alone leaves a mark, and runs until it is stopped."""
    if os.environ["WORLD_SIZE"] == "1":
        Path(mark).touch()
        threading.Event().wait(HANGS_S)
    return sum_ranks()


# Agents ---------------------------------------------------------------------------------------------------------------


def run_agent(
    place: dict[str, Any], workers: int, entrypoint: Callable[..., int], args: tuple[object, ...], pipe: Connection
) -> None:
    """One agent: send whether its workers failed, and what they returned."""
    from torch.distributed.elastic.agent.server.api import WorkerSpec
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

    from rallypoint.elastic.api import RendezvousParameters
    from rallypoint.elastic.registry import get_rendezvous_handler

    faulthandler.dump_traceback_later(HANGS_S - 10, exit=False)
    handler: Any = get_rendezvous_handler(RendezvousParameters(**place, local_addr="127.0.0.1"))
    spec = WorkerSpec(
        role="sum",
        local_world_size=workers,
        entrypoint=entrypoint,
        args=args,
        rdzv_handler=handler,
        monitor_interval=0.1,
    )
    result = LocalElasticAgent(spec, logs_specs=DefaultLogsSpecs(), start_method="spawn").run()
    pipe.send((result.is_failed(), dict(result.return_values)))
    handler.shutdown()


class LocalAgents:
    """The agents of one run; the first is told that it is the host, the others that they are not, whatever the backend."""

    def __init__(self, backend: str, min_nodes: int, max_nodes: int) -> None:
        endpoint = shared().endpoint if backend.startswith("etcd") else f"127.0.0.1:{free_port()}"
        self._place = {
            "backend": backend,
            "endpoint": endpoint,
            "run_id": f"agents-{uuid.uuid4().hex}",
            "min_nodes": min_nodes,
            "max_nodes": max_nodes,
            "last_call_timeout": 1,
        }
        self._agents: list[tuple[BaseProcess, Connection]] = []

    def __enter__(self) -> LocalAgents:
        return self

    def __exit__(self, *_: object) -> None:
        for process, _pipe in self._agents:
            process.kill()

    def start(self, entrypoint: Callable[..., int], *args: object, workers: int = 1) -> None:
        """One more agent, whose workers call this."""
        ours, theirs = multiprocessing.Pipe()
        place = {**self._place, "is_host": not self._agents}
        process = start_process(run_agent, place, workers, entrypoint, args, theirs, daemon=False)
        theirs.close()
        self._agents.append((process, ours))

    def results(self) -> dict[int, int]:
        """What the workers of all ranks returned, when all agents have ended well."""
        answers: dict[int, int] = {}
        for number, (_, pipe) in enumerate(self._agents):
            assert pipe.poll(HANGS_S), f"agent {number} gives no result"
            failed, values = pipe.recv()
            assert not failed, f"the workers of agent {number} failed"
            answers |= values
        for process, _ in self._agents:
            process.join(HANGS_S)
            assert process.exitcode == 0
        return answers
