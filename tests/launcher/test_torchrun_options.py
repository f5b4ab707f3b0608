"""Every option of the torchrun that is installed: taken, or named in the documents as one that is not."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed.argparse_util import check_env, env
from torch.distributed.run import get_args_parser

from rallypoint.launcher.options import NOT_NEEDED, OPTIONS
from tests.launcher.conftest import Launch
from tests.support.waiting import PATIENCE_S

DOCUMENT = Path(__file__).parents[2] / "docs" / "launcher.md"
TORCHS = {flag: action.dest for action in get_args_parser()._actions for flag in action.option_strings}


@pytest.mark.parametrize("flag", sorted(set(TORCHS) - {"-h", "--help"}))
def test_an_option_of_torchrun_is_taken_or_said_not_to_be(flag: str) -> None:
    ours = {spelling for option in OPTIONS for spelling in option.flags}
    refused = re.search(r"These options of torchrun are not taken: (.*?)\.\n", DOCUMENT.read_text(), re.DOTALL)
    assert refused is not None
    assert (flag in ours) != (f"`--{TORCHS[flag].replace('_', '-')}`" in refused[1])


@pytest.mark.parametrize(
    "dest", sorted({action.dest for action in get_args_parser()._actions if isinstance(action, (env, check_env))})
)
def test_a_variable_of_torchrun_is_read_where_its_option_is(dest: str) -> None:
    spellings = {flag for flag, its in TORCHS.items() if its == dest}
    variables = {variable for option in OPTIONS if spellings & {*option.flags} for variable in option.variables}
    assert not variables or f"PET_{dest.upper()}" in variables


def test_workers_find_all_that_torchrun_gives_them(launch: Launch) -> None:
    show = ("--no-python", sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))")
    arguments = ("--standalone", "--nproc-per-node", "1", "--max-restarts", "2", "--role", "trainer", *show)
    torchrun = [sys.executable, "-m", "torch.distributed.run", *arguments]
    theirs = json.loads(subprocess.run(torchrun, capture_output=True, text=True, check=True).stdout)
    launcher = launch(*arguments)
    ours = json.loads(launcher.communicate(timeout=PATIENCE_S)[0])
    # Its agent's own: where a worker leaves its exception, which signals the agent heeds, the width of its help.
    assert (
        theirs.keys() - ours.keys()
        == {*("TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE", "COLUMNS", "LINES")} - os.environ.keys()
    )
    others = {name for name in theirs.keys() & ours.keys() if theirs[name] != ours[name]}
    assert others == {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"}


def test_what_is_not_needed_is_said(launch: Launch) -> None:
    given = [word for name in NOT_NEEDED for word in (f"--{name.replace('_', '-')}", "1")]
    launcher = launch(*given, "--", "true")
    _, err = launcher.communicate(timeout=PATIENCE_S)
    assert launcher.returncode == 0
    for name, why in NOT_NEEDED.items():
        assert f"rallypoint: --{name.replace('_', '-')}: {why}" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--no-python", "sh", "-c", "echo $WORLD_SIZE"], ["1"]),
        (["--standalone", "--nproc-per-node", "2", "--no_python", "sh", "-c", "echo $RANK"], ["[0] 0", "[1] 1"]),
        (["-m", "tests.launcher.shows_where_it_is", "--lr", "3"], ["0 of 1 --lr 3"]),
        (["--nproc-per-node", "cpu", "--no-python", "sh", "-c", "echo $WORLD_SIZE"], None),
        (["--nproc-per-node", "gpu", "--no-python", "sh", "-c", "echo $WORLD_SIZE"], ["[0] 3", "[1] 3", "[2] 3"]),
        (["--nproc-per-node", "auto", "--no-python", "sh", "-c", "echo $WORLD_SIZE"], ["[0] 3", "[1] 3", "[2] 3"]),
    ],
)
def test_programs_are_started_as_torchrun_does(launch: Launch, arguments: list[str], said: list[str] | None) -> None:
    launcher = launch(*arguments, CUDA_VISIBLE_DEVICES="0,1,2")
    out, err = launcher.communicate(timeout=PATIENCE_S)
    assert launcher.returncode == 0, err
    cores = len(os.sched_getaffinity(0))
    all_cores = [f"[{rank}] {cores}" for rank in range(cores)] if cores > 1 else ["1"]
    assert sorted(out.splitlines()) == (all_cores if said is None else said)


def test_torch_knows_that_it_was_launched_and_what_it_records_is_printed(launch: Launch) -> None:
    program = """
from torch.distributed import is_torchelastic_launched
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    print(is_torchelastic_launched(), flush=True)
    raise ValueError("loss is nan")

main()
"""
    launcher = launch("--max-restarts", "0", "--", sys.executable, "-c", program, OMP_NUM_THREADS="1")
    out, err = launcher.communicate(timeout=PATIENCE_S)
    assert (launcher.returncode, out) == (1, "True\n")
    assert re.search(r"rank 0 on \S+ failed first: it ended with code 1: ValueError: loss is nan", err), err


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        # The training operator, with an elastic policy.
        (
            {
                "PET_RDZV_BACKEND": "c10d",
                "PET_RDZV_ENDPOINT": "job-worker-0:23456",
                "PET_RDZV_ID": "job",
                "PET_NNODES": "1:2",
                "PET_MAX_RESTARTS": "5",
                "PET_NPROC_PER_NODE": "1",
            },
            "1 to 2 nodes meet at c10d://job-worker-0:23456 as run 'job'",
        ),
        # The trainer of version 2, whose pods are those of a JobSet.
        (
            {
                "PET_NNODES": "2",
                "PET_NPROC_PER_NODE": "auto",
                "PET_NODE_RANK": "1",
                "PET_MASTER_ADDR": "job-node-0-0.job",
                "PET_MASTER_PORT": "29400",
                "KUBERNETES_SERVICE_HOST": "10.0.0.1",
                "JOB_COMPLETION_INDEX": "1",
                "JOBSET_NAME": "job",
            },
            "2 nodes meet at job-node-0-0.job:29400 as run 'job'",
        ),
    ],
)
def test_kubeflow_tells_everything(launch: Launch, environment: dict[str, str], line: str) -> None:
    launcher = launch("--dry-run", "--", "true", **environment)
    out, err = launcher.communicate(timeout=PATIENCE_S)
    assert launcher.returncode == 0, err
    assert line in out
