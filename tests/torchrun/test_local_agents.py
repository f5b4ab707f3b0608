"""The situations of torch's own tests of its agent, with our backends: `is_host` is given, whatever the backend is.

What those tests ask of the agent alone (its watchdog, its health check, how it shuts down) is not asked here.  The soak plays
the situations with torch's backends too: what is expected of ours is what theirs do.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.waiting import until
from tests.torchrun.local_agents import BACKENDS, HANGS_S, LIBRARIES, LocalAgents
from tests.torchrun.local_workers import (
    Role,
    answer,
    ask,
    fail_once_and_sum_ranks,
    fail_with_odd_rank,
    leave_a_mark,
    sum_ranks,
    tell_environment,
    tell_role,
    wait_for_a_mark,
    wait_for_company_and_sum_ranks,
    work_until_an_agent_is_killed_and_sum_ranks,
)

IN_THE_ENVIRONMENT = {
    *("RANK", "LOCAL_RANK", "ROLE_RANK", "ROLE_NAME", "GROUP_RANK"),
    *("LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE", "WORLD_SIZE", "GROUP_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"),
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE"),
}


def each_backend(quick: str = "", backends: tuple[str, ...] = BACKENDS) -> pytest.MarkDecorator:
    """One of ours in every run of the suite, the others and torch's in the soak: each situation takes seconds."""
    kinds = [(library, backend) for library in LIBRARIES for backend in backends]
    return pytest.mark.parametrize(
        ("library", "backend"),
        [
            pytest.param(*kind, id="-".join(kind), marks=[] if kind == ("ours", quick) else [pytest.mark.soak])
            for kind in kinds
        ],
    )


# Worlds ---------------------------------------------------------------------------------------------------------------


@each_backend(quick="etcd")
def test_workers_of_two_agents_sum_their_ranks(library: str, backend: str) -> None:
    with LocalAgents(backend, 2, 2, library) as agents:
        agents.start(sum_ranks, workers=2)
        agents.start(sum_ranks)
        assert agents.results() == dict.fromkeys(range(3), 0 + 1 + 2)


@each_backend(quick="static", backends=("static",))
def test_workers_of_two_agents_with_given_ranks_sum_theirs(library: str, backend: str) -> None:
    with LocalAgents(backend, 2, 2, library) as agents:
        agents.start(sum_ranks, workers=2)
        agents.start(sum_ranks)
        assert agents.results() == dict.fromkeys(range(3), 0 + 1 + 2)


@each_backend(quick="c10d")
def test_workers_find_their_place_in_the_environment_and_return_what_they_made(library: str, backend: str) -> None:
    with LocalAgents(backend, 1, 1, library) as agents:
        agents.start(tell_environment, workers=2, max_restarts=7)
        results = agents.results()
    assert sorted(results) == [0, 1]
    for rank, (environment, tensor) in results.items():
        assert set(environment) >= IN_THE_ENVIRONMENT
        assert (environment["RANK"], environment["WORLD_SIZE"]) == (str(rank), "2")
        assert environment["TORCHELASTIC_RUN_ID"] == agents.run_id
        assert environment["TORCHELASTIC_MAX_RESTARTS"] == "7"
        assert tensor.tolist() == [0, 1, 2]
    assert len({environment["MASTER_PORT"] for environment, _ in results.values()}) == 1


@each_backend()
def test_the_place_of_the_master_may_be_given(library: str, backend: str) -> None:
    with LocalAgents(backend, 1, 1, library) as agents:
        agents.start(tell_environment, master_addr="elsewhere", master_port=42)
        ((environment, _),) = agents.results().values()
    assert (environment["MASTER_ADDR"], environment["MASTER_PORT"]) == ("elsewhere", "42")


@each_backend(quick="etcd-v2")
def test_each_role_has_ranks_of_its_own(library: str, backend: str) -> None:
    sizes = {"leads": (1,), "trains": (1, 2), "serves": (2,)}
    with LocalAgents(backend, 4, 4, library) as agents:
        for role, numbers in sizes.items():
            for workers in numbers:
                agents.start(tell_role, workers=workers, role=role)
        results = agents.results()
    roles: list[Role] = list(results.values())
    assert [role.rank for role in roles] == list(results)
    assert sorted(results) == list(range(6))
    assert {role.size for role in roles} == {6}
    for name, numbers in sizes.items():
        mine = [role for role in roles if role.name == name]
        assert sorted(role.role_rank for role in mine) == list(range(sum(numbers)))
        assert {role.role_size for role in mine} == {sum(numbers)}
    for agent in range(4):
        mine = [role for role in roles if role.agent_rank == agent]
        # An agent's workers have consecutive ranks, among all and in their role.
        for ranks in ([role.rank for role in mine], [role.role_rank for role in mine]):
            assert sorted(ranks) == list(range(min(ranks), max(ranks) + 1))


