"""The invariants of the simulation, for a run on real etcd: judged by what every process wrote down and by etcd's history.

etcd's history has what no record of a killed process has: every board, every roster and every word of a node, in one order.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rallypoint.core.events import Joined
from rallypoint.core.model import Bounds, Phase
from rallypoint.etcd import estate
from rallypoint.etcd.board import Board, decode_board, decode_roster
from rallypoint.etcd.leading import Word, message_of
from rallypoint.etcd_client import Change
from tests.etcd_v3.harness import Observer

Event = dict[str, Any]


@dataclass
class Rejoining:
    """A node that had a seat in a world asks for the next one."""

    revision: int
    node_id: str
    seal_id: str


@dataclass
class History:
    """What happened to a run's keys, by revisions."""

    boards: list[tuple[int, Board]] = field(default_factory=list)
    rosters: dict[str, list[str]] = field(default_factory=dict)
    rejoinings: list[Rejoining] = field(default_factory=list)


def recorded(folder: Path) -> dict[str, list[Event]]:
    """What each process wrote down; a killed one may have been in the middle of a line."""
    records = {}
    for path in sorted(folder.glob("*.jsonl")):
        *lines, rest = path.read_text(encoding="utf-8").split("\n")
        del rest
        records[path.stem] = [json.loads(line) for line in lines]
    return records


def history_of(observer: Observer) -> History:
    """All that ever happened to the keys of a run; nobody has compacted it."""
    keys, history = observer.keys, History()
    values: dict[bytes, bytes] = {}
    now = observer.client.range(keys.run, prefix=True).kvs
    last = max(kv.mod_revision for kv in now)
    awaited = {kv.key for kv in now if kv.mod_revision == last}  # one transaction may have written several
    with observer.client.watch(keys.run, prefix=True, revision=1) as watch:
        while awaited:
            change = watch.get(timeout_s=30.0)
            assert isinstance(change, Change), change
            heard = change.revision
            if heard == last:
                awaited.discard(change.key)
            if change.is_delete:
                continue
            values[change.key] = change.value
            said = estate.saying_of(keys, change.kv)
            if change.key == keys.board.encode():
                history.boards.append((heard, decode_board(change.value, observer.run)))
            elif isinstance(said, Word):
                message = message_of(said)
                if isinstance(message, Joined) and message.seat is not None:
                    history.rejoinings.append(Rejoining(heard, said.node_id, message.seat.seal_id))
    for _, board in history.boards:
        world = board.world
        if world is not None and world.seal_id not in history.rosters:
            parts = [values[keys.part(world.seal_id, number).encode()] for number in range(world.parts)]
            members = decode_roster(parts, world, observer.run)
            history.rosters[world.seal_id] = [seated.node.id for seated in members]
    return history


def check(records: dict[str, list[Event]], history: History, bounds: Bounds, killed: Collection[str]) -> None:
    """Nothing happened that must never happen."""
    check_history(history, bounds)
    check_records(records, history)
    check_notices(records, history)
    check_losses(records, killed)


def check_history(history: History, bounds: Bounds) -> None:
    """One world a round, one name a world, of the size that was asked for; what is closed stays closed."""
    sealed: dict[str, int] = {}
    closed: set[str] = set()
    highest, last = 0, ""
    for _, board in history.boards:
        assert board.round >= highest, "rounds only grow"
        assert board.ended is not None or board.incarnation not in closed, "what is closed stays closed"
        if board.ended is not None:
            closed.add(board.incarnation)
        world = board.world
        if world is None:
            continue
        members = history.rosters[world.seal_id]
        if world.seal_id not in sealed:
            assert world.round > highest, "a new world has a new round"
            assert not closed, "no world is sealed in a run that is closed"
            assert bounds.min <= world.size <= bounds.max, f"a world of {world.size} where {bounds} are asked for"
            assert len(set(members)) == len(members) == world.size, "each member has one rank"
            highest, last = world.round, world.seal_id
        assert world.seal_id == last, "no world comes back"
        assert sealed.setdefault(world.seal_id, world.round) == world.round, "a world has one round"
    assert len({board.incarnation for _, board in history.boards}) == 1, "the run was never founded anew"


