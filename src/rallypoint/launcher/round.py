"""One round on one node: its workers, from the place in the world to the proof that nothing of them is left."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from rallypoint.client.member import Member
from rallypoint.launcher.output import OutputRouter, Stream
from rallypoint.launcher.plan import Plan
from rallypoint.launcher.processes import Ended, ProcessGuard, Survivor
from rallypoint.launcher.worker_env import WorkerPlace, first_rank, worker_environment
from rallypoint.messages.notices import Placed
from rallypoint.verdict import LARGEST, Failure, Verdict, shortened

__all__ = ["Round", "RoundChange"]

DRAIN_S = 2.0
"""How long output is awaited after the last worker ended; a process that was left behind may keep it open."""


TAIL_S = 0.5
"""How long the last lines of a worker that failed are awaited."""
REPORT_BYTES = 48 * 1024
"""What all failures of a node may take in one message."""


class RoundChange(msgspec.Struct, frozen=True):
    """The world of a round is over, or a newcomer waits; `is_closed`: so is the run."""

    seal_id: str
    why: str
    is_closed: bool = False


class _Worker(msgspec.Struct):
    """One worker of this node."""

    rank: int
    local_rank: int
    pid: int
    pipes: list[Any]
    ended: Ended | None = None
    stopped: bool = False


class Round:
    """The workers of this node in one sealed world."""

    def __init__(
        self, plan: Plan, member: Member, placed: Placed, guard: ProcessGuard, output: OutputRouter, restarts: int
    ) -> None:
        self._plan, self._member, self._placed = plan, member, placed
        self._guard, self._output, self._restarts = guard, output, restarts
        self._workers: dict[int, _Worker] = {}
        self._peers_file = guard.folder / f"peers-{placed.round}.json"
        self._held: list[socket.socket] = []
        self._is_watched = True
        self._oom_kills = oom_kills()
        self.failures: list[Failure] = []

    def __enter__(self) -> Round:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_watched = False
        for held in self._held:
            held.close()
        self._peers_file.unlink(missing_ok=True)

    @property
    def seal_id(self) -> str:
        """The world."""
        return self._placed.seal_id

    @property
    def number(self) -> int:
        """The number of the round."""
        return self._placed.round

    @property
    def in_words(self) -> str:
        """The round in one line."""
        placed = self._placed
        return f"round {placed.round}: this node is {placed.rank} of {placed.size}, with {self._plan.nproc} workers"

    @property
    def running(self) -> bool:
        """Whether a worker has not ended yet."""
        return any(worker.ended is None for worker in self._workers.values())

    @property
    def is_done(self) -> bool:
        """Whether all workers have ended well."""
        return bool(self._workers) and not self.running and not self.failures

    @property
    def is_over(self) -> bool:
        """Whether the world is no longer this node's."""
        return self.wait_until_over(0.0)

    def wait_until_over(self, timeout_s: float) -> bool:
        """Wait until the world is no longer this node's; False where the time passes first."""
        return self._member.wait_until_over(self._placed, timeout_s)

    def start(self, tell: Callable[[RoundChange], None], check: Callable[[], None]) -> None:
        """Agree with the other nodes on ranks, and start the workers; `check` is called before each, and may raise."""
        threading.Thread(target=self._watch, args=(tell,), name="rallypoint-watch", daemon=True).start()
        places = self._places()
        self._make_log_folder()
        for place in places:
            check()
            self._start_worker(place)

    def ended(self, ended: Ended, *, stopped: bool = False) -> bool:
        """Note that a worker has ended; False where it is not one of this round."""
        worker = self._workers.get(ended.pid)
        if worker is None or worker.ended is not None:
            return False
        worker.ended, worker.stopped = ended, stopped
        at, after_loss = time.monotonic(), self.is_over
        if ended.code != 0 and not stopped:
            self._output.drain(worker.pipes, TAIL_S)
            self.failures.append(
                Failure(
                    worker.rank,
                    self._member.view.node.name,
                    ended.exit_code,
                    ended.signal,
                    at=at,
                    after_loss=after_loss,
                    out_of_memory=ended.signal == signal.SIGKILL and oom_kills() > self._oom_kills,
                    tail=tuple(line[:4096] for line in worker.pipes[-1].tail()),
                )
            )
        return True

    def verdict(self, timeout_s: float) -> Verdict | None:
        """Report how workers of this node failed; which of all nodes' workers failed first, None where nobody can tell."""
        limit = min(REPORT_BYTES // max(len(self.failures), 1), LARGEST)
        reported = [shortened(failure, limit) for failure in self.failures[:64]]
        return self._member.verdict(self._placed, reported, timeout_s)

    def signal(self, number: int) -> None:
        """Signal every worker, and what it started in its process group."""
        for worker in self._workers.values():
            self._guard.signal(worker.pid, number)

    @property
    def has_groups(self) -> bool:
        """Whether anything is left in the process group of a worker."""
        return any(self._guard.signal(worker.pid, 0) for worker in self._workers.values())

    def sweep(self) -> list[Survivor]:
        """Kill whatever is left of the workers; what cannot be killed.  After that their output is complete."""
        left = self._guard.sweep()
        for worker in self._workers.values():
            self._output.drain(worker.pipes, DRAIN_S)
        return left

    def _watch(self, tell: Callable[[RoundChange], None]) -> None:
        """Tell when it is time to begin anew, or when the run is closed."""
        member = self._member

        def is_due(_: object) -> bool:
            return (
                not self._is_watched
                or member.waiting() > 0
                or member.is_closed()
                or member.wait_until_over(self._placed, 0.0)
            )

        while not member.wait(is_due, None):
            pass
        if self._is_watched:
            why = member.why_over(self._placed) if member.wait_until_over(self._placed, 0.0) else "a newcomer waits"
            tell(RoundChange(self.seal_id, why, member.is_closed()))

    def _places(self) -> list[WorkerPlace]:
        """Where each worker of this node stands: the nodes tell each other how many workers they have."""
        placed, nproc, store = self._placed, self._plan.nproc, self._member.store(self._placed)
        coordinator = self._coordinator() if placed.rank == 0 else None
        store.set(f"launcher/{placed.rank}", json.dumps([nproc, coordinator]))
        told = [json.loads(store.get(f"launcher/{rank}")) for rank in range(placed.size)]
        sizes = [count for count, _ in told]
        first, world_size = first_rank(sizes, placed.rank), sum(sizes)
        self._peers_file.write_text(json.dumps(self._peers(sizes)))
        options = self._plan.options
        return [
            WorkerPlace(
                run_id=self._plan.run_id,
                round=placed.round,
                fence=f"{placed.incarnation}/{placed.round}/{placed.seal_id}",
                rank=first + local_rank,
                world_size=world_size,
                local_rank=local_rank,
                local_world_size=nproc,
                group_rank=placed.rank,
                group_world_size=placed.size,
                store=(store.host, store.port),
                coordinator=tuple(told[0][1]),
                peers_file=str(self._peers_file),
                role=options["role"],
                restarts=self._restarts,
                max_restarts=options["max_restarts"],
                devices=_device(local_rank) if options["pin"] == "gpu" else None,
            )
            for local_rank in range(nproc)
        ]

    def _peers(self, sizes: list[int]) -> list[dict[str, Any]]:
        return [
            {"rank": peer.rank, "name": peer.name, "address": peer.address, "workers": sizes[peer.rank]}
            for peer in self._member.peers()
        ]

    def _coordinator(self) -> tuple[str, int]:
        """A port for JAX's coordinator, held so that nobody else gets it; its server may bind it beside us."""
        address = self._member.view.node.address or "127.0.0.1"
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        held = socket.socket(family, socket.SOCK_STREAM)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind((address, 0))
        self._held.append(held)
        return address, held.getsockname()[1]

    def _start_worker(self, place: WorkerPlace) -> None:
        environment = worker_environment(os.environ, place, self._plan.templates)
        opened = [self._output.open(stream) for stream in self._streams(place)]
        try:
            pid = self._guard.start(
                self._plan.path, self._plan.arguments, environment, opened[0][0], opened[1][0], self._cpus(place)
            )
        finally:
            for descriptor, _ in opened:
                os.close(descriptor)
        self._workers[pid] = _Worker(place.rank, place.local_rank, pid, [pipe for _, pipe in opened])

    def _streams(self, place: WorkerPlace) -> list[Stream]:
        """Standard output and error of a worker: where each goes."""
        options = self._plan.options
        prefix = f"[{place.rank}] " if place.world_size > 1 else ""
        folder: Path | None = options["log_dir"]
        shown = options["show_ranks"] is None or place.rank in options["show_ranks"]
        streams = []
        for bit, name in ((1, "stdout"), (2, "stderr")):
            to_file = _has(options["redirects"], place.local_rank, bit)
            to_both = _has(options["tee"], place.local_rank, bit)
            path = folder / self._log_name / f"rank-{place.rank}.{name}.log" if folder is not None else None
            streams.append(Stream(place.rank, bit == 2, shown and (to_both or not to_file), path, prefix))
        return streams

    @property
    def _log_name(self) -> str:
        """The folder of this round: another run, or another life of this one, has others."""
        return f"round-{self._placed.round}-{self._placed.incarnation[:8]}"

    def _make_log_folder(self) -> None:
        folder: Path | None = self._plan.options["log_dir"]
        if folder is not None:
            (folder / self._log_name).mkdir(parents=True, exist_ok=True)
            with suppress(OSError):  # launchers of several machines may do this at once
                _point_latest(folder, self._log_name)

    def _cpus(self, place: WorkerPlace) -> list[int]:
        """The cores of a worker, where it is to have its own."""
        if self._plan.options["pin"] not in ("cpu", "numa"):
            return []
        cores = sorted(os.sched_getaffinity(0))
        share = max(len(cores) // place.local_world_size, 1)
        start = place.local_rank * share % len(cores)
        return cores[start : start + share]


def _device(local_rank: int) -> str:
    """The accelerator of a local rank, of those that this node may use."""
    listed = [device.strip() for device in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if device.strip()]
    return listed[local_rank % len(listed)] if listed else str(local_rank)


def oom_kills() -> int:
    """How many processes of this control group were killed because memory ran out; 0 where the kernel does not tell."""
    try:
        group = Path("/proc/self/cgroup").read_text().rpartition("::")[2].strip()
        events = Path(f"/sys/fs/cgroup{group}/memory.events").read_text().split()
        return int(events[events.index("oom_kill") + 1])
    except (OSError, ValueError, IndexError):
        return 0


def _has(streams: dict[int, int] | int, local_rank: int, bit: int) -> bool:
    return bool((streams if isinstance(streams, int) else streams.get(local_rank, 0)) & bit)


def _point_latest(folder: Path, name: str) -> None:
    """Let `latest` name the newest round."""
    link, fresh = folder / "latest", folder / f".latest-{socket.gethostname()}-{os.getpid()}"
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(name)
    fresh.replace(link)
