"""Data-parallel training that survives: a small model on gloo, a checkpoint every few steps, one line of JSON a step.

One machine, two terminals as two nodes (add `--nnodes 1:2` to let it go on with one):

    torchrun --nnodes 2 --rdzv-backend rallypoint --rdzv-endpoint localhost:29400 --rdzv-id demo --max-restarts 10 \
        examples/train.py --checkpoint /tmp/demo.pt

Several machines: the same on each, with the address of one of them as the endpoint and a checkpoint on a shared disk.
Where a host has several interfaces, GLOO_SOCKET_IFNAME names the one for the workers.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

EXAMPLES = 240  # divides by every small number of ranks, so that the loss does not depend on how many there are


def main() -> None:
    """Train until all steps are done, or somebody makes the stop file."""
    options = arguments()
    tell("started")
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    inputs = torch.randn(EXAMPLES, 16)
    targets = torch.tanh(inputs @ torch.randn(16, 1))
    mine = slice(rank, None, world_size)
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=options.learning_rate)
    first = resume(options.checkpoint, model) if rank == 0 else 0
    first = from_rank_0(first)
    tell("training", rank=rank, world_size=world_size, step=first)
    parallel = DistributedDataParallel(model)
    pause = threading.Event()
    for step in range(first, options.steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(parallel(inputs[mine]), targets[mine])
        loss.backward()
        optimizer.step()
        # Everybody learns the loss of all, and whether rank 0 has seen the stop file.
        shared = torch.tensor([loss.item() / world_size, float(rank == 0 and options.stop_file.exists())])
        dist.all_reduce(shared)
        tell("step", step=step, loss=shared[0].item(), rank=rank, world_size=world_size)
        stop = bool(shared[1]) or step + 1 == options.steps
        if rank == 0 and (stop or (step + 1) % options.every == 0):
            save(options.checkpoint, step + 1, model)
        if stop:
            break
        pause.wait(options.pause_s)
    dist.barrier()
    tell("done", rank=rank, world_size=world_size)
    dist.destroy_process_group()


def resume(file: Path, model: nn.Module) -> int:
    """Take up where the last checkpoint was made.  Rank 0 reads it; the others get its parameters with the model."""
    if not file.exists():
        return 0
    state = torch.load(file, weights_only=True)
    model.load_state_dict(state["model"])
    return int(state["step"])


def save(file: Path, step: int, model: nn.Module) -> None:
    """Written beside and renamed, so that whoever reads sees one checkpoint or the next, never half of one.

    A rank 0 that was paused and is no longer part of the world may wake up here: it does not undo what the others did.
    """
    if file.exists() and torch.load(file, weights_only=True)["step"] >= step:
        return
    beside = file.with_name(f"{file.name}.{os.getpid()}")
    torch.save({"step": step, "model": model.state_dict()}, beside)
    beside.replace(file)


def from_rank_0(number: int) -> int:
    """Let everybody have rank 0's number."""
    shared = torch.tensor([number])
    dist.broadcast(shared, 0)
    return int(shared)


def tell(event: str, **details: Any) -> None:
    """One line for people and programs."""
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    master = f"{os.environ.get('MASTER_ADDR')} {os.environ.get('MASTER_PORT')}"
    print(
        json.dumps({"event": event, **details, "pid": os.getpid(), "restarts": restarts, "master": master}), flush=True
    )


def arguments() -> argparse.Namespace:
    """What may be chosen."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--checkpoint", type=Path, required=True, help="the file to resume from and to write")
    parser.add_argument("--steps", type=int, default=200, help="how many steps there are in all")
    parser.add_argument("--every", type=int, default=10, help="steps from one checkpoint to the next")
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--pause-s", type=float, default=0.05, help="seconds between two steps")
    parser.add_argument("--stop-file", type=Path, default=Path("/nonexistent"), help="end when this file exists")
    return parser.parse_args()


if __name__ == "__main__":
    main()
