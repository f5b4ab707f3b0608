"""Recovery (rules 14 and 17f): what a server does that has just started, and knows of the run only what others tell.

With a record, the recorded world is the only one that can be current; without one, it is the highest world that a node
announces.  Nothing is sealed until every rank of that world was heard or is accounted for, or until the hold has passed;
ranks not heard by then are lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from msgspec.structs import replace

from rallypoint.core import explain, model
from rallypoint.core.changes import Durability, Notice, Step, arrive, change, close, depart, emptied, enter, found, tell
from rallypoint.core.model import HeardRank, Phase, Run, WaitingNode, World, WorldName
from rallypoint.messages.notices import Broken, Fenced, Refused
from rallypoint.messages.requests import Announced, Joined, Seat, Standing
from rallypoint.messages.types import MOST_ROUNDS, Ending, Node, RecordedWorld, Role, rank_bitmap, ranks_of
from rallypoint.sorted_map import SortedMap


def blank(run_id: str, started_at: float, now: float, hold_s: float) -> Run:
    """A run of which this server, up since `started_at`, has no record."""
    hold_ends = started_at + hold_s
    return Run(run_id=run_id) if now >= hold_ends else Run(run_id=run_id, phase=Phase.RECOVERING, hold_ends=hold_ends)


def with_recorded_world(run: Run, recorded: RecordedWorld, hold_ends: float) -> Run:
    """The run whose record names a world: its ranks announce themselves, those that have finished are not awaited."""
    gone = {rank: _unannounced(recorded.round, rank, gone=True) for rank in ranks_of(recorded.gone)}
    finished = {rank: _unannounced(recorded.round, rank, finished=True) for rank in recorded.finished_ranks()}
    highest = WorldName(run.incarnation, recorded.round, recorded.seal_id, recorded.size)
    heard = SortedMap.build({**gone, **finished}.items())
    return change(run, phase=Phase.RECOVERING, recorded=recorded, highest=highest, heard=heard, hold_ends=hold_ends)


def without(run: Run, predecessor: model.Predecessor | None) -> Run:
    """The run with what is known of the process that served before, which is gone (rules 14, 17f)."""
    return change(run, predecessor=predecessor) if run.phase is Phase.RECOVERING else run


def is_forgotten(run: Run, said: Joined | Announced) -> bool:
    """Whether a node was in a world of this very incarnation that the server's record does not have."""
    if said.seat is None or run.world is not None or run.phase is not Phase.GATHERING or not run.founded:
        return False
    return said.incarnation == run.incarnation and not _contradiction(run, said, said.seat)


def forgotten(run: Run, now: float) -> Run:
    """The record does not know a world that a node of this incarnation was in: rule 14 without a record applies."""
    asked = ((w, Joined(w.node, run.bounds, run.settings, run.incarnation)) for w in _waiters(run))
    known = enter(run, Phase.RECOVERING, hold_ends=now + run.settings.hold_s, last_call_ends=None)
    return _with_waiters(known, [replace(waiter, request=request) for waiter, request in asked])


def heard_of(run: Run, said: Joined | Announced, seat: Seat, now: float) -> Step:
    """A node speaks of a world that it was in before this server started."""
    node, highest = said.node, run.highest
    wrong = _contradiction(run, said, seat)
    if wrong:
        return Step(run, tell(node.id, Fenced(seat.seal_id, wrong)), wrong)
    standing = said.standing if isinstance(said, Announced) else None
    finished = standing is Standing.FINISHED
    heard = HeardRank(node, finished or standing is Standing.HOLDS, finished)
    spoke = f"{node.name} had rank {seat.rank} of {seat.size} in round {seat.round}"
    if highest is None or seat.round > highest.round:
        broken = Broken(highest.seal_id if highest is not None else "", f"round {seat.round} came after it")
        told = tuple(Notice(old.node.id, broken) for old in run.heard.values() if old.announced)
        noted = _with_heard(_higher(run, said, seat, now), seat.rank, heard)
        return Step(noted, told, spoke, Durability.FINISH if finished else Durability.NONE)
    if seat.seal_id != highest.seal_id:
        broken = Broken(seat.seal_id, f"round {highest.round} came after it")
        return Step(run, tell(node.id, broken), f"{node.name} speaks of round {seat.round}, but {broken.why}")
    if run.recorded is not None and run.recorded.broken:
        heard = replace(heard, holds=finished)
    known = run.heard.get(seat.rank)
    if known is not None:
        # What is broken stays broken, and what has finished stays finished: an older message may arrive late.
        kept = known.holds or not known.announced
        heard = replace(heard, holds=heard.holds and kept, finished=finished or known.finished)
    noted = _with_heard(run, seat.rank, heard)
    if noted is run:
        return Step(noted)
    newly = finished and not (known is not None and known.finished)
    return Step(noted, (), spoke, Durability.FINISH if newly else Durability.NONE)