def check_places(told: dict[str, list[Event]], history: History) -> None:
    """Every node, by its name, was placed in worlds as they are in etcd, and never went back.

    What they were told was gathered before the history, which has all of it then.
    """
    taken: set[tuple[str, int]] = set()
    rounds = {board.world.seal_id: board.world.round for _, board in history.boards if board.world is not None}
    for name, places in told.items():
        highest = 0
        for place in places:
            seal_id, rank = place["fence"].split("/")[2], place["rank"]
            assert seal_id in rounds, f"{name} knows a world that nobody sealed"
            assert place["round"] == rounds[seal_id], f"{name} knows its world by another round"
            assert place["round"] > highest, f"{name} went back"
            highest, members = place["round"], history.rosters[seal_id]
            assert place["size"] == len(members), f"{name} knows its world by another size"
            assert members[rank].partition(".")[0] == name, f"{name} has the rank of {members[rank]}"
            assert (seal_id, rank) not in taken, "a rank given twice"
            taken.add((seal_id, rank))


def worlds(history: History) -> list[int]:
    """The rounds of all worlds that were ever sealed."""
    return list({board.world.seal_id: board.world.round for _, board in history.boards if board.world}.values())


def check_records(records: dict[str, list[Event]], history: History) -> None:
    """Every process knows its worlds as they are in etcd, holds one at a time, and never goes back."""
    sealed: set[str] = set()
    taken: dict[str, set[int]] = defaultdict(set)
    rounds = {board.world.seal_id: board.world.round for _, board in history.boards if board.world is not None}
    for name, events in records.items():
        held, highest = "", 0
        for event in events:
            details = event["details"]
            seal_id = details.get("seal_id", "")
            if event["kind"] in ("sealed", "broken", "placed"):
                assert seal_id in rounds, f"{name} knows a world that nobody sealed"
                assert rounds[seal_id] == details["round"], f"{name} knows its world by another round"
            if event["kind"] == "sealed":
                assert seal_id not in sealed, "a world is sealed once"
                sealed.add(seal_id)
                assert details["members"] == history.rosters[seal_id], "the roster is as it was sealed"
            elif event["kind"] == "placed":
                assert not held, f"{name} holds two worlds"
                assert details["round"] > highest, f"{name} went back"
                held, highest = seal_id, details["round"]
                members, rank = history.rosters[seal_id], details["rank"]
                assert details["size"] == len(members), f"{name} knows its world by another size"
                assert members[rank] == details["node"], f"{name} has the rank of {members[rank]}"
                assert rank not in taken[seal_id], "a rank given twice"
                taken[seal_id].add(rank)
            elif event["kind"] == "over":
                assert seal_id == held, f"{name} was told of a world that it is not in"
                held = ""
    whole = [seal_id for seal_id, ranks in taken.items() if len(ranks) == len(history.rosters[seal_id])]
    assert len(whole) > len(taken) / 2, "most worlds were taken up by all of their members"


def check_notices(records: dict[str, list[Event]], history: History) -> None:
    """Who asks for the next world was told to: its own is over by then, or somebody waits that it could admit."""
    told_broken = {
        (event["details"]["node"], event["details"]["seal_id"])
        for event in _of(records, "over")
        if event["details"]["state"] == "BROKEN"
    }
    for again in history.rejoinings:
        before = [board for revision, board in history.boards if revision < again.revision]
        if not any(_is_over(board, again.seal_id) for board in _since(before, again.seal_id)):
            assert (again.node_id, again.seal_id) not in told_broken, f"{again.node_id}: its world never broke"
            waited_for = any(board.waiting for board in _since(before, again.seal_id))
            assert waited_for, f"{again.node_id} left a world that was up and needed nobody"


def check_losses(records: dict[str, list[Event]], killed: Collection[str]) -> None:
    """Nobody was given up who could renew its lease: only who was killed, or stood still for a while."""
    stalls = {name: sum(event["kind"] == "stalled" for event in events) for name, events in records.items()}
    lost = {event["details"]["node"] for event in _of(records, "lost")}
    for name, count in Counter(node_id.partition(".")[0] for node_id in lost).items():
        assert count <= stalls[name] + (name in killed), f"{name} was given up although it was there"
    for name, events in records.items():
        fenced = sum(event["kind"] == "over" and event["details"]["state"] == "FENCED" for event in events)
        assert fenced <= stalls[name], f"{name} was put out although it was there"


def _of(records: dict[str, list[Event]], kind: str) -> Iterable[Event]:
    return (event for events in records.values() for event in events if event["kind"] == kind)


def _since(boards: list[Board], seal_id: str) -> list[Board]:
    """The boards from the one on that named this world first."""
    named = (n for n, board in enumerate(boards) if board.world is not None and board.world.seal_id == seal_id)
    return boards[next(named, len(boards)) :]


def _is_over(board: Board, seal_id: str) -> bool:
    return board.phase is not Phase.SEALED or board.world is None or board.world.seal_id != seal_id
