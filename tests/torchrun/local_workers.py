"""What the workers of torch's own agents do; each function is a worker's whole program."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any, NamedTuple

LATEST_S = 180.0
"""After this a worker that waits for its test ends by itself."""


class Role(NamedTuple):
    """Where a worker stands: among all, among those of its role, and by its agent."""

    name: str
    rank: int
    role_rank: int
    role_size: int
    agent_rank: int
    size: int


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
        _wait_for(None)
    return sum_ranks()


def work_until_an_agent_is_killed_and_sum_ranks(folder: str) -> int:
    """A worker that was started before the kill leaves a mark, and runs until it is stopped or its agent is gone."""
    if not (Path(folder) / "killed").exists():
        (Path(folder) / f"rank {os.environ['RANK']}").touch()
        _wait_for(None)
    return sum_ranks()


def fail_with_odd_rank() -> int:
    """Every second rank fails, each time."""
    if int(os.environ["RANK"]) % 2:
        raise RuntimeError("it fails always")
    return int(os.environ["RANK"])


def tell_environment() -> tuple[dict[str, str], Any]:
    """What the agent put into the environment, and something that is no plain text: a tensor."""
    import torch

    return dict(os.environ), torch.arange(3)


def tell_role() -> Role:
    """Where this worker stands."""
    names = ("RANK", "ROLE_RANK", "ROLE_WORLD_SIZE", "GROUP_RANK", "WORLD_SIZE")
    return Role(os.environ["ROLE_NAME"], *(int(os.environ[name]) for name in names))


def leave_a_mark(mark: str) -> int:
    """End at once."""
    Path(mark).touch()
    return int(os.environ["RANK"])


def wait_for_a_mark(mark: str) -> int:
    """End when there is a mark."""
    _wait_for(Path(mark))
    return int(os.environ["RANK"])


def ask(question: str) -> str:
    """Let the worker of the other agent answer, by torch's RPC."""
    rpc = _join_rpc("asks")
    answer: str = rpc.rpc_sync(to="answers", func=str.upper, args=(question,))
    rpc.shutdown()
    return answer


def answer() -> str:
    """Answer what is asked."""
    _join_rpc("answers").shutdown()
    return ""


def _join_rpc(name: str) -> Any:
    os.environ["TP_SOCKET_IFNAME"] = "lo"  # otherwise it looks up the name of this machine, which may have none
    from torch.distributed import rpc

    rpc.init_rpc(name, rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    return rpc


def _wait_for(mark: Path | None) -> None:
    """Until the mark is there, or the agent is gone: who kills an agent leaves its workers behind."""
    agent, pause = os.getppid(), threading.Event()
    left_s = LATEST_S
    while left_s > 0 and os.getppid() == agent and not (mark is not None and mark.exists()):
        pause.wait(0.05)
        left_s -= 0.05
