"""What the environments of schedulers tell, as each of them sets it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rallypoint.launcher import schedulers
from rallypoint.launcher.schedulers import SchedulerError, detect

SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "4",
    "SLURM_STEP_NODELIST": "gpu[07-10]",
    "SLURM_PROCID": "2",
    "SLURM_RESTART_COUNT": "1",
    "SLURM_JOB_END_TIME": "1800000000",
}


def test_srun_tells_everything() -> None:
    found = detect(SLURM, "gpu09")
    assert found is not None
    assert (found.nnodes, found.node_index, found.run_id, found.nproc) == (4, 2, "slurm-4711.0", None)
    assert (found.endpoint.partition(":")[0], found.restarts, found.ends_at) == ("gpu07", 1, 1.8e9)
    assert found.in_words().startswith("Slurm: node 2, of 4, run slurm-4711.0, meeting at gpu07:")
    assert "SLURM_STEP_NODELIST" in found.in_words()
    assert "restarted 1 times, until 2027-01-1" in found.in_words()


def test_every_task_of_a_job_finds_the_same_meeting_point() -> None:
    found = {detect({**SLURM, "SLURM_PROCID": str(n)}, "x").endpoint for n in range(4)}  # type: ignore[union-attr]
    assert len(found) == 1


def test_two_jobs_on_one_machine_meet_at_different_ports() -> None:
    one, other = detect(SLURM, "x"), detect({**SLURM, "SLURM_JOB_ID": "4712"}, "x")
    assert one is not None
    assert other is not None
    assert one.endpoint != other.endpoint


def test_with_a_task_for_every_worker_each_launcher_starts_one() -> None:
    found = detect({**SLURM, "SLURM_STEP_NUM_TASKS": "32"}, "gpu09")
    assert found is not None
    assert (found.nnodes, found.nproc, found.shares_host) == (32, 1, True)


def test_a_batch_script_on_several_nodes_is_told_to_use_srun() -> None:
    with pytest.raises(SchedulerError, match=r"has 3 nodes.*`srun rallypoint run"):
        detect({"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "3", "SLURM_PROCID": "0"}, "x")


def test_a_batch_script_on_one_node_is_a_job_of_one() -> None:
    found = detect({"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "1"}, "x")
    assert found is not None
    assert (found.nnodes, found.node_index, found.endpoint) == (1, 0, "")


@pytest.mark.parametrize(
    ("hostname", "more", "endpoint", "run_id"),
    [
        ("train-3.workers", {}, "train-0.workers:20000", "train"),
        ("big-w-0-3", {"JOBSET_NAME": "big"}, "big-w-0-0.big:20000", "big"),
        ("something", {}, "", ""),
    ],
)
def test_a_pod_of_an_indexed_job(hostname: str, more: dict[str, str], endpoint: str, run_id: str) -> None:
    found = detect({"KUBERNETES_SERVICE_HOST": "x", "JOB_COMPLETION_INDEX": "3", **more}, hostname)
    assert found is not None
    assert (found.node_index, found.endpoint, found.run_id, found.nnodes) == (3, endpoint, run_id, None)


def test_a_pod_finds_its_service_in_the_hosts_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = tmp_path / "hosts"
    monkeypatch.setattr(schedulers, "HOSTS", hosts)
    pod = {"KUBERNETES_SERVICE_HOST": "x", "JOB_COMPLETION_INDEX": "3"}
    kubelets = "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n"
    for last_line, first in [
        ("10.0.0.4\ttrain-3.workers.ns.svc.cluster.local\ttrain-3\n", "train-0.workers.ns.svc.cluster.local"),
        ("10.0.0.4\ttrain-3\n", "train-0"),
        ("10.0.0.4\tother.workers.ns.svc.cluster.local\ttrain-3\n", "train-0"),
        ("# 10.0.0.4\ttrain-3.workers\ttrain-3\n", "train-0"),
    ]:
        hosts.write_text(kubelets + last_line)
        found = detect(pod, "train-3")
        assert found is not None
        assert (found.endpoint, found.run_id) == (f"{first}:20000", "train")
    hosts.unlink()
    found = detect(pod, "train-3")
    assert found is not None
    assert found.endpoint == "train-0:20000"


def test_open_mpi_names_its_own_machine_as_the_meeting_point() -> None:
    uri = "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911"
    environment = {"OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_RANK": "5", "OMPI_MCA_orte_hnp_uri": uri}
    found = detect(environment, "x")
    assert found is not None
    assert (found.nnodes, found.node_index, found.endpoint.partition(":")[0]) == (8, 5, "10.96.0.1")


@pytest.mark.parametrize(
    "environment",
    [
        {"OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"},
        {"PMI_SIZE": "8", "PMI_RANK": "5", "MPI_LOCALNRANKS": "4"},
    ],
)
def test_processes_of_mpi_on_one_host_are_a_worker_each(environment: dict[str, str]) -> None:
    found = detect(environment, "x")
    assert found is not None
    assert (found.nnodes, found.node_index, found.nproc, found.shares_host) == (8, 5, 1, True)


def test_pmi_tells_how_many_and_not_where() -> None:
    found = detect({"PMI_SIZE": "4", "PMI_RANK": "1"}, "x")
    assert found is not None
    assert (found.scheduler, found.nnodes, found.node_index, found.endpoint) == ("PMI", 4, 1, "")


@pytest.mark.parametrize("environment", [{}, {"KUBERNETES_SERVICE_HOST": "x"}, {"PATH": "/bin"}])
def test_elsewhere_there_is_nothing_to_tell(environment: dict[str, Any]) -> None:
    assert detect(environment, "laptop") is None


def test_a_variable_that_is_no_number_is_shown() -> None:
    with pytest.raises(SchedulerError, match="SLURM_PROCID is 'two', but should be a number"):
        detect({**SLURM, "SLURM_PROCID": "two"}, "x")
