"""What a scheduler's environment tells of this job: how many launchers there are, which one this is, where they meet.

Each scheduler is a function from the environment to a `Placement`, or None where this is not its job.  What a placement
has is a default: options that the user gives come first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from rallypoint.launcher import hostlist

__all__ = ["Placement", "SchedulerError", "detect"]

PORTS = range(20_000, 32_000)
"""Below the ports that systems give to outgoing connections, so that the meeting point finds its own free."""

HOSTS = Path("/etc/hosts")

Environment = Mapping[str, str]


class SchedulerError(ValueError):
    """The environment is that of a scheduler, and the command cannot work in it; the sentence says what to do."""


class Placement(msgspec.Struct, frozen=True):
    """This launcher's place in its job; None and empty where the scheduler does not tell.

    `ends_at` is when the job's time is over, in seconds since 1970; `restarts` is how often the scheduler requeued it.
    `shares_host`: there are several launchers on a host, one for each worker.
    """

    scheduler: str
    nnodes: int | None = None
    node_index: int | None = None
    endpoint: str = ""
    run_id: str = ""
    nproc: int | None = None
    ends_at: float | None = None
    restarts: int = 0
    taken: tuple[str, ...] = ()
    shares_host: bool = False

    def in_words(self) -> str:
        """What was taken from where, in one line."""
        parts = [
            f"node {self.node_index}" if self.node_index is not None else "",
            f"of {self.nnodes}" if self.nnodes is not None else "",
            f"run {self.run_id}" if self.run_id else "",
            f"meeting at {self.endpoint}" if self.endpoint else "",
            f"restarted {self.restarts} times" if self.restarts else "",
            f"until {_local_time(self.ends_at)}" if self.ends_at else "",
        ]
        return f"{self.scheduler}: {', '.join(filter(None, parts))} (from {', '.join(self.taken)})"


def detect(environment: Environment, hostname: str) -> Placement | None:
    """The placement that the innermost scheduler tells of; None where there is none."""
    for look in _SCHEDULERS:
        placement = look(_Reading(environment), hostname)
        if placement is not None:
            return placement
    return None


class _Reading:
    """The environment, and what was read of it."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self.taken: list[str] = []

    def text(self, *names: str) -> str:
        for name in names:
            if value := self._environment.get(name, "").strip():
                if name not in self.taken:
                    self.taken.append(name)
                return value
        return ""

    def number(self, *names: str) -> int | None:
        text = self.text(*names)
        if not text:
            return None
        if not re.fullmatch(r"\d{1,18}", text):
            raise SchedulerError(f"The environment variable {self.taken[-1]} is {text!r}, but should be a number.")
        return int(text)


