"""What a launcher is going to do: where each value comes from, and what becomes of it."""

from __future__ import annotations

import os
from typing import Any

import pytest

from rallypoint.launcher.options import OPTIONS, OptionSources
from rallypoint.launcher.plan import Plan, make_plan

SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_NUM_NODES": "5",
    "SLURM_STEP_NODELIST": "gpu[1-5]",
    "SLURM_PROCID": "1",
}


def plan(environment: dict[str, str] | None = None, file: dict[str, Any] | None = None, **given: str) -> Plan:
    values = {option.name: given.get(option.name) for option in OPTIONS}
    surroundings = {"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": "", **(environment or {})}
    sources = OptionSources(values, surroundings, file or {}, "run.toml")
    return make_plan(["true"], sources, surroundings, "gpu2", is_literal=True)


def test_a_value_comes_from_the_first_that_says_something() -> None:
    """Each of these is taken away in turn; what is left below it counts then."""
    places = {"RALLYPOINT_NNODES": "2:3", "PET_NNODES": "3", **SLURM}
    file = {"nnodes": "4"}
    found = plan(places, file, nnodes="1:2", rdzv="h:1")
    assert ((found.min_nodes, found.max_nodes), found.because[0]) == ((1, 2), "nnodes: from --nnodes")
    found = plan(places, file, rdzv="h:1")
    assert ((found.min_nodes, found.max_nodes), found.because[0]) == ((2, 3), "nnodes: from RALLYPOINT_NNODES")
    del places["RALLYPOINT_NNODES"]
    assert (plan(places, file).min_nodes, plan(places, file).because[0]) == (3, "nnodes: from PET_NNODES")
    del places["PET_NNODES"]
    assert (plan(places, file).min_nodes, plan(places, file).because[0]) == (4, "nnodes: from nnodes in run.toml")
    assert (plan(places).min_nodes, plan(places).because) == (5, ())
    assert any("of 5, run slurm-7.0" in line and "SLURM_STEP_NUM_TASKS" in line for line in plan(places).lines())
    assert plan().min_nodes == 1


def test_a_variable_that_is_empty_says_nothing() -> None:
    assert plan({"RALLYPOINT_NNODES": "", "PET_NPROC_PER_NODE": "2"}).nproc == 2


@pytest.mark.parametrize(
    ("backend", "endpoint"),
    [
        ("rallypoint", "h:1"),
        ("static", "h:1"),
        ("c10d", "c10d://h:1"),
        ("etcd-v3", "etcd://h:1"),
        ("etcd-v2", "etcd-v2://h:1"),
        ("etcd", "etcd-v2://h:1"),
    ],
)
def test_a_backend_of_torchrun_is_an_endpoint_here(backend: str, endpoint: str) -> None:
    assert plan(nnodes="2", node_rank="1", rdzv_backend=backend, rdzv_endpoint="h:1").endpoint == endpoint


@pytest.mark.parametrize(
    ("nproc", "devices", "workers"),
    [
        ("auto", "", len(os.sched_getaffinity(0))),
        ("auto", "3,5", 2),
        ("gpu", "3,5", 2),
        ("cpu", "3,5,6", len(os.sched_getaffinity(0))),
        ("7", "3,5", 7),
    ],
)
def test_how_many_workers_there_are(nproc: str, devices: str, workers: int) -> None:
    assert plan({"CUDA_VISIBLE_DEVICES": devices}, nproc_per_node=nproc).nproc == workers
