"""The invariants of a run, judged by what every process wrote down: its nodes, and its servers."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

Event = dict[str, Any]

LATE_S = 12.0
"""So long after a process was there again others may notice that it was not: the server may have gone as well."""


@dataclass
class World:
    """What is known of one world: from the history, and from the processes that took it up."""

    round: int
    size: int
    roster: list[str] = field(default_factory=list)
    takers: dict[int, str] = field(default_factory=dict)

    @property
    def members(self) -> set[str]:
        """The ids of those members that are known."""
        return {*self.roster, *self.takers.values()}


def recorded(folder: Path, name: str = "*") -> dict[str, list[Event]]:
    """What each process wrote down, or one of them; a killed one may have been in the middle of a line."""
    records = {}
    for path in sorted(folder.glob(f"{name}.jsonl")):
        *lines, rest = path.read_text(encoding="utf-8").split("\n")
        del rest
        records[path.stem] = [json.loads(line) for line in lines]
    return records


def check_places(records: dict[str, list[Event]], worlds: dict[str, World]) -> None:
    """Placed means recorded: every process knows its worlds as the record has them, one at a time, and never goes back."""
    for event in _of(records, "sealed"):
        details = event["details"]
        assert details["seal_id"] in worlds, "a world was told that is not recorded"
        world = worlds[details["seal_id"]]
        assert world.roster in ([], details["members"]), "a world has one roster under every server"
        assert (details["round"], len(set(details["members"]))) == (world.round, world.size), "the world is as recorded"
        world.roster = details["members"]
    for name, events in records.items():
        held, highest = "", 0
        for event in events:
            details = event["details"]
            seal_id = details.get("seal_id", "")
            if event["kind"] == "placed":
                assert seal_id in worlds, f"{name} knows a world that is not recorded"
                assert not held, f"{name} holds two worlds"
                assert details["round"] > highest, f"{name} went back"
                held, highest = seal_id, details["round"]
                _take(worlds[seal_id], details, name)
            elif event["kind"] == "over":
                assert seal_id == held, f"{name} was told of a world that it is not in"
                held = ""
            elif event["kind"] == "withdrew":
                held = ""
    whole = [world for world in worlds.values() if len(world.takers) == world.size]
    assert len(whole) > len(worlds) / 2, "most worlds were taken up by all of their members"


def _take(world: World, details: Event, name: str) -> None:
    rank, node = details["rank"], details["node"]
    assert (details["round"], details["size"]) == (world.round, world.size), f"{name} knows its world otherwise"
    assert rank not in world.takers, "a rank given twice"
    assert not world.roster or world.roster[rank] == node, f"{name} has the rank of {world.roster[rank]}"
    world.takers[rank] = node


def check_ends(records: dict[str, list[Event]], worlds: dict[str, World], killed: Mapping[str, float]) -> None:
    """Nobody is told to restart without cause: a member of the world was killed, stood still, or went."""
    stood_still = {name: _stalls(events) for name, events in records.items()}
    withdrew = {event["details"]["node"]: _at(event) for event in _of(records, "withdrew")}
    left: dict[str, list[float]] = defaultdict(list)
    for event in _of(records, "over"):
        if event["details"]["state"] == "HOLDS":
            left[event["details"]["seal_id"]].append(_at(event))  # for a newcomer
    for name, events in records.items():
        for event in events:
            if event["kind"] != "over" or event["details"]["state"] != "BROKEN":
                continue
            seal_id, at = event["details"]["seal_id"], _at(event)
            world = worlds[seal_id]
            is_known = len(world.members) == world.size
            names = {node.partition(".")[0] for node in world.members} if is_known else set(records)
            causes = [
                *(killed[member] <= at for member in names if member in killed),
                *(_are_excused([at], stood_still.get(member, [])) for member in names),
                *(withdrew[node] <= at for node in (world.members if is_known else withdrew) if node in withdrew),
                *(since <= at for since in left[seal_id]),
            ]
            why = f"{name} was told that its world of round {world.round} is over ({event['why']})"
            assert any(causes), f"{why}, and none of its members had gone"


def check_losses(records: dict[str, list[Event]], killed: Mapping[str, float]) -> None:
    """Nobody was given up who was there: only who was killed, or stood still, and at that time."""
    lost: dict[str, float] = {}
    for event in _of(records, "lost"):
        node_id, at = event["details"]["node"], _at(event)
        lost[node_id] = min(lost.get(node_id, at), at)
    for name, events in records.items():
        stalls = _stalls(events)
        absences = stalls + ([(killed[name], math.inf)] if name in killed else [])
        given_up = [at for node_id, at in lost.items() if node_id.partition(".")[0] == name]
        assert _are_excused(given_up, absences), f"{name} was given up although it was there: {given_up}, {absences}"
        put_out = [_at(e) for e in events if e["kind"] == "over" and e["details"]["state"] == "FENCED"]
        assert _are_excused(put_out, stalls), f"{name} was put out although it was there: {put_out}, {stalls}"


def _stalls(events: Iterable[Event]) -> list[tuple[float, float]]:
    """When a process stood still, by its own record."""
    return [(_at(e) - e["details"]["seconds"], _at(e)) for e in events if e["kind"] == "stalled"]


def _are_excused(moments: Sequence[float], absences: Sequence[tuple[float, float]]) -> bool:
    """Whether each of these moments falls into an absence, or comes soon after it."""
    return all(any(since <= moment <= until + LATE_S for since, until in absences) for moment in moments)


def _at(event: Event) -> float:
    return datetime.fromisoformat(event["at"]).timestamp()


def _of(records: dict[str, list[Event]], kind: str) -> Iterable[Event]:
    return (event for events in records.values() for event in events if event["kind"] == kind)
