"""The invariants of the simulation, for a run on real etcd: judged by what every process wrote down and by etcd's history.

etcd's history has what no record of a killed process has: every board, every roster and every word of a node, in one order.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count, groupby, pairwise
from pathlib import Path
from typing import Any

from rallypoint.core import codec
from rallypoint.core.check import complaints
from rallypoint.core.events import Joined, Left
from rallypoint.core.model import Bounds, Ending, Phase, Reason
from rallypoint.core.notices import StandBy
from rallypoint.etcd import estate
from rallypoint.etcd.adopting import Estate, adopt
from rallypoint.etcd.board import Board, Seated, decode_board, decode_roster
from rallypoint.etcd.keys import Keys
from rallypoint.etcd.leading import Wish, Word, message_of
from rallypoint.etcd_client import Change, KeyValue
from tests.etcd_v3.harness import Observer

Event = dict[str, Any]

LATE_S = 10.0
"""So long after a process was there again others may notice that it was not: a member of etcd may be down as well."""


@dataclass
class Rejoining:
    """A node that had a seat in a world asks for the next one."""

    revision: int
    node_id: str
    seal_id: str


@dataclass
class Parting:
    """A node does what breaks the world that it is in: it joins again, leaves unfinished, or its lease ends."""

    revision: int
    node_id: str


@dataclass
class History:
    """What happened to a run's keys, by revisions."""

    boards: list[tuple[int, Board]] = field(default_factory=list)
    rosters: dict[str, list[str]] = field(default_factory=dict)
    rejoinings: list[Rejoining] = field(default_factory=list)
    partings: list[Parting] = field(default_factory=list)
    finished: set[str] = field(default_factory=set)
    stood_by: set[str] = field(default_factory=set)
    estates: list[Estate] = field(default_factory=list)


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
    keys, run, history = observer.keys, observer.run, History()
    there: dict[bytes, KeyValue] = {}
    for revision, changes in groupby(observer.changes(1), lambda change: change.revision):
        for change in changes:
            before = there.pop(change.key, None)
            if not change.is_delete:
                there[change.key] = change.kv
            _note(history, keys, change, before)
        found = _estate(keys, run, revision, there)
        history.estates.append(found)
        if found.board is not None and found.shown == revision:
            history.boards.append((revision, found.board))
            if found.board.world is not None and found.roster:
                members = [seated.node.id for seated in found.roster]
                history.rosters.setdefault(found.board.world.seal_id, members)
    return history


def _note(history: History, keys: Keys, change: Change, before: KeyValue | None) -> None:
    """What a single change tells of a node."""
    node_id = keys.node_id(change.key)
    if node_id is None:
        is_told = not change.is_delete and change.key.startswith(keys.told("").encode())
        if is_told and isinstance(codec.decode_notice(change.value), StandBy):
            history.stood_by.add(change.key.decode())
        return
    if change.is_delete:
        # Who has said that it leaves is cleared away.
        is_lost = before is not None and not isinstance(_message(keys, before), Left)
        history.partings += [Parting(change.revision, node_id)] if is_lost else []
        return
    message = _message(keys, change.kv)
    if isinstance(message, Left) and message.reason is Reason.FINISHED:
        history.finished.add(node_id)
        return
    history.partings.append(Parting(change.revision, node_id))
    if isinstance(message, Joined) and message.seat is not None:
        history.rejoinings.append(Rejoining(change.revision, node_id, message.seat.seal_id))


def _message(keys: Keys, kv: KeyValue) -> object:
    said = estate.saying_of(keys, kv)
    return None if said is None else message_of(said)


def _estate(keys: Keys, run: str, revision: int, there: Mapping[bytes, KeyValue]) -> Estate:
    """What a leader would find that takes the run over at this revision."""
    sayings = [said for _, kv in sorted(there.items()) if (said := estate.saying_of(keys, kv)) is not None]
    words = tuple(said for said in sayings if isinstance(said, Word))
    wishes = tuple(said for said in sayings if isinstance(said, Wish))
    shown = there.get(keys.board.encode())
    if shown is None:
        return Estate(revision, words, wishes)
    board, roster = decode_board(shown.value, run), tuple[Seated, ...]()
    if board.world is not None and board.ended is None:
        parts = [there[keys.part(board.world.seal_id, number).encode()] for number in range(board.world.parts)]
        roster = decode_roster([part.value for part in parts], board.world, run)
    return Estate(revision, words, wishes, board, shown.mod_revision, roster)


