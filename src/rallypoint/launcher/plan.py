"""What a launcher is going to do on this node, made of its options and of what the scheduler tells; with the reasons."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rallypoint.launcher.options import NESTED, NOT_NEEDED, OptionSources
from rallypoint.launcher.pinning import Machine, check_pin, usable_cores, visible_devices
from rallypoint.launcher.schedulers import Placement, detect
from rallypoint.launcher.worker_env import Template

__all__ = ["Plan", "make_plan"]


class Plan(msgspec.Struct, frozen=True):
    """Everything that is known before anything is started."""

    path: str
    arguments: tuple[str, ...]
    min_nodes: int
    max_nodes: int
    nproc: int
    endpoint: str
    run_id: str
    config: Mapping[str, str]
    options: Mapping[str, Any]
    placement: Placement | None
    because: tuple[str, ...]
    """Where each choice came from, a line each."""
    host: str = ""
    """The name of this host, where several launchers are on it and number their workers together."""

    notices: tuple[str, ...] = ()
    """What is said before anything starts: what was taken from where, and what is other than one might expect."""

    @property
    def wanted_rank(self) -> int | None:
        """The rank that this node would like to have: what the user says, or else the scheduler's number."""
        given: int | None = self.options["node_rank"]
        return given if given is not None or self.placement is None else self.placement.node_index

    @property
    def templates(self) -> tuple[Template, ...]:
        """The variables that the user asks for."""
        return tuple(self.options["env"])

    def lines(self) -> list[str]:
        """The plan for people."""
        nodes = str(self.min_nodes) if self.min_nodes == self.max_nodes else f"{self.min_nodes} to {self.max_nodes}"
        what = " ".join(self.arguments)
        who = "1 node meets" if nodes == "1" else f"{nodes} nodes meet"
        return [
            f"{who} at {self.endpoint or 'a free port of this machine'} as run {self.run_id!r}",
            f"this node starts {self.nproc} x {self.path}: {what}",
            *self.because,
            *self.notices,
        ]


def make_plan(
    command: Sequence[str],
    sources: OptionSources,
    environment: Mapping[str, str],
    hostname: str,
    *,
    is_literal: bool = False,
) -> Plan:
    """The plan of this node; ValueError with a sentence where nothing should be started.

    `is_literal`: the command stood behind `--`, and is run as it is.
    """
    because = [f"{name.replace('_', '-')}: from {why}" for name, why in sources.why.items()]
    placement = None
    is_alone = sources["standalone"] or (sources.is_given("nnodes") and sources["nnodes"] == (1, 1))
    if not is_alone and NESTED not in environment:
        placement = detect(environment, hostname)
    notices = [f"--{name.replace('_', '-')}: {why}" for name, why in NOT_NEEDED.items() if sources.is_given(name)]
    if placement is not None:
        notices.append(placement.in_words())
    nodes = sources["nnodes"] or _as_bounds(placement.nnodes if placement else None)
    if nodes is None:
        if placement is not None:
            raise ValueError(f"{placement.scheduler} does not tell how many nodes there are: say it by --nnodes N")
        nodes = (1, 1)
    endpoint, config = _endpoint(sources, nodes, placement)
    run_id = sources["run_id"] or (placement.run_id if placement else "") or "run"
    _check_rank(sources, nodes)
    path, arguments = resolve_command(command, sources, environment, is_literal=is_literal)
    workers = _workers(sources, placement, environment)
    if sources["pin"]:
        notices.append(check_pin(sources["pin"], workers, environment, Machine()))
    plan = Plan(
        path,
        tuple(arguments),
        nodes[0],
        nodes[1],
        workers,
        endpoint,
        run_id,
        config,
        {name: sources[name] for name in ("env", *_KEPT)},
        placement,
        tuple(because),
        _shared_host(placement, workers, environment, hostname),
        tuple(notices),
    )
    return _with_log_dir(plan, sources)


_KEPT = (
    "node_rank",
    "local_addr",
    "role",
    "max_restarts",
    "restart_window",
    "no_progress",
    "grace",
    "log_dir",
    "redirects",
    "tee",
    "show_ranks",
    "local_ranks_filter",
    "pin",
)


def _as_bounds(nodes: int | None) -> tuple[int, int] | None:
    return None if nodes is None else (nodes, nodes)


_SCHEMES = {"c10d": "c10d://", "etcd-v3": "etcd://", "etcd-v2": "etcd-v2://", "etcd": "etcd-v2://"}
"""Of torchrun's backends; its `etcd` and `etcd-v2` both need etcd's API v2."""


