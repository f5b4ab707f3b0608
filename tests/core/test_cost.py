"""A transition costs O(log N): a hundred times the nodes, and one step takes hardly more.

What is counted is deterministic: the calls that a step makes, and the bytes that it holds at most.  A seal looks at
everybody, and everybody has paid for it by joining: it is not among these.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable
from functools import cache
from types import FrameType

import msgspec
import pytest

from rallypoint import record
from rallypoint.core import recovery, transition
from rallypoint.core.changes import change
from rallypoint.core.events import Event, Lost, TimePassed
from rallypoint.core.model import HeardRank, Phase, Predecessor, Run, WaitingNode
from rallypoint.messages.requests import Announced, CloseAsked, Joined, Left, Seat, Standing
from rallypoint.messages.types import Bounds, Node, Reason, RecordedWorld, Settings, rank_bitmap
from rallypoint.server import liveness, run_state
from rallypoint.server.liveness import Liveness
from rallypoint.server.run_state import RunState
from rallypoint.sorted_map import SortedMap
from simulation.check import complaints

FEW, MANY = 100, 10_000
GROWTH = 3  # the logarithm doubles from the one to the other
NOW = 50.0
SETTINGS = Settings(last_call_s=1e6, regroup_s=1e6)


def node(i: int) -> Node:
    return Node(id=f"id-{i:06}", name=f"host-{i}", address="10.0.0.1")


def sound(run: Run) -> Run:
    assert list(complaints(run)) == []
    return run


def queue(start: int, stop: int) -> SortedMap[str, WaitingNode]:
    return SortedMap.build((node(i).id, WaitingNode(node(i), i)) for i in range(start, stop))


@cache
def gathering(count: int) -> Run:
    """So many nodes wait, and the last call runs."""
    founded = transition.step(Run(run_id="run"), Joined(node(0), Bounds(2, count + 10), SETTINGS), NOW, "mint").run
    waiting = change(founded, queue=queue(0, count), arrivals=count)
    return sound(transition.step(waiting, TimePassed(), NOW, "mint").run)


@cache
def sealed(count: int) -> Run:
    """So many nodes hold a world, and there is room for more."""
    run = transition.step(gathering(count), TimePassed(), NOW + 1e6, "mint").run
    assert (run.phase, len(run.active)) == (Phase.SEALED, count)
    return sound(run)


@cache
def crowded(count: int) -> Run:
    """A world of ten, and so many newcomers at its door."""
    few = change(sealed(10), bounds=Bounds(2, count + 20))
    return sound(change(few, queue=queue(10, count + 10), arrivals=count + 10))


@cache
def regrouping(count: int) -> Run:
    """Half of a broken world is back, the other half is awaited."""
    run = transition.step(sealed(count), Lost(node(0).id, "silence"), NOW, "mint").run
    back = set(range(1, count, 2))
    return sound(
        change(
            run,
            active=SortedMap.build((key, rank) for key, rank in run.active.items() if int(key[3:]) not in back),
            returned=SortedMap.build((node(i).id, WaitingNode(node(i), i)) for i in back),
        )
    )


@cache
def recovering(count: int) -> Run:
    """Half of a world of so many has spoken to a server that has just started."""
    first = transition.step(recovery.blank("run", NOW, NOW, 7.0), claim(count, 0), NOW, "mint").run
    spoken = range(0, count, 2)
    heard = SortedMap.build((i, HeardRank(node(i), holds=True)) for i in spoken)
    return sound(change(first, heard=heard, ranks=SortedMap.build((node(i).id, i) for i in spoken)))


@cache
def taking_over(count: int) -> Run:
    """A server with a record of so many ranks: every fourth has finished, every other was heard, and some went with the
    process that served before."""
    world = RecordedWorld(3, "s3", count, rank_bitmap(range(3, count, 4)))
    written = record.Record(
        run_id="run",
        incarnation="old",
        epoch=1,
        round=3,
        write_id="w",
        bounds=Bounds(2, count),
        settings=SETTINGS,
        world=world,
    )
    run = record.restored(written, NOW, 7.0, Predecessor("s3", (1, 5), NOW))
    spoken = range(0, count, 2)
    heard = {i: HeardRank(node(i), holds=True) for i in spoken}
    known = SortedMap.build([*run.heard.items(), *heard.items()])
    return sound(change(run, heard=known, ranks=SortedMap.build((node(i).id, i) for i in spoken)))


@cache
def hosted(count: int) -> RunState:
    """So many nodes have been heard."""
    life = Liveness()
    for i in range(count):
        life, _ = liveness.heard(life, node(i).id, 1, SETTINGS, NOW)
    return RunState(sealed(count), life)


def seat(run: Run, i: int) -> Seat:
    assert run.world is not None
    return Seat(run.world.round, run.world.seal_id, run.world.size, run.ranks[node(i).id])


def join(run: Run, i: int) -> Joined:
    return Joined(node(i), run.bounds, SETTINGS)


def again(run: Run, i: int) -> Joined:
    return Joined(node(i), run.bounds, SETTINGS, run.incarnation, seat(run, i))


def announce(run: Run, i: int, standing: Standing) -> Announced:
    placed = seat(run, i) if node(i).id in run.ranks else None
    return Announced(node(i), run.bounds, standing, SETTINGS, run.incarnation, placed)


def claim(count: int, i: int) -> Announced:
    there = Seat(3, "s3", count, i)
    return Announced(node(i), Bounds(2, count), Standing.HOLDS, SETTINGS, "old", there)


def calls(work: Callable[[], object]) -> int:
    """How many calls some work makes, into Python and into C."""
    count = 0

    def profile(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def peak_bytes(work: Callable[[], object]) -> int:
    """How much more memory some work holds at its height."""
    gc.disable()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        kept = work()
        _, peak = tracemalloc.get_traced_memory()
        del kept
    finally:
        tracemalloc.stop()
        gc.enable()
    return peak - before


def hardly_more(few: Callable[[], object], many: Callable[[], object]) -> None:
    for measure in (calls, peak_bytes):
        few()
        many()
        assert measure(many) < GROWTH * measure(few) + 100


EVENTS: dict[str, tuple[Callable[[int], Run], Callable[[Run, int], Event]]] = {
    "a node joins": (gathering, join),
    "a node joins twice": (gathering, lambda run, n: join(run, n // 2)),
    "a waiting node is lost": (gathering, lambda run, n: Lost(node(n // 2).id, "silence")),
    "a waiting node leaves": (gathering, lambda run, n: Left(node(n // 2).id, Reason.WITHDREW)),
    "a waiting node announces itself": (gathering, lambda run, n: announce(run, n // 2, Standing.WAITING)),
    "time passes while they gather": (gathering, lambda run, n: TimePassed()),
    "a gathering run is closed": (gathering, lambda run, n: CloseAsked("somebody")),
    "a member is lost": (sealed, lambda run, n: Lost(node(n // 2).id, "silence")),
    "a member withdraws": (sealed, lambda run, n: Left(node(n // 2).id, Reason.WITHDREW)),
    "a member finishes": (sealed, lambda run, n: announce(run, n // 2, Standing.FINISHED)),
    "a member gives up": (sealed, lambda run, n: Left(node(n // 2).id, Reason.GAVE_UP)),
    "a member joins again": (sealed, lambda run, n: again(run, n // 2)),
    "a member announces itself": (sealed, lambda run, n: announce(run, n // 2, Standing.HOLDS)),
    "a member knows of a break": (sealed, lambda run, n: announce(run, n // 2, Standing.BROKEN)),
    "a member asks for its lost answer": (sealed, lambda run, n: join(run, n // 2)),
    "a newcomer comes to a world": (sealed, join),
    "a stranger is fenced": (sealed, lambda run, n: Joined(node(n), run.bounds, SETTINGS, "gone", Seat(1, "s", 1, 0))),
    "time passes while they work": (sealed, lambda run, n: TimePassed()),
    "a sealed run is closed": (sealed, lambda run, n: CloseAsked("somebody")),
    "one more newcomer comes": (crowded, lambda run, n: join(run, n + 10)),
    "a newcomer goes": (crowded, lambda run, n: Lost(node(n).id, "silence")),
    "a member of a crowded world is lost": (crowded, lambda run, n: Lost(node(3).id, "silence")),
    "a member comes back": (regrouping, lambda run, n: again(run, n // 2 + n // 2 % 2)),
    "an awaited member is lost": (regrouping, lambda run, n: Lost(node(2).id, "silence")),
    "a member that is back is lost": (regrouping, lambda run, n: Lost(node(1).id, "silence")),
    "a member that is back announces itself": (regrouping, lambda run, n: announce(run, 1, Standing.WAITING)),
    "a rank speaks to a new server": (recovering, lambda run, n: claim(n, 1)),
    "a rank speaks to a server with a record": (taking_over, lambda run, n: claim(n, 9)),
    "a finished rank speaks to a server with a record": (taking_over, lambda run, n: claim(n, 7)),
    "a rank finishes before a server has recovered": (
        taking_over,
        lambda run, n: msgspec.structs.replace(claim(n, 2), standing=Standing.FINISHED),
    ),
    "a fresh node comes to a server with a record": (taking_over, join),
    "the process that served before is given up": (taking_over, lambda run, n: TimePassed()),
    "a rank is lost to a new server": (recovering, lambda run, n: Lost(node(2).id, "silence")),
}


@pytest.mark.parametrize("what", EVENTS)
def test_a_step_takes_hardly_more_when_there_are_a_hundred_times_the_nodes(what: str) -> None:
    situation, event = EVENTS[what]

    def step(count: int) -> Callable[[], object]:
        run = situation(count)
        said = event(run, count)
        return lambda: transition.step(run, said, NOW, "other")

    hardly_more(step(FEW), step(MANY))


INPUTS: dict[str, Callable[[RunState, int], object]] = {
    "a heartbeat": lambda host, n: run_state.receive(
        host, node(n // 2).id, 1, announce(host.run, n // 2, Standing.HOLDS), NOW, "other"
    ),
    "a first word": lambda host, n: run_state.receive(host, node(n).id, 1, join(host.run, n), NOW, "other").state,
    "a connection ends": lambda host, n: run_state.connection_ended(host, node(n // 2).id, 1, NOW),
    "a tick": lambda host, n: run_state.tick(host, NOW + 0.25, "other"),
    "the next waking": lambda host, n: run_state.wake_at(host, NOW),
    "a member is given up": lambda host, n: liveness.forget(host.life, node(n // 2).id),
}


@pytest.mark.parametrize("what", INPUTS)
def test_a_server_takes_hardly_more_when_there_are_a_hundred_times_the_nodes(what: str) -> None:
    few, many = hosted(FEW), hosted(MANY)
    hardly_more(lambda: INPUTS[what](few, FEW), lambda: INPUTS[what](many, MANY))