def _higher(run: Run, said: Joined | Announced, seat: Seat, now: float) -> Run:
    """A node speaks of a higher world than the others, or than the record: rule 14 without a record applies to it."""
    highest = WorldName(said.incarnation, seat.round, seat.seal_id, seat.size)
    taken = change(run, recorded=None, highest=highest, heard=SortedMap(), ranks=SortedMap())
    if run.recorded is None:
        return change(taken, bounds=said.bounds, settings=said.settings)
    assert run.hold_ends is not None, "recovery has an end"
    return change(taken, hold_ends=max(run.hold_ends, now + run.settings.hold_s))


def _contradiction(run: Run, said: Joined | Announced, seat: Seat) -> str:
    """Why what a node says of a world cannot be true beside what others said; empty if it can."""
    name, highest, speaks_of = said.node.name, run.highest, f"{said.node.name} speaks of a world of {seat.size}, where"
    if not said.incarnation or seat.round > MOST_ROUNDS:
        return f"{name} speaks of round {seat.round} of incarnation {said.incarnation!r}, which cannot be"
    if seat.size > said.bounds.max:
        return f"{speaks_of} {said.bounds.max} are the most that it asks for"
    if run.incarnation and seat.size > run.bounds.max:
        return f"{speaks_of} {run.bounds.max} are the most that the run was founded for"
    if highest is None or highest.seal_id != seat.seal_id:
        return ""
    if (highest.incarnation, highest.round, highest.size) != (said.incarnation, seat.round, seat.size):
        return f"{name} and others speak of round {seat.round}, but not of the same world"
    known = run.heard.get(seat.rank)
    if known is not None and known.announced and known.node.id != said.node.id:
        return f"rank {seat.rank} of round {seat.round} is {known.node.name}"
    if run.ranks.get(said.node.id, seat.rank) != seat.rank:
        return f"{name} speaks of two ranks in round {seat.round}"
    return ""


def silenced(run: Run, node_id: str, why: str, *, finished: bool = False) -> Run:
    """A node that had spoken goes during recovery: its rank is out, or has finished."""
    rank = run.ranks.get(node_id)
    if rank is None or run.heard[rank].finished:
        return run
    known = run.heard[rank]
    gone, why = not finished, "" if finished else why
    heard = replace(known, holds=finished and known.holds, finished=finished, gone=gone, why=why)
    return change(run, heard=run.heard.set(rank, heard))


def give_up_predecessor(run: Run, now: float) -> Run:
    """The ranks of the process that served before are lost once their time is over and they have not spoken."""
    gone, highest = run.predecessor, run.highest
    if gone is None or highest is None or now < gone.until or gone.seal_id != highest.seal_id:
        return run
    heard = run.heard
    for rank in gone.ranks:
        if rank < highest.size and rank not in heard:
            heard = heard.set(rank, _unannounced(highest.round, rank, gone=True))
    return change(run, heard=heard, predecessor=None)


def complete(run: Run, now: float) -> bool:
    """Whether nothing is to be gained by listening on."""
    assert run.hold_ends is not None, "recovery has an end"
    if now >= run.hold_ends:
        return True
    if run.highest is not None:
        # Where all ranks are accounted for and none has spoken, nodes that stand by may be on their way.
        all_known = len(run.heard) >= run.highest.size
        return all_known and (_all_finished(run, run.highest) or any(known.announced for known in run.heard.values()))
    # Max nodes that have never heard of a world: there is nobody else to wait for.
    if run.round or len(run.queue) < run.bounds.max:
        return False
    waiters = list(run.queue.values())
    other = next((w.node for w in waiters if w.node.address), None)
    asked = ((w.node, w.request.bounds) for w in waiters if w.request is not None)
    return sum(not explain.refusal(run, node, bounds, other) for node, bounds in asked) >= run.bounds.max


