"""The measurements of nodes that meet: form a world, lose a member of it, idle in it.

They measure any implementation that `benchmarks.node` knows, and any version of Rallypoint.  A node that fails, or whose
place is wrong, is a RuntimeError; a node that does not answer in time is a TimeoutError.
"""

from __future__ import annotations

import itertools
import json
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.processes import ANSWER_S, Worker, cpu_s

PROCESSES = 4
GIVE_UP_S = 60.0
# The time in which forming a world dies down before idling is measured: two heartbeats.
SETTLE_S = 2.0
IDLE_S = 10.0
READY_S = 300.0

_runs = itertools.count()


class Setup(NamedTuple):
    """Who meets where: `bounds` are the least and the most nodes, `source` is the folder that Rallypoint is imported from."""

    implementation: str
    endpoint: str
    bounds: tuple[int, int]
    options: Mapping[str, Any] = {"last_call_timeout": 1}
    source: Path | None = None


class World(NamedTuple):
    """Processes whose nodes hold a world of a run, and the seconds from the start signal until the last knew its rank."""

    run_id: str
    processes: list[Worker]
    seconds: float


class Regrouped(NamedTuple):
    """Seconds from a member's death until the last survivor was told, and until the last had its place in a new world."""

    told_s: float
    world_s: float


def split(nodes: int, processes: int = PROCESSES) -> list[int]:
    """How many nodes each process has."""
    return [nodes // processes + (number < nodes % processes) for number in range(processes)]


@contextmanager
def formed(setup: Setup, shares: Sequence[int], give_up_s: float = ANSWER_S) -> Iterator[World]:
    """Start processes with so many nodes each, let all nodes join at one instant, and keep the world they form."""
    with ExitStack() as stack:
        run_id = f"bench-{next(_runs)}"
        processes = [stack.enter_context(_start(setup, run_id, share)) for share in shares]
        for process in processes:
            _check_source(setup, process.hear(READY_S))
        began = time.monotonic()
        _tell(processes, "join")
        yield World(run_id, processes, _placed(processes, sum(shares), began, began + give_up_s).world_s)


def form(setup: Setup, shares: Sequence[int], give_up_s: float = ANSWER_S) -> float:
    """Seconds until the last of so many nodes, joining at one instant, has its rank."""
    with formed(setup, shares, give_up_s) as world:
        return world.seconds


def regroup(setup: Setup, *, watch: bool = True, host_dies: bool = False) -> Regrouped:
    """Kill one of four nodes, and wait for the new world of the others; TimeoutError where they never notice.

    The survivors wait until they are told that something changed, or, without `watch`, join at once.  The process that
    hosts the server of the setup is spared, or is the one that dies.
    """

    def victims(world: World) -> list[Worker]:
        host = find_host(setup, world.processes)
        spared = [process for process in world.processes if process is not host]
        if host_dies and host is None:
            raise RuntimeError(f"none of the nodes' processes serves {setup.endpoint}: there is no host to kill")
        return [host] if host_dies and host is not None else spared[-1:]

    return lose(setup, 4, victims, watch=watch)


def lose(
    setup: Setup,
    nodes: int,
    choose: Callable[[World], Sequence[Worker]],
    *,
    watch: bool = True,
    end: Callable[[Worker], None] = Worker.kill,
) -> Regrouped:
    """Kill, or end otherwise, the chosen processes of one node each, and wait for the new world of the others."""
    with formed(setup, [1] * nodes, GIVE_UP_S) as world:
        victims = choose(world)
        survivors = [process for process in world.processes if process not in victims]
        if watch:
            _tell(survivors, f"regroup {GIVE_UP_S}")
        began = time.monotonic()
        for victim in victims:
            end(victim)
        if not watch:
            _tell(survivors, "join")
        return _placed(survivors, len(survivors), began, began + 2 * GIVE_UP_S)


def pause(setup: Setup, nodes: int, choose: Callable[[World], Worker]) -> tuple[Regrouped, float]:
    """Stop a process until the others have a new world; then let it go on: seconds until all of them are in one world."""
    with formed(setup, [1] * nodes, GIVE_UP_S) as world:
        victim = choose(world)
        others = [process for process in world.processes if process is not victim]
        _tell(world.processes, f"regroup {GIVE_UP_S}")
        began = time.monotonic()
        victim.process.send_signal(signal.SIGSTOP)
        without = _placed(others, len(others), began, began + GIVE_UP_S)
        _tell(others, f"regroup {GIVE_UP_S}")
        began = time.monotonic()
        victim.process.send_signal(signal.SIGCONT)
        return without, _placed(world.processes, nodes, began, began + GIVE_UP_S).world_s


def idle(setup: Setup, shares: Sequence[int], server: int | None = None) -> float:
    """The share of a core that the server process needs for nodes that do nothing; without a server, their host's."""
    with formed(setup, shares, GIVE_UP_S) as world:
        if server is None:
            host = find_host(setup, world.processes)
            if host is None:
                raise RuntimeError(f"none of the nodes' processes serves {setup.endpoint}")
            server = host.process.pid
        time.sleep(SETTLE_S)
        began, before = time.monotonic(), cpu_s(server)
        time.sleep(IDLE_S)
        share = (cpu_s(server) - before) / (time.monotonic() - began)
        _tell(world.processes, "waiting")
        if any(process.hear(GIVE_UP_S) for process in world.processes):
            raise RuntimeError("idle nodes lost their world")
        return share


def find_host(setup: Setup, processes: Sequence[Worker]) -> Worker | None:
    """The process that serves the endpoint, if one of these does."""
    port = int(setup.endpoint.rpartition(":")[2])
    return next((process for process in processes if process.listens(port)), None)


def _start(setup: Setup, run_id: str, share: int) -> Worker:
    low, high = setup.bounds
    return Worker(
        *("benchmarks.node", setup.implementation, setup.endpoint, run_id, f"{low}:{high}", str(share)),
        json.dumps(dict(setup.options)),
        source=setup.source,
    )


def _check_source(setup: Setup, imported: str | None) -> None:
    if setup.source is not None and (imported is None or not Path(imported).is_relative_to(setup.source)):
        raise RuntimeError(f"a node imported Rallypoint from {imported}, but should have from {setup.source}")


def _tell(processes: Sequence[Worker], order: str) -> None:
    for process in processes:
        process.tell(order)


def _placed(processes: Sequence[Worker], nodes: int, began: float, deadline: float) -> Regrouped:
    """Wait for the places of all nodes."""
    told_at: list[float] = []
    places: list[tuple[float, int, int]] = []
    for process in processes:
        answer = process.hear(deadline - time.monotonic())
        if answer is None:
            raise TimeoutError(f"a node was not told within {GIVE_UP_S:.0f} s that a member is gone")
        told_at.append(answer[0])
        places += answer[1]
    ranks, sizes = sorted(rank for _, rank, _ in places), {size for _, _, size in places}
    if ranks != list(range(nodes)) or sizes != {nodes}:
        raise RuntimeError(f"{nodes} nodes have the ranks {ranks}, in worlds of {sorted(sizes)}")
    return Regrouped(max(told_at) - began, max(at for at, _, _ in places) - began)
