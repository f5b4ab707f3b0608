"""Torch's own agents on our backends, each in a process of its own, as torch's tests make them."""

from __future__ import annotations

import faulthandler
import importlib
import multiprocessing
import pickle
import uuid
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple
from unittest.mock import patch

from tests.support.etcd_servers import shared
from tests.support.node_processes import free_port
from tests.support.remote_stores import start_process

BACKENDS = ("c10d", "etcd", "etcd-v2")
LIBRARIES = {"ours": "rallypoint.elastic", "torch's": "torch.distributed.elastic.rendezvous"}

HANGS_S = 180
"""A run takes a few seconds; on a busy machine a multiple of that.  Where it hangs, the stacks are printed."""


class Outcome(NamedTuple):
    """What an agent says when it is done: what its workers returned or why they failed, by their ranks."""

    failed: bool
    values: dict[int, Any]
    failures: dict[int, str]
    restarts_left: int


def run_agent(
    library: str,
    place: dict[str, Any],
    workers: int,
    entrypoint: Callable[..., object],
    args: tuple[object, ...],
    options: dict[str, Any],
    pipe: Connection,
) -> None:
    """One agent: send what came of it."""
    from torch.distributed.elastic.agent.server.api import WorkerSpec
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

    faulthandler.dump_traceback_later(HANGS_S - 10, exit=False)
    parameters = importlib.import_module(f"{library}.api").RendezvousParameters(**place, local_addr="127.0.0.1")
    handler = importlib.import_module(f"{library}.registry").get_rendezvous_handler(parameters)
    barrier_s, barrier_fails = options.pop("exit_barrier_timeout", 300), options.pop("barrier_fails", False)
    spec = WorkerSpec(
        **{"role": "sum", **options},
        local_world_size=workers,
        entrypoint=entrypoint,
        args=args,
        rdzv_handler=handler,
        monitor_interval=0.1,
    )
    agent = LocalElasticAgent(spec, logs_specs=DefaultLogsSpecs(), start_method="spawn", exit_barrier_timeout=barrier_s)
    if barrier_fails:
        with patch("torch.distributed.elastic.utils.store.barrier", side_effect=RuntimeError("it broke")) as barrier:
            result = agent.run()
        barrier.assert_called_once()
    else:
        result = agent.run()
    failures = {rank: str(failure.message) for rank, failure in result.failures.items()}
    outcome = Outcome(result.is_failed(), dict(result.return_values), failures, agent._remaining_restarts)
    # A pipe of torch's would send tensors as memory that is this process's, and gone with it.
    pipe.send_bytes(pickle.dumps(outcome))
    handler.shutdown()


class LocalAgents:
    """The agents of one run; the first is told that it is the host, the others that they are not, whatever the backend."""

    def __init__(self, backend: str, min_nodes: int, max_nodes: int, library: str = "ours") -> None:
        endpoint = shared().endpoint if backend.startswith("etcd") else f"127.0.0.1:{free_port()}"
        self._library = LIBRARIES[library]
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

    @property
    def run_id(self) -> str:
        return str(self._place["run_id"])

    def start(self, entrypoint: Callable[..., object], *args: object, workers: int = 1, **options: Any) -> None:
        """One more agent, whose workers call this; the options are those of its workers and of its exit barrier."""
        ours, theirs = multiprocessing.Pipe()
        place = {**self._place, "is_host": not self._agents}
        if place["backend"] == "static":
            place["rank"] = len(self._agents)
        work = (workers, entrypoint, args, options)
        process = start_process(run_agent, self._library, place, *work, theirs, daemon=False)
        theirs.close()
        self._agents.append((process, ours))

    def kill(self, number: int) -> None:
        """Kill an agent, counted from 0, and forget it."""
        process, _ = self._agents.pop(number)
        process.kill()
        process.join()

    def outcome(self, number: int) -> Outcome:
        """What an agent says when it is done."""
        _, pipe = self._agents[number]
        assert pipe.poll(HANGS_S), f"agent {number} gives no result"
        said: Outcome = pickle.loads(pipe.recv_bytes())  # noqa: S301  # written by run_agent
        return said

    def end(self) -> None:
        """All agents end well, after they have said what came of them."""
        for process, _ in self._agents:
            process.join(HANGS_S)
            assert process.exitcode == 0

    def outcomes(self) -> list[Outcome]:
        """What all say, when all have ended well."""
        said = [self.outcome(number) for number in range(len(self._agents))]
        self.end()
        return said

    def results(self) -> dict[int, Any]:
        """What the workers of all ranks returned, none of which failed."""
        answers: dict[int, Any] = {}
        for number, outcome in enumerate(self.outcomes()):
            assert not outcome.failed, f"the workers of agent {number} failed: {outcome.failures}"
            answers |= outcome.values
        return answers