def _endpoint(
    sources: OptionSources, nodes: tuple[int, int], placement: Placement | None
) -> tuple[str, dict[str, str]]:
    """Where to meet, and the options of the rendezvous; an empty endpoint stands for a free port of this machine."""
    config = dict(sources["rdzv_conf"])
    if sources["standalone"]:
        if nodes[1] > 1:
            raise ValueError(
                f"--standalone is one node, and --nnodes says {nodes[0]}:{nodes[1]}: leave one of them out"
            )
        return "", config
    if sources["rdzv"] and (sources["rdzv_endpoint"] or sources["rdzv_backend"]):
        raise ValueError("--rdzv says where to meet, and so does --rdzv-backend or --rdzv-endpoint: give one of them")
    backend, endpoint = sources["rdzv_backend"], sources["rdzv"] or sources["rdzv_endpoint"]
    if backend == "static" or (sources["master_addr"] and not endpoint):
        endpoint = endpoint or f"{sources['master_addr'] or 'localhost'}:{sources['master_port']}"
        if nodes[1] > 1 and sources["node_rank"] is None:
            raise ValueError("--rdzv-backend static takes ranks as they are given: say --node-rank N on each node")
    elif not endpoint and placement is not None:
        endpoint = placement.endpoint
    if not endpoint:
        if nodes[1] > 1:
            raise ValueError("several nodes need a place to meet: say --rdzv HOST:PORT, the same on each of them")
        return "", config
    return f"{_SCHEMES.get(backend, '')}{endpoint}", config


def _check_rank(sources: OptionSources, nodes: tuple[int, int]) -> None:
    rank = sources["node_rank"]
    if rank is not None and rank >= nodes[1]:
        raise ValueError(
            f"--node-rank {rank} does not exist where there are {nodes[1]} nodes: the last is {nodes[1] - 1}"
        )


def _shared_host(placement: Placement | None, workers: int, environment: Mapping[str, str], hostname: str) -> str:
    """Launchers that a scheduler started beside each other number their workers together, unless each has its own GPUs."""
    if placement is None or not placement.shares_host:
        return ""
    has_its_own = 0 < len(visible_devices(environment, Machine())) <= workers and "CUDA_VISIBLE_DEVICES" in environment
    return "" if has_its_own else hostname


def _workers(sources: OptionSources, placement: Placement | None, environment: Mapping[str, str]) -> int:
    wanted = sources["nproc_per_node"]
    if wanted is None:
        return (placement.nproc if placement else None) or 1
    if isinstance(wanted, int):
        return wanted
    gpus = len(visible_devices(environment, Machine()))
    if wanted == "gpu" and not gpus:
        raise ValueError("--nproc-per-node gpu: this machine has no GPU that can be seen")
    if wanted == "cpu" or not gpus:
        return len(usable_cores())
    return gpus


def resolve_command(
    command: Sequence[str], sources: OptionSources, environment: Mapping[str, str], *, is_literal: bool
) -> tuple[str, list[str]]:
    """The program and its arguments; ValueError for one that does not exist or cannot be executed."""
    if not command:
        raise ValueError("there is no command: write it behind --, as in `rallypoint run -- python train.py`")
    program, *rest = command
    if sources["module"] and not is_literal:
        return sys.executable, [sys.executable, "-u", "-m", program, *rest]
    is_script = program.endswith(".py") and not sources["no_python"] and not is_literal
    if is_script:
        if not Path(program).is_file():
            raise ValueError(f"the script {program!r} does not exist (this folder is {Path.cwd()})")
        return sys.executable, [sys.executable, "-u", program, *rest]
    path = shutil.which(program, path=environment.get("PATH"))
    if path is None:
        raise ValueError(_why_not(program))
    return path, [program, *rest]


def _why_not(program: str) -> str:
    if "/" not in program:
        advice = f"; for a file in this folder write ./{program}" if Path(program).is_file() else ""
        return f"there is no command {program!r} on the PATH{advice}"
    if Path(program).is_dir():
        return f"{program!r} is a folder, not a command"
    if Path(program).exists():
        return f"{program!r} cannot be executed: chmod +x {program}"
    return f"the command {program!r} does not exist"


def _with_log_dir(plan: Plan, sources: OptionSources) -> Plan:
    """A log folder that can be written; what is to go to files goes to a folder of its own where none is named."""
    folder = plan.options["log_dir"]
    if folder is not None:
        _check_log_dir(folder, leaves_it=not sources["dry_run"])
    elif (sources["redirects"] or sources["tee"]) and not sources["dry_run"]:
        folder = Path(tempfile.mkdtemp(prefix="rallypoint-logs-"))
        notice = f"the logs are in {folder}: --log-dir names another folder"
        return msgspec.structs.replace(
            plan, options={**plan.options, "log_dir": folder}, notices=(*plan.notices, notice)
        )
    return plan


def _check_log_dir(folder: Path, *, leaves_it: bool) -> None:
    try:
        missing = [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".rallypoint-{os.getpid()}"
        probe.touch()
        probe.unlink()
        for each in () if leaves_it else missing:
            each.rmdir()
    except OSError as exc:
        raise ValueError(f"--log-dir {folder} cannot be written: {exc.strerror or exc}") from exc
