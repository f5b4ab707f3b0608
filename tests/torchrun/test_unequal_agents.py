"""Torch's own agent on our c10d backend, three of them with two, one and one workers: every run gives its sum, none hangs."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.remote_stores import start_process
from tests.torchrun.local_agents import LocalAgents
from tests.torchrun.local_workers import sum_ranks

WORKERS = (2, 1, 1)
SUM = sum(range(sum(WORKERS)))


def spin() -> None:
    """Keep a core busy until this process is killed, or the one of the test is gone."""
    test = multiprocessing.parent_process()
    assert test is not None
    while test.is_alive():
        sum(range(100_000))


@contextmanager
def load() -> Iterator[None]:
    """As many busy processes as there are cores, so that the agents get half of the machine at most."""
    busy = [start_process(spin) for _ in range(os.cpu_count() or 1)]
    try:
        yield
        assert all(process.is_alive() for process in busy)
    finally:
        for process in busy:
            process.kill()
            process.join()


def run_and_sum(number: int) -> None:
    with LocalAgents("c10d", len(WORKERS), len(WORKERS)) as agents:
        for workers in WORKERS:
            agents.start(sum_ranks, workers=workers)
        assert agents.results() == dict.fromkeys(range(sum(WORKERS)), SUM), f"run {number}"


def test_agents_with_unequal_numbers_of_workers_sum_their_ranks() -> None:
    run_and_sum(1)


@pytest.mark.soak
def test_none_of_200_runs_hangs_on_a_busy_machine() -> None:
    with load():
        for number in range(200):
            run_and_sum(number)