def _slurm(reading: _Reading, hostname: str) -> Placement | None:
    """A step of Slurm: every task of it is a launcher."""
    job = reading.number("SLURM_JOB_ID", "SLURM_JOBID")
    if job is None:
        return None
    tasks = reading.number("SLURM_STEP_NUM_TASKS")
    if tasks is None:
        nodes = reading.number("SLURM_JOB_NUM_NODES", "SLURM_NNODES") or 1
        if nodes > 1:
            raise SchedulerError(
                f"This Slurm job has {nodes} nodes, and the command runs on the first of them only: start it on all of "
                f"them by `srun rallypoint run …`, or say --nnodes 1."
            )
        return _in_slurm_job(Placement("Slurm", 1, 0, "", f"slurm-{job}"), reading)
    step = reading.number("SLURM_STEP_ID", "SLURM_STEPID") or 0
    index = reading.number("SLURM_PROCID")
    nodes = reading.number("SLURM_STEP_NUM_NODES") or tasks
    hosts = reading.text("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    endpoint = f"{hostlist.first(hosts)}:{_port(job * 7 + step)}" if hosts else ""
    # With a task for every worker, each launcher starts one; with one for every node, the options tell.
    shares = tasks > nodes
    nproc = 1 if shares else None
    placement = Placement("Slurm", tasks, index, endpoint, f"slurm-{job}.{step}", nproc, shares_host=shares)
    return _in_slurm_job(placement, reading)


def _in_slurm_job(placement: Placement, reading: _Reading) -> Placement:
    ends_at, restarts = reading.number("SLURM_JOB_END_TIME"), reading.number("SLURM_RESTART_COUNT") or 0
    return msgspec.structs.replace(placement, ends_at=ends_at, restarts=restarts, taken=tuple(reading.taken))


def _kubernetes(reading: _Reading, hostname: str) -> Placement | None:
    """A pod of an Indexed Job or a JobSet: its host name ends in its index, and the others' names are alike."""
    if not reading.text("KUBERNETES_SERVICE_HOST"):
        return None
    index = reading.number("JOB_COMPLETION_INDEX")
    if index is None:
        return None
    jobset, restarts = reading.text("JOBSET_NAME"), reading.number("JOBSET_RESTART_ATTEMPT") or 0
    pod, _, domain = _full_name(hostname).partition(".")
    stem, dash, number = pod.rpartition("-")
    endpoint = ""
    if dash and number == str(index):
        first = f"{stem}-0" + (f".{domain}" if domain else f".{jobset}" if jobset else "")
        endpoint = f"{first}:{_port(0)}"
    run_id = jobset or (stem if dash and number == str(index) else "")
    return Placement("Kubernetes", None, index, endpoint, run_id, restarts=restarts, taken=tuple(reading.taken))


def _full_name(hostname: str) -> str:
    """The name of a pod with its service and namespace: a pod knows its short name, and the kubelet writes both here."""
    with suppress(OSError):
        for line in HOSTS.read_text(encoding="utf-8", errors="replace").splitlines():
            names = line.partition("#")[0].split()[1:]
            if hostname in names and names[0].startswith(f"{hostname}."):
                return names[0]
    return hostname


def _open_mpi(reading: _Reading, hostname: str) -> Placement | None:
    """A process of mpirun: each of them is a launcher of one worker, and mpirun's own machine is the meeting point."""
    size = reading.number("OMPI_COMM_WORLD_SIZE")
    if size is None:
        return None
    index, local = reading.number("OMPI_COMM_WORLD_RANK"), reading.number("OMPI_COMM_WORLD_LOCAL_SIZE") or 1
    uri = reading.text("OMPI_MCA_orte_hnp_uri", "PMIX_SERVER_URI2", "PMIX_SERVER_URI21")
    match = re.search(r"^(\d+)?[^;]*;tcp4?://\[?([^,:\]]+)", uri)
    job = int(match[1] or 0) if match else 0
    endpoint = f"{match[2]}:{_port(job)}" if match else ""
    run_id, taken = f"ompi-{job}" if job else "", tuple(reading.taken)
    nproc = 1 if local > 1 else None
    return Placement("Open MPI", size, index, endpoint, run_id, nproc, taken=taken, shares_host=local > 1)


def _pmi(reading: _Reading, hostname: str) -> Placement | None:
    """A process of a PMI launcher (MPICH, Intel MPI): it tells how many there are, not where."""
    size, index = reading.number("PMI_SIZE"), reading.number("PMI_RANK")
    if size is None or index is None:
        return None
    local = reading.number("MPI_LOCALNRANKS") or 1
    nproc = 1 if local > 1 else None
    return Placement("PMI", size, index, nproc=nproc, taken=tuple(reading.taken), shares_host=local > 1)


_SCHEDULERS: tuple[Callable[[_Reading, str], Placement | None], ...] = (_open_mpi, _slurm, _kubernetes, _pmi)


def _local_time(moment: float) -> str:
    """A moment as the clock of this machine shows it."""
    return datetime.fromtimestamp(moment, timezone.utc).astimezone().strftime("%Y-%m-%d %H:%M")


def _port(number: int) -> int:
    """A port that all launchers of a job find by its number, and that jobs on one machine rarely share."""
    return PORTS[number % len(PORTS)]