def check(records: dict[str, list[Event]], history: History, bounds: Bounds, killed: Mapping[str, float]) -> None:
    """Nothing happened that must never happen; `killed` is who was, and when."""
    check_history(history, bounds)
    check_ends(history)
    check_estates(history)
    check_records(records, history)
    check_notices(records, history)
    check_losses(records, killed)


def check_history(history: History, bounds: Bounds, *, may_be_deserted: bool = False) -> None:
    """One world a round, one name a world, of the size that was asked for; what is closed stays closed.

    Only a run of which nobody is left, if there may be such a moment, is founded anew by who comes next (rule 1).
    """
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
    for (_, before), (revision, board) in pairwise(history.boards):
        if board.incarnation != before.incarnation:
            assert may_be_deserted, "the run was never founded anew"
            *_, found = (found for found in history.estates if found.revision < revision)
            staff = history.rosters[before.world.seal_id] if before.world is not None else []
            stay = {word.node_id for word in found.words}.intersection(staff)
            assert not stay, f"the run was founded anew while {sorted(stay)} were in it"


def check_ends(history: History) -> None:
    """A world breaks when one of its members has gone; who has finished has not (rule 8)."""
    current = None
    for revision, board in history.boards:
        if current is not None and _is_over(board, current.seal_id):
            members = history.rosters[current.seal_id]
            since = (parting for parting in history.partings if current.folded < parting.revision < revision)
            if board.ended is None:
                gone = any(parting.node_id in members for parting in since)
                assert gone, f"the world of round {current.round} broke, and none of its members had gone"
            elif board.ended.ending is Ending.SUCCEEDED:
                assert history.finished >= set(members), "the run ended well before all of its members had finished"
        current = board.world if board.phase is Phase.SEALED else None


def check_estates(history: History) -> None:
    """Whoever had taken the run over, at any revision, would have found it whole, and would have lost no round."""
    numbers = count()
    for found in history.estates:
        run = adopt("run", found, 1e6, lambda: f"m{next(numbers)}").run
        wrong = list(complaints(run))
        assert not wrong, f"at revision {found.revision} the run is damaged: {wrong}"
        if found.board is not None and (_is_inhabited(found) or run.phase is Phase.CLOSED):
            assert run.incarnation == found.board.incarnation, f"at revision {found.revision} the run is another"
            assert run.round >= found.board.round, f"at revision {found.revision} a round is lost"


def _is_inhabited(found: Estate) -> bool:
    """Whether a member of its last world is left; else whoever takes it over may found the run anew (rule 1)."""
    return bool({seated.node.id for seated in found.roster}.intersection(word.node_id for word in found.words))


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


def check_losses(records: dict[str, list[Event]], killed: Mapping[str, float]) -> None:
    """Nobody was given up who could renew its lease: only who was killed, or stood still, and at that time."""
    lost: dict[str, float] = {}
    for event in _of(records, "lost"):
        node_id, at = event["details"]["node"], _at(event)
        lost[node_id] = min(lost.get(node_id, at), at)
    for name, events in records.items():
        stalls = [(_at(e) - e["details"]["seconds"], _at(e)) for e in events if e["kind"] == "stalled"]
        deaths = [(killed[name], math.inf)] if name in killed else []
        given_up = [at for node_id, at in lost.items() if node_id.partition(".")[0] == name]
        absences = stalls + deaths
        assert _are_excused(given_up, absences), f"{name} was given up although it was there: {given_up}, {absences}"
        put_out = [_at(e) for e in events if e["kind"] == "over" and e["details"]["state"] == "FENCED"]
        assert _are_excused(put_out, stalls), f"{name} was put out although it was there: {put_out}, {stalls}"


def _are_excused(moments: Sequence[float], absences: Sequence[tuple[float, float]]) -> bool:
    """Whether each of these moments has an absence of its own that it falls into, or comes soon after."""
    left = sorted(absences, key=lambda absence: absence[1])
    for moment in sorted(moments):
        excuses = [absence for absence in left if absence[0] <= moment <= absence[1] + LATE_S]
        if not excuses:
            return False
        left.remove(excuses[0])
    return True


def _at(event: Event) -> float:
    return datetime.fromisoformat(event["at"]).timestamp()


def _of(records: dict[str, list[Event]], kind: str) -> Iterable[Event]:
    return (event for events in records.values() for event in events if event["kind"] == kind)


def _since(boards: list[Board], seal_id: str) -> list[Board]:
    """The boards from the one on that named this world first."""
    named = (n for n, board in enumerate(boards) if board.world is not None and board.world.seal_id == seal_id)
    return boards[next(named, len(boards)) :]


def _is_over(board: Board, seal_id: str) -> bool:
    return board.phase is not Phase.SEALED or board.world is None or board.world.seal_id != seal_id
