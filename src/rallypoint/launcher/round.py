"""One round on one node: its workers, from the place in the world to the proof that nothing of them is left."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from rallypoint import wording
from rallypoint.client.member import Member
from rallypoint.errors import RendezvousError
from rallypoint.launcher.memory import oom_kills
from rallypoint.launcher.output import OutputRouter, Stream
from rallypoint.launcher.pinning import Machine, cores_of, device_of, usable_cores, visible_devices
from rallypoint.launcher.places import Places, Told, places_of
from rallypoint.launcher.plan import Plan
from rallypoint.launcher.processes import ProcessGuard, Survivor, WorkerEnded
from rallypoint.launcher.worker_env import WorkerPlace, worker_environment
from rallypoint.messages.notices import Placed
from rallypoint.stores.errors import StoreError
from rallypoint.verdict import LARGEST, Failure, Verdict, shortened

__all__ = ["Round", "RoundChange"]

DRAIN_S = 2.0
"""How long output is awaited after the last worker ended; a process that was left behind may keep it open."""


TAIL_S = 0.5
"""How long the last lines of a worker that failed are awaited."""
REPORT_BYTES = 48 * 1024
"""What all failures of a node may take in one message."""
NOTICE_S = 1.0
"""How much longer than its heartbeat a peer is given to be lost; and how long the round's store has to answer."""
STOPPED = "launcher/stopped"
"""The key under which a node says that it was asked to stop."""
_GONE = re.compile(r" (was lost|withdrew|was evicted)\b")
"""A world ends for other reasons too: its members join again after a failure.  A server tells why in words only."""


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
    ended: WorkerEnded | None = None
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

    def start(self, tell: Callable[[RoundChange], None], say: Callable[[str], None], check: Callable[[], None]) -> None:
        """Agree with the other nodes on ranks, say so, and start the workers; `check` is called before each, and may raise."""
        threading.Thread(target=self._watch, args=(tell,), name="rallypoint-watch", daemon=True).start()
        places = self._places()
        say(self._in_words(places[0].world_size))
        self._make_log_folder()
        for number, place in enumerate(places):
            check()
            self._start_worker(place, number)

    def ended(self, ended: WorkerEnded, *, stopped: bool = False) -> bool:
        """Note that a worker has ended; False where it is not one of this round."""
        worker = self._workers.get(ended.pid)
        if worker is None or worker.ended is not None:
            return False
        worker.ended, worker.stopped = ended, stopped
        at, after_loss = time.monotonic(), self.is_over
        if ended.exit_code != 0 and not stopped:
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

    def announce_stop(self, asked_by: str) -> None:
        """Tell the others that this node was asked to stop: their workers may fail long before it has left."""

        def announce() -> None:
            with suppress(RendezvousError, StoreError, OSError):
                self._member.store(self._placed).set(
                    STOPPED, f"{self._member.view.node.name} was stopped by {asked_by}"
                )

        if self._placed.size > 1:
            threading.Thread(target=announce, name="rallypoint-announce", daemon=True).start()

    def peer_gone(self) -> str:
        """Which peer was going when workers of this node failed, in words; it may take a while until that is known."""
        if self._placed.size == 1:
            return ""
        with suppress(RendezvousError, StoreError, OSError):
            store = self._member.store(self._placed).open(timedelta(seconds=NOTICE_S))
            if store.check([STOPPED]):
                return store.get(STOPPED).decode("utf-8", "replace")
        known_by = self.failures[0].at + self._member.view.settings.heartbeat_timeout_s + NOTICE_S
        if not self.wait_until_over(max(known_by - time.monotonic(), 0.0)):
            return ""
        why = self._member.why_over(self._placed).removesuffix("; join again")
        return why if _GONE.search(why) else ""

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
        placed, plan, store = self._placed, self._plan, self._member.store(self._placed)
        cores = usable_cores()
        coordinator = self._coordinator() if placed.rank == 0 else None
        own = Told(
            plan.nproc, plan.options["role"], plan.host, ",".join(map(str, cores)) if plan.host else "", coordinator
        )
        store.set(f"launcher/{placed.rank}", msgspec.json.encode(own))
        answers = store.multi_get([f"launcher/{rank}" for rank in range(placed.size)])
        told = [msgspec.json.decode(answer, type=Told) for answer in answers]
        assert told[0].coordinator is not None, "node 0 has one"
        places = places_of(told, placed.rank)
        self._peer_list = self._peers(told)
        self._peers_file.write_text(json.dumps(self._peer_list))
        self._pinned = _Pinned(plan, places, cores)
        return [
            WorkerPlace(
                run_id=plan.run_id,
                round=placed.round,
                fence=f"{placed.incarnation}/{placed.round}/{placed.seal_id}",
                rank=places.first_rank + number,
                world_size=places.world_size,
                local_rank=places.first_local_rank + number,
                local_world_size=places.local_world_size,
                group_rank=placed.rank,
                group_world_size=placed.size,
                store=(store.host, store.port),
                store_secret=store.secret,
                coordinator=told[0].coordinator,
                peers_file=str(self._peers_file),
                role=plan.options["role"],
                role_rank=places.first_role_rank + number,
                role_world_size=places.role_world_size,
                restarts=self._restarts,
                max_restarts=plan.options["max_restarts"],
                devices=self._pinned.device(number),
            )
            for number in range(plan.nproc)
        ]

    def _in_words(self, workers: int) -> str:
        """The round in one line."""
        placed, plan = self._placed, self._plan
        count = f"{plan.nproc} of {workers} workers" if placed.size > 1 else wording.count_of(plan.nproc, "worker")
        line = f"round {placed.round}: this node is {placed.rank} of {placed.size}, with {count}"
        if placed.size > 1:
            line += f": {wording.names((peer['name'] for peer in self._peer_list), placed.size)}"
        room = plan.max_nodes - placed.size
        return f"{line}; {wording.nodes(room)} more may come" if room else line

    def _peers(self, told: list[Told]) -> list[dict[str, Any]]:
        return [
            {"rank": peer.rank, "name": peer.name, "address": peer.address, "workers": told[peer.rank].workers}
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

    def _start_worker(self, place: WorkerPlace, number: int) -> None:
        environment = worker_environment(os.environ, place, self._plan.templates)
        opened = [self._output.open(stream) for stream in self._streams(place, number)]
        try:
            pid = self._guard.start(
                self._plan.path,
                self._plan.arguments,
                environment,
                opened[0][0],
                opened[1][0],
                self._pinned.cores(number),
            )
        finally:
            for descriptor, _ in opened:
                os.close(descriptor)
        self._workers[pid] = _Worker(place.rank, place.local_rank, pid, [pipe for _, pipe in opened])

    def _streams(self, place: WorkerPlace, number: int) -> list[Stream]:
        """Standard output and error of a worker: where each goes."""
        options = self._plan.options
        prefix = f"[{place.rank}] " if place.world_size > 1 else ""
        folder: Path | None = options["log_dir"]
        filters = ((options["show_ranks"], place.rank), (options["local_ranks_filter"], place.local_rank))
        shown = all(ranks is None or rank in ranks for ranks, rank in filters)
        streams = []
        for bit, name in ((1, "stdout"), (2, "stderr")):
            to_file = _has(options["redirects"], number, bit)
            to_both = _has(options["tee"], number, bit)
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


class _Pinned:
    """What each worker of this node has for itself in a round; by its number on this node."""

    def __init__(self, plan: Plan, places: Places, cores: list[int]) -> None:
        self._pin, self._cores, self._machine = plan.options["pin"], cores, Machine()
        self._devices = visible_devices(os.environ, self._machine) if self._pin in ("gpu", "numa") else []
        # Launchers that were given cores of their own share them among their own workers only.
        together = places.shares_cores or not plan.host
        self._first, self._count = (places.first_local_rank, places.local_world_size) if together else (0, plan.nproc)
        self._first_local_rank = places.first_local_rank

    def device(self, number: int) -> str | None:
        """The GPU that it sees; None where it sees all."""
        return device_of(self._first_local_rank + number, self._devices) if self._pin == "gpu" else None

    def cores(self, number: int) -> list[int]:
        """The cores that it runs on; empty for all."""
        return cores_of(self._pin, self._first + number, self._count, self._cores, self._devices, self._machine)


def _has(streams: dict[int, int] | int, local_rank: int, bit: int) -> bool:
    return bool((streams if isinstance(streams, int) else streams.get(local_rank, 0)) & bit)


def _point_latest(folder: Path, name: str) -> None:
    """Let `latest` name the newest round."""
    link, fresh = folder / "latest", folder / f".latest-{socket.gethostname()}-{os.getpid()}"
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(name)
    fresh.replace(link)