@each_backend()
def test_workers_call_each_other(library: str, backend: str) -> None:
    with LocalAgents(backend, 2, 2, library) as agents:
        agents.start(ask, "hello", role="asks")
        agents.start(answer, role="answers")
        assert sorted(agents.results().values()) == ["", "HELLO"]


# Failures -------------------------------------------------------------------------------------------------------------


@each_backend(quick="etcd-v2")
@pytest.mark.parametrize("failing", [1, pytest.param(0, marks=pytest.mark.soak)])
def test_workers_are_restarted_when_one_of_them_fails(library: str, backend: str, failing: int, tmp_path: Path) -> None:
    mark = tmp_path / "has failed"
    with LocalAgents(backend, 2, 2, library) as agents:
        for _ in range(2):
            agents.start(fail_once_and_sum_ranks, failing, str(mark))
        assert agents.results() == dict.fromkeys(range(2), 0 + 1)
    assert mark.exists()


@each_backend(quick="c10d")
def test_workers_that_always_fail_end_the_run_and_say_why(library: str, backend: str) -> None:
    with LocalAgents(backend, 1, 1, library) as agents:
        agents.start(fail_with_odd_rank, workers=2, max_restarts=1)
        (outcome,) = agents.outcomes()
    assert (outcome.failed, outcome.restarts_left, list(outcome.failures)) == (True, 0, [1])
    assert "it fails always" in outcome.failures[1]


# Agents that come and go ----------------------------------------------------------------------------------------------


@each_backend(quick="c10d")
def test_a_second_agent_is_let_in(library: str, backend: str, tmp_path: Path) -> None:
    mark = tmp_path / "is alone"
    with LocalAgents(backend, 1, 2, library) as agents:
        agents.start(wait_for_company_and_sum_ranks, str(mark))
        until(mark.exists, "the first agent's worker runs alone", within_s=HANGS_S)
        agents.start(wait_for_company_and_sum_ranks, str(mark))
        assert agents.results() == dict.fromkeys(range(2), 0 + 1)


@each_backend(quick="etcd-v2")
def test_an_agent_that_is_killed_at_once_is_replaced(library: str, backend: str) -> None:
    with LocalAgents(backend, 2, 2, library) as agents:
        for _ in range(2):
            agents.start(sum_ranks, workers=2)
        agents.kill(1)
        agents.start(sum_ranks, workers=2)
        assert agents.results() == dict.fromkeys(range(4), 0 + 1 + 2 + 3)


@each_backend(quick="c10d")
def test_an_agent_that_is_killed_at_work_is_replaced(library: str, backend: str, tmp_path: Path) -> None:
    with LocalAgents(backend, 2, 2, library) as agents:
        for _ in range(2):
            agents.start(work_until_an_agent_is_killed_and_sum_ranks, str(tmp_path))
        until(lambda: len(list(tmp_path.iterdir())) == 2, "both workers are at work", within_s=HANGS_S)
        agents.kill(1)
        (tmp_path / "killed").touch()
        agents.start(work_until_an_agent_is_killed_and_sum_ranks, str(tmp_path))
        assert agents.results() == dict.fromkeys(range(2), 0 + 1)


@each_backend()
def test_who_is_left_of_two_goes_on_alone(library: str, backend: str) -> None:
    with LocalAgents(backend, 1, 2, library) as agents:
        for _ in range(2):
            agents.start(sum_ranks, workers=2)
        agents.kill(1)
        assert agents.results() == dict.fromkeys(range(2), 0 + 1)


# The end --------------------------------------------------------------------------------------------------------------


@each_backend(quick="etcd")
def test_an_agent_that_is_done_waits_for_the_others(library: str, backend: str, tmp_path: Path) -> None:
    done, may_end = tmp_path / "done", tmp_path / "may end"
    with LocalAgents(backend, 2, 2, library) as agents:
        agents.start(leave_a_mark, str(done))
        agents.start(wait_for_a_mark, str(may_end))
        until(done.exists, "the first worker has ended", within_s=HANGS_S)
        may_end.touch()
        assert agents.results() == {0: 0, 1: 1}


@each_backend()
def test_an_agent_that_does_not_wait_for_the_others_does_not_fail_them(
    library: str, backend: str, tmp_path: Path
) -> None:
    may_end = tmp_path / "may end"
    with LocalAgents(backend, 2, 2, library) as agents:
        agents.start(leave_a_mark, str(tmp_path / "done"), exit_barrier_timeout=0)
        agents.start(wait_for_a_mark, str(may_end), exit_barrier_timeout=0)
        first = agents.outcome(0)
        may_end.touch()
        second = agents.outcome(1)
        agents.end()
    assert not first.failed
    assert not second.failed
    assert first.values | second.values == {0: 0, 1: 1}


@each_backend()
def test_an_exit_barrier_that_fails_does_not_fail_the_run(library: str, backend: str) -> None:
    with LocalAgents(backend, 1, 1, library) as agents:
        agents.start(sum_ranks, barrier_fails=True)
        assert agents.results() == {0: 0}