def conclude(run: Run, now: float, mint: str) -> Step:
    """The hold is over: the highest world stands, or is broken, or its incarnation has ended, or there was none."""
    highest = run.highest
    if highest is None:
        return _begin_anew(run, mint, "nobody speaks of an earlier world: the run starts anew")
    # The incarnation goes on where a node that has not finished is here and names it, or all of its world has finished.
    speaks = any(known.announced and not (known.gone or known.finished) for known in run.heard.values())
    names = (w.request is not None and w.request.incarnation == highest.incarnation for w in _waiters(run))
    if speaks or any(names) or _all_finished(run, highest):
        return adopt(run, now)
    why = f"nobody of round {highest.round} came back"
    last = model.EndedIncarnation(highest.incarnation, Ending.FAILED, why)
    ended = change(run, last=last, last_call_ends=None)
    anew = _begin_anew(ended, mint, f"{why}: that incarnation of the run has ended")
    # Its members are told that it is over: that must be recorded first, as any close (rule 17c).
    return replace(anew, durability=Durability.SEAL_OR_CLOSE)


def _all_finished(run: Run, highest: WorldName) -> bool:
    return sum(known.finished for known in run.heard.values()) == highest.size


def _waiters(run: Run) -> list[WaitingNode]:
    """The nodes that wait through the hold, in the order of arrival."""
    return sorted(chain(run.queue.values(), run.spares.values()), key=lambda waiter: waiter.arrival)


def _begin_anew(run: Run, mint: str, why: str) -> Step:
    """A new incarnation for the nodes that wait, as the first of them asks for it; without one the run is empty."""
    waiters = _waiters(run)
    first = next((w.request for w in waiters if w.request is not None), None)
    if first is None:
        return Step(emptied(run), (), why if run.last is not None else "")
    called = run.last_call_ends if first.settings == run.settings else None
    fresh = change(found(run, first.bounds, first.settings, mint), last_call_ends=called)
    return _keep_waiters(fresh, waiters, why)


def _keep_waiters(run: Run, waiters: Iterable[WaitingNode], why: str, other: Node | None = None) -> Step:
    """The nodes that waited through the hold; whatever they ask for is judged now (rules 1, 2)."""
    kept: list[WaitingNode] = []
    refused: list[Notice] = []
    for waiter in waiters:
        node, request = waiter.node, waiter.request
        refusal = explain.refusal(run, node, run.bounds if request is None else request.bounds, other)
        if refusal:
            refused += tell(node.id, Refused(refusal))
        else:
            other = other or (node if node.address else None)
            kept.append(replace(waiter, request=None))
    return Step(_with_waiters(run, kept), tuple(refused), why)


def _with_waiters(run: Run, waiters: list[WaitingNode]) -> Run:
    spares = SortedMap.build((w.node.id, w) for w in waiters if w.node.role is Role.SPARE)
    queue = SortedMap.build((w.node.id, w) for w in waiters if w.node.role is not Role.SPARE)
    return change(run, queue=queue, spares=spares)


def adopt(run: Run, now: float) -> Step:
    """The highest world becomes the run's, as far as it is known; where none is, nothing changes."""
    heard, highest = run.heard, run.highest
    if highest is None:
        return Step(run)
    # One stand-in for all that were not heard: a liar may speak of a large world.
    unheard = _nobody(highest.round, "?")
    members = tuple(known.node if (known := heard.get(rank)) else unheard for rank in range(highest.size))
    world = World(highest.incarnation, highest.round, highest.seal_id, members, now)
    waiters = _waiters(run)
    back = {w.node.id: replace(w, request=None) for w in waiters if w.node.id in run.ranks}
    finished = {members[rank].id: rank for rank, known in heard.items() if known.finished}
    here = {k.node.id: rank for rank, k in heard.items() if not (k.finished or k.gone or k.node.id in back)}
    holders = sum(k.holds and not k.finished for k in heard.values())
    ended_before = run.recorded.ended_before if run.recorded is not None else 0
    earlier = ((f"finished-before-{number}", -1) for number in range(ended_before))
    adopted = change(
        run,
        incarnation=highest.incarnation,
        world=world,
        ranks=SortedMap.build((known.node.id, rank) for rank, known in heard.items()),
        active=SortedMap.build(here.items()),
        finished=SortedMap.build(chain(finished.items(), earlier)),
        highest=None,
        heard=SortedMap(),
        **dict.fromkeys(("recorded", "predecessor", "hold_ends", "last_call_ends")),
    )
    other = next((known.node for known in heard.values() if known.node.address), None)
    kept = _keep_waiters(adopted, (w for w in waiters if w.node.id not in back), "", other)
    if run.recorded is None:
        # No record names this world yet: the next server is to know it.
        kept = replace(kept, durability=Durability.SEAL_OR_CLOSE)
    if len(finished) == world.size:
        return close(kept.run, Ending.SUCCEEDED, "all members have finished", now).after(kept)
    if holders + len(finished) == world.size:
        whole = f"all {world.size} ranks of round {world.round} still hold it"
        return Step(enter(kept.run, Phase.SEALED, told_at=now), (), whole).after(kept)
    returned, regroup_ends = SortedMap.build(back.items()), now + run.settings.regroup_s
    broken = enter(kept.run, Phase.GATHERING, returned=returned, regroup_ends=regroup_ends)
    whys = ", ".join(known.why for known in heard.values() if known.gone and known.why)
    why = f"only {holders} of {world.size} ranks of round {world.round} still hold it{': ' if whys else ''}{whys}"
    return Step(broken, (Notice((broken.active,), Broken(world.seal_id, why)),), why).after(kept)


