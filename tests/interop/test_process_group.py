"""A real process group on a store that we serve: gloo finds its peers there, and the sum is right."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection

import pytest

from rallypoint.stores import TcpStore
from tests.support.remote_stores import start_process
from tests.support.store_kinds import SOON, SOON_S


def all_reduce(rank: int, world_size: int, pipe: Connection) -> None:
    """Each brings its rank and 1; all learn the sums."""
    import torch
    import torch.distributed as dist

    assert (dist.get_rank(), dist.get_world_size()) == (rank, world_size)
    tensor = torch.tensor([float(rank), 1.0])
    dist.all_reduce(tensor)
    dist.barrier()
    pipe.send(tensor.tolist())
    pipe.recv()  # all have their sums
    dist.destroy_process_group()


def work_with_a_store(rank: int, world_size: int, port: int, pipe: Connection) -> None:
    """A worker that brings a client of its own."""
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.PrefixStore("job 7", dist.TCPStore("127.0.0.1", port, timeout=SOON))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=SOON)
    all_reduce(rank, world_size, pipe)


def work_by_environment(rank: int, world_size: int, port: int, pipe: Connection) -> None:
    """A worker that finds everything in its environment, as under torchrun: every rank is a client."""
    import torch.distributed as dist

    os.environ.update(
        GLOO_SOCKET_IFNAME="lo",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        RANK=str(rank),
        WORLD_SIZE=str(world_size),
        TORCHELASTIC_USE_AGENT_STORE="True",
    )
    dist.init_process_group("gloo", init_method="env://", timeout=SOON)
    all_reduce(rank, world_size, pipe)


@pytest.mark.parametrize("work", [work_with_a_store, work_by_environment])
@pytest.mark.parametrize("world_size", [2, 3])
def test_gloo_adds_up_on_a_store_of_ours(work: Callable[..., None], world_size: int) -> None:
    with TcpStore("127.0.0.1", 0, is_master=True, timeout=SOON) as master:
        pipes, processes = [], []
        for rank in range(world_size):
            ours, theirs = multiprocessing.Pipe()
            processes.append(start_process(work, rank, world_size, master.port, theirs))
            theirs.close()
            pipes.append(ours)
        sums = []
        for pipe in pipes:
            assert pipe.poll(SOON_S), "a worker has not got its sum"
            sums.append(pipe.recv())
        assert sums == [[sum(range(world_size)), world_size]] * world_size
        assert master.num_keys() > 0
        for pipe, process in zip(pipes, processes, strict=True):
            pipe.send("done")
            process.join(SOON_S)
            assert process.exitcode == 0
