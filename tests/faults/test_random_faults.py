"""Many rounds at one server while nodes and the server are killed, stopped and restarted at random: no rule is broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.random_faults import DECK, Crowd, known_worlds
from tests.support.node_processes import Processes
from tests.support.run_invariants import Event

ROOM_KB = 3000
"""What the memory of a server may grow by between a tenth and all of the rounds."""


@pytest.mark.parametrize(("seed", "rounds"), [(1, 25), pytest.param(2, 500, marks=pytest.mark.soak, id="2-500")])
def test_rounds_under_random_kills_stops_and_restarts(
    processes: Processes, tmp_path: Path, seed: int, rounds: int
) -> None:
    crowd = Crowd(processes, tmp_path, DECK, seed)
    crowd.play(rounds)
    print(dict(crowd.done), "killed:", len(crowd.killed), *crowd.taken, sep="\n")
    for what in ("kill", "kill server", "leave"):
        assert crowd.done[what] >= rounds / 15, crowd.done
    crowd.check()


@pytest.mark.soak
def test_a_server_takes_no_more_after_five_hundred_rounds_than_after_fifty(
    processes: Processes, tmp_path: Path
) -> None:
    """Of one life: it is stopped, and not killed."""
    crowd = Crowd(processes, tmp_path, {**DECK, "kill server": 0}, seed=3)
    crowd.play(500)
    print(dict(crowd.done), "killed:", len(crowd.killed), *crowd.taken, sep="\n")
    crowd.check()
    early, last = [taken for taken in crowd.taken if taken.round <= 50], crowd.taken[-1]
    assert last.threads <= max(taken.threads for taken in early), crowd.taken
    assert last.files <= max(taken.files for taken in early), crowd.taken
    assert last.resident_kb <= early[-1].resident_kb + ROOM_KB, crowd.taken


# The judge itself; what it has from elsewhere is tried in tests/etcd_v3/test_random_faults.py ---------------------------


def event(kind: str, seal_id: str, round_: int) -> Event:
    return {"kind": kind, "details": {"seal_id": seal_id, "round": round_, "size": 2, "members": ["a.1", "b.1"]}}


def test_a_world_that_is_found_again_or_that_a_killed_server_had_no_time_to_write_down_is_no_fault() -> None:
    servers = {"server1": [event("sealed", "s1", 1)], "server2": [event("sealed", "s1", 1), event("sealed", "s3", 3)]}
    nodes = {"a": [event("placed", "s1", 1), event("placed", "s2", 2), event("placed", "s3", 3)]}
    worlds = known_worlds({**servers, **nodes}, told_by=2)
    assert {seal_id: world.round for seal_id, world in worlds.items()} == {"s1": 1, "s2": 2, "s3": 3}


def test_a_world_that_nobody_sealed_and_two_of_one_round_are_faults() -> None:
    with pytest.raises(AssertionError, match="no server had sealed"):
        known_worlds({"server1": [event("sealed", "s1", 1)], "a": [event("placed", "s2", 2)]}, told_by=1)
    with pytest.raises(AssertionError, match="a new world has a new round"):
        known_worlds({"server1": [event("sealed", "s1", 1), event("sealed", "s2", 1)]}, told_by=1)