def recognised(run: Run, node: Node, seat: Seat) -> Run:
    """A node that the record has as finished, and that the server had not heard: from now on it is told things."""
    world, rank = run.world, seat.rank
    if world is None or world.seal_id != seat.seal_id or rank >= world.size:
        return run
    known = world.members[rank]
    if known.id == node.id or run.finished.get(known.id) != rank or known != _nobody(world.round, rank):
        return run
    members = (*world.members[:rank], node, *world.members[rank + 1 :])
    ranks, finished = (table.without(known.id).set(node.id, rank) for table in (run.ranks, run.finished))
    return change(run, world=replace(world, members=members), ranks=ranks, finished=finished)


def closed_before(run: Run, said: Announced, now: float) -> Step:
    """One node knows that the run was closed: that suffices, unless others speak of a later incarnation."""
    highest = run.highest
    if not said.incarnation:
        return Step(run, (), f"{said.node.name} speaks of a closed run that it does not name")
    if highest is None and not run.incarnation:
        run = change(run, incarnation=said.incarnation, bounds=said.bounds, settings=said.settings)
    if (highest.incarnation if highest is not None else run.incarnation) != said.incarnation:
        return Step(run, (), f"{said.node.name} speaks of an incarnation that is gone")
    concluded = adopt(run, now)
    if concluded.run.phase is Phase.CLOSED:
        return concluded
    return close(stays(concluded.run, said), said.ending, said.why, now).after(concluded)


def stays(run: Run, said: Announced) -> Run:
    """A member of a closed run is still here: until it has left, no node founds the next incarnation (rule 1).

    A node that was only told that the run is closed does not count: newcomers that come and go would keep it closed.
    """
    node = said.node
    if said.seat is None or node.id in run.finished or model.takes_part(run, node.id):
        return run
    return arrive(run, "queue", node)


def known_world(run: Run) -> tuple[str, RecordedWorld] | None:
    """The incarnation and world to record during recovery: the highest that is known, with its finished ranks."""
    highest = run.highest
    if highest is None:
        return None
    recorded = run.recorded or RecordedWorld(highest.round, highest.seal_id, highest.size)
    finished = rank_bitmap(rank for rank, known in run.heard.items() if known.finished)
    return highest.incarnation, replace(recorded, finished=finished)


def _with_heard(run: Run, rank: int, heard: HeardRank) -> Run:
    if heard.holds:
        run = depart(run, heard.node.id)  # an earlier join was answered after all
    if run.heard.get(rank) == heard:
        return run
    return change(run, heard=run.heard.set(rank, heard), ranks=run.ranks.set(heard.node.id, rank))


def _unannounced(of_round: int, rank: int, *, finished: bool = False, gone: bool = False) -> HeardRank:
    """A rank that will not speak."""
    return HeardRank(_nobody(of_round, rank), finished, finished, gone, announced=False)


def _nobody(of_round: int, rank: int | str) -> Node:
    """A stand-in for a member that was never heard."""
    name = f"rank-{rank}-of-round-{of_round}"
    return Node(id=name, name=name)
