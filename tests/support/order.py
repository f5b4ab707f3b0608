"""How tests are given out to several workers: what takes long comes first, so that none is left with it at the end.

Tests of a group follow each other on one worker.  (Marks of `xdist_group` are not used: xdist 3.8 does not heed them where
pytest is newer than 9.1.)
"""

from __future__ import annotations

import importlib
from typing import Any

import pytest

LONG = (
    "tests/simulation/test_campaign.py",
    "tests/torchrun/",
    "tests/conformance/",
    "tests/launcher/test_programs.py",
    "tests/project/test_fuzz.py",
    "tests/etcd_v3/",
    "tests/faults/",
    "tests/etcd_v2/",
    "tests/cli/",
    "tests/etcd_client/",
    "tests/simulation/",
    "tests/stores/test_f",  # files and forks
)


def place(item: pytest.Item) -> int:
    """Where a test stands among the others; tests with the same place stay as they were collected."""
    return next((number for number, start in enumerate(LONG) if item.nodeid.startswith(start)), len(LONG))


def group(nodeid: str) -> str:
    """The tests that one worker runs one after another; most tests are a group of their own."""
    if nodeid.startswith("tests/conformance/"):  # one backend, whose server and processes are used again
        return nodeid.partition("[")[2] or nodeid
    if nodeid.startswith("tests/torchrun/"):  # each job needs all the cores
        return "tests/torchrun/"
    if nodeid.startswith("tests/simulation/test_campaign.py"):  # nothing waits on a worker that simulates for minutes
        return "tests/simulation/test_campaign.py"
    return nodeid


def scheduler(config: pytest.Config, log: object) -> Any:
    """Gives out whole groups, in the order of `place`."""
    config.option.loadscopereorder = False
    made = importlib.import_module("xdist.scheduler").LoadScopeScheduling(config, log)
    made._split_scope = group
    return made
