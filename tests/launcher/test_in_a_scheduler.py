"""Launchers in the environment of a scheduler, started as it would."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading

import pytest

from tests.launcher.conftest import Launch
from tests.support.waiting import PATIENCE_S

SHOW = "import os; print(*(os.environ[name] for name in ('RANK', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'GROUP_RANK')), "
_jobs = itertools.count(os.getpid() * 10)


def step(tasks: int, nodes: int) -> list[dict[str, str]]:
    """The environments of the tasks of a Slurm step on this machine."""
    job = str(next(_jobs))
    common = {
        "SLURM_JOB_ID": job,
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": str(tasks),
        "SLURM_STEP_NUM_NODES": str(nodes),
        "SLURM_STEP_NODELIST": "127.0.0.1",
    }
    return [{**common, "SLURM_PROCID": str(task)} for task in range(tasks)]


def output_of(launchers: list[subprocess.Popen[str]]) -> tuple[list[str], list[str]]:
    hung = threading.Timer(PATIENCE_S, abort, (launchers,))
    hung.start()
    told = [launcher.communicate() for launcher in launchers]
    hung.cancel()
    assert [launcher.returncode for launcher in launchers] == [0] * len(launchers), told
    return [out.partition("] ")[2].strip() for out, _ in told], [err for _, err in told]


def abort(launchers: list[subprocess.Popen[str]]) -> None:
    """End those that hang; each tells where its threads stood."""
    for launcher in launchers:
        if launcher.poll() is None:
            launcher.send_signal(signal.SIGABRT)


def test_srun_with_a_task_for_every_node_needs_no_options(launch: Launch) -> None:
    show = (sys.executable, "-c", f"{SHOW}sep='/')")
    out, err = output_of([launch("--", *show, **environment) for environment in step(2, 2)])
    assert out == ["0/0/1/0", "1/0/1/1"], "ranks follow the numbers of the tasks"
    assert "rallypoint: Slurm: node 1, of 2, run slurm-" in err[1]
    assert "(from SLURM_JOB_ID, SLURM_STEP_NUM_TASKS, " in err[1]


@pytest.mark.parametrize(
    ("devices", "places"),
    [
        ("0,1", ["0/0/2", "1/1/2"]),
        # `--gpus-per-task 1`: each task sees one GPU, which is its device 0.
        ("0", ["0/0/1", "1/0/1"]),
    ],
)
def test_several_tasks_on_a_host_are_one_row_of_local_ranks_unless_each_has_its_own_gpus(
    launch: Launch, devices: str, places: list[str]
) -> None:
    show = (sys.executable, "-c", f"{SHOW}sep='/')")
    tasks = step(2, 1)
    out, _ = output_of([launch("--", *show, **task, CUDA_VISIBLE_DEVICES=devices) for task in tasks])
    assert [line.rpartition("/")[0] for line in out] == places


def test_several_tasks_on_a_host_share_devices_and_cores(launch: Launch) -> None:
    program = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], sorted(os.sched_getaffinity(0)))"
    by_gpu = [
        launch("--pin", "gpu", "--", sys.executable, "-c", program, **task, CUDA_VISIBLE_DEVICES="4,7")
        for task in step(2, 1)
    ]
    assert [line.split()[0] for line in output_of(by_gpu)[0]] == ["4", "7"]
    by_core = [
        launch("--pin", "cpu", "--", sys.executable, "-c", program, **task, CUDA_VISIBLE_DEVICES="")
        for task in step(2, 1)
    ]
    half = len(os.sched_getaffinity(0)) // 2 or 1
    cores = sorted(os.sched_getaffinity(0))
    shares = [cores[:half], cores[half : 2 * half] or cores[:half]]
    assert output_of(by_core)[0] == [str(share) for share in shares]
