"""Situations of torch's own tests of its agent, with our backends: `is_host` is given, and the workers' sum shows one world."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.waiting import until
from tests.torchrun.local_agents import (
    BACKENDS,
    HANGS_S,
    LocalAgents,
    fail_once_and_sum_ranks,
    sum_ranks,
    wait_for_company_and_sum_ranks,
)


def each_backend(quick: str) -> pytest.MarkDecorator:
    """One of them in every run of the suite, the others in the soak: each situation takes seconds."""
    return pytest.mark.parametrize(
        "backend", [name if name == quick else pytest.param(name, marks=pytest.mark.soak) for name in BACKENDS]
    )


@each_backend(quick="etcd")
def test_workers_of_two_agents_sum_their_ranks(backend: str) -> None:
    with LocalAgents(backend, 2, 2) as agents:
        agents.start(sum_ranks, workers=2)
        agents.start(sum_ranks)
        assert agents.results() == dict.fromkeys(range(3), 0 + 1 + 2)


@each_backend(quick="etcd-v2")
@pytest.mark.parametrize("failing", [1, pytest.param(0, marks=pytest.mark.soak)])
def test_workers_are_restarted_when_one_of_them_fails(backend: str, failing: int, tmp_path: Path) -> None:
    mark = tmp_path / "has failed"
    with LocalAgents(backend, 2, 2) as agents:
        for _ in range(2):
            agents.start(fail_once_and_sum_ranks, failing, str(mark))
        assert agents.results() == dict.fromkeys(range(2), 0 + 1)
    assert mark.exists()


@each_backend(quick="c10d")
def test_a_second_agent_is_let_in(backend: str, tmp_path: Path) -> None:
    mark = tmp_path / "is alone"
    with LocalAgents(backend, 1, 2) as agents:
        agents.start(wait_for_company_and_sum_ranks, str(mark))
        until(mark.exists, "the first agent's worker runs alone", within_s=HANGS_S)
        agents.start(wait_for_company_and_sum_ranks, str(mark))
        assert agents.results() == dict.fromkeys(range(2), 0 + 1)
