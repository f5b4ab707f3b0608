"""Recovery (rules 14 and 17f): what a server does that has just started, and knows of the run only what others tell.

With a record, the recorded world is the only one that can be current; without one, the highest world that a node
announces is.  Nothing is sealed until every rank of that world was heard or is accounted for, or until the hold has
passed; ranks not heard by then are lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import msgspec

from rallypoint.core import explain
from rallypoint.core.changes import Durability, Step, change, close, depart, emptied, enter, found, tell
from rallypoint.core.model import (
    EndedIncarnation,
    HeardRank,
    Phase,
    Predecessor,
    RecordedWorld,
    Request,
    Run,
    WaitingNode,
    World,
    find_waiter,
    rank_bitmap,
    ranks_of,
)
from rallypoint.core.notices import Notice
from rallypoint.messages.notices import Broken, Fenced, Refused
from rallypoint.messages.requests import Announced, Joined, Seat, Standing
from rallypoint.messages.types import Ending, Node, Role, is_loopback
from rallypoint.sorted_map import SortedMap


class _WorldName(msgspec.Struct, frozen=True):
    """The highest world that is known of while recovering."""

    incarnation: str
    round: int
    seal_id: str
    size: int


def blank(run_id: str, started_at: float, now: float, hold_s: float) -> Run:
    """A run of which this server, up since `started_at`, has no record."""
    hold_ends = started_at + hold_s
    if now >= hold_ends:
        return Run(run_id=run_id)
    return Run(run_id=run_id, phase=Phase.RECOVERING, hold_ends=hold_ends)


def with_recorded_world(run: Run, recorded: RecordedWorld, hold_ends: float) -> Run:
    """The run whose record names a world: its ranks announce themselves, those that have finished are not awaited."""
    known = change(run, phase=Phase.RECOVERING, recorded=recorded, round=max(run.round, recorded.round))
    name = _highest(known)
    assert name is not None, "the record names it"
    gone = {rank: _unannounced(name, rank, gone=True) for rank in ranks_of(recorded.gone)}
    finished = {rank: _unannounced(name, rank, finished=True) for rank in recorded.finished_ranks()}
    return change(known, heard=SortedMap.build({**gone, **finished}.items()), hold_ends=hold_ends)


def without(run: Run, predecessor: Predecessor | None) -> Run:
    """The run with what is known of the process that served before, which is gone (rules 14, 17f)."""
    return change(run, predecessor=predecessor) if run.phase is Phase.RECOVERING else run


def is_forgotten(run: Run, said: Joined | Announced) -> bool:
    """Whether a node was in a world of this very incarnation that the record, by which the server began, forgot."""
    if said.seat is None or run.world is not None or run.phase is not Phase.GATHERING or not run.founded:
        return False
    return said.incarnation == run.incarnation and not _contradiction(run, None, said, said.seat)


def forgotten(run: Run, now: float) -> Run:
    """The record does not know a world that a node of this incarnation was in: rule 14 without a record applies."""
    request = Request(run.bounds, run.settings, run.incarnation)

    def asking(waiters: SortedMap[str, WaitingNode]) -> SortedMap[str, WaitingNode]:
        return SortedMap.build((i, msgspec.structs.replace(w, request=request)) for i, w in waiters.items())

    return enter(
        run,
        Phase.RECOVERING,
        hold_ends=now + run.settings.hold_s,
        last_call_ends=None,
        queue=asking(run.queue),
        spares=asking(run.spares),
    )


def heard_of(
    run: Run, said: Joined | Announced, seat: Seat, now: float, *, holds: bool, finished: bool = False
) -> Step:
    """A node speaks of a world that it was in before this server started."""
    node = said.node
    highest = _highest(run)
    wrong = _contradiction(run, highest, said, seat)
    if wrong:
        return Step(run, tell(node.id, Fenced(seat.seal_id, wrong)), wrong)
    heard = HeardRank(node, said.incarnation, seat.round, seat.seal_id, seat.size, holds, finished)
    if highest is None or seat.round > highest.round:
        return _higher(run, said, seat, heard, now)
    if seat.seal_id != highest.seal_id:
        return Step(
            run,
            tell(node.id, Broken(seat.seal_id, f"round {highest.round} came after it")),
            f"{node.name} speaks of round {seat.round}, but round {highest.round} came after it",
        )
    if run.recorded is not None and run.recorded.broken:
        heard = msgspec.structs.replace(heard, holds=finished)
    known = run.heard.get(seat.rank)
    if known is not None:
        # What is broken stays broken, and who has finished stays finished: an older message may arrive late.
        kept = known.holds or not known.announced
        heard = msgspec.structs.replace(heard, holds=heard.holds and kept, finished=finished or known.finished)
    noted = _with_heard(run, seat.rank, heard)
    if noted is run:
        return Step(noted)
    newly = finished and not (known is not None and known.finished)
    return Step(noted, (), _spoke(node, seat), Durability.FINISH if newly else Durability.NONE)


def _higher(run: Run, said: Joined | Announced, seat: Seat, heard: HeardRank, now: float) -> Step:
    """A node speaks of a higher world than the others, or than the record: rule 14 without a record applies to it."""
    superseded = tuple(
        notice
        for old in run.heard.values()
        if old.announced
        for notice in tell(old.node.id, Broken(old.seal_id, f"round {seat.round} came after it"))
    )
    taken = change(run, recorded=None, heard=SortedMap(), ranks=SortedMap())
    if run.recorded is not None:
        assert run.hold_ends is not None, "recovery has an end"
        taken = change(taken, hold_ends=max(run.hold_ends, now + run.settings.hold_s))
    else:
        taken = change(taken, bounds=said.bounds, settings=said.settings)
    durability = Durability.FINISH if heard.finished else Durability.NONE
    return Step(_with_heard(taken, seat.rank, heard), superseded, _spoke(said.node, seat), durability)


def _contradiction(run: Run, highest: _WorldName | None, said: Joined | Announced, seat: Seat) -> str:
    """Why what a node says of a world cannot be true beside what others said; empty if it can."""
    name = said.node.name
    if not said.incarnation:
        return f"{name} speaks of round {seat.round} of an incarnation that it does not name"
    if seat.size > said.bounds.max:
        return f"{name} speaks of a world of {seat.size}, where {said.bounds.max} are the most that it asks for"
    if run.incarnation and seat.size > run.bounds.max:
        return (
            f"{name} speaks of a world of {seat.size}, where {run.bounds.max} are the most that the run was founded for"
        )
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
    """A node that had spoken goes while the server still recovers: its rank is out, or has finished."""
    rank = run.ranks.get(node_id)
    if rank is None or run.heard[rank].finished:
        return run
    known = run.heard[rank]
    heard = msgspec.structs.replace(
        known, holds=finished and known.holds, finished=finished, gone=not finished, why="" if finished else why
    )
    return change(run, heard=run.heard.set(rank, heard))


def give_up_predecessor(run: Run, now: float) -> Run:
    """The ranks of the process that served before are lost once their time is over and they have not spoken."""
    gone, highest = run.predecessor, _highest(run)
    if gone is None or highest is None or now < gone.until or gone.seal_id != highest.seal_id:
        return run
    heard = run.heard
    for rank in gone.ranks:
        if rank < highest.size and rank not in heard:
            heard = heard.set(rank, _unannounced(highest, rank, gone=True))
    return change(run, heard=heard, predecessor=None)


def complete(run: Run, now: float) -> bool:
    """Whether nothing is to be gained by listening on."""
    assert run.hold_ends is not None, "recovery has an end"
    highest = _highest(run)
    if now >= run.hold_ends:
        return True
    if highest is not None:
        return len(run.heard) >= highest.size and _anybody_spoke(run, highest)
    # Max nodes who have never heard of a world: nobody is left whom it would be unfair not to wait for.
    if run.round or len(run.queue) < run.bounds.max:
        return False
    waiters = list(run.queue.values())
    other = next((w.node for w in waiters if w.node.address), None)
    agreed = sum(w.request is not None and w.request.bounds == run.bounds and _mixes(w.node, other) for w in waiters)
    return agreed >= run.bounds.max


def _anybody_spoke(run: Run, highest: _WorldName) -> bool:
    """Whether a rank of the world was heard, or all have finished; if neither, those that stand by may be on their way."""
    finished = sum(known.finished for known in run.heard.values())
    return finished == highest.size or any(known.announced for known in run.heard.values())


def conclude(run: Run, now: float, mint: str) -> Step:
    """The hold is over: the highest world stands, or is broken, or its incarnation has ended, or there was none."""
    highest = _highest(run)
    if highest is None:
        return _begin_anew(run, mint, "nobody speaks of an earlier world: the run starts anew")
    if not _goes_on(run, highest):
        why = f"nobody of round {highest.round} came back"
        ended = change(run, last=EndedIncarnation(highest.incarnation, Ending.FAILED, why), last_call_ends=None)
        anew = _begin_anew(ended, mint, f"{why}: that incarnation of the run has ended")
        # Its members are told that it is over: that must be recorded first, as any close (rule 17c).
        return msgspec.structs.replace(anew, durability=Durability.SEAL_OR_CLOSE)
    return _adopt(run, highest, now)


def _goes_on(run: Run, highest: _WorldName) -> bool:
    """Whether a node that has not finished is here and names the incarnation, or all of its world has finished."""
    heard = run.heard.values()
    if any(rank.announced and not (rank.gone or rank.finished) for rank in heard):
        return True
    waiters = chain(run.queue.values(), run.spares.values())
    if any(w.request is not None and w.request.incarnation == highest.incarnation for w in waiters):
        return True
    return sum(rank.finished for rank in run.heard.values()) == highest.size


def _begin_anew(run: Run, mint: str, why: str) -> Step:
    """A new incarnation for the nodes that wait, as the first of them asks for it; without one the run is empty."""
    waiters = sorted(chain(run.queue.values(), run.spares.values()), key=lambda w: w.arrival)
    first = next((w.request for w in waiters if w.request is not None), None)
    if first is None:
        return Step(emptied(run, run.last), (), why if run.last is not None else "")
    called = run.last_call_ends if first.settings == run.settings else None
    fresh = change(found(run, first.bounds, first.settings, mint), last_call_ends=called)
    return _keep_waiters(fresh, run.queue.values(), run.spares.values(), why)


def _mixes(node: Node, other: Node | None) -> bool:
    """Whether two nodes can reach each other, by the kind of their addresses (rule 2)."""
    return other is None or not node.address or is_loopback(node) == is_loopback(other)


def _keep_waiters(
    run: Run, queue: Iterator[WaitingNode], spares: Iterator[WaitingNode], why: str, other: Node | None = None
) -> Step:
    """The nodes that waited through the hold; those that ask for other bounds, or give addresses of another kind than
    the first, are refused now (rules 1, 2)."""
    kept: dict[bool, dict[str, WaitingNode]] = {False: {}, True: {}}
    refused: list[Notice] = []
    for waiter in sorted(chain(queue, spares), key=lambda w: w.arrival):
        node, request = waiter.node, waiter.request
        if request is not None and request.bounds != run.bounds:
            refused += tell(node.id, Refused(explain.bounds_differ(run, node.name, request.bounds)))
        elif other is not None and not _mixes(node, other):
            refused += tell(node.id, Refused(explain.addresses_differ(node, other)))
        else:
            other = other or (node if node.address else None)
            is_spare = waiter.node.role is Role.SPARE
            kept[is_spare][waiter.node.id] = msgspec.structs.replace(waiter, request=None)
    fields = {"queue": SortedMap.build(kept[False].items()), "spares": SortedMap.build(kept[True].items())}
    return Step(change(run, **fields), tuple(refused), why)


def _adopt(run: Run, highest: _WorldName, now: float) -> Step:
    world = World(highest.incarnation, highest.round, highest.seal_id, _roster(run, highest), now)
    heard = run.heard
    waiting = {**dict(run.queue.items()), **dict(run.spares.items())}
    back = {i: msgspec.structs.replace(w, request=None) for i, w in waiting.items() if i in run.ranks}
    finished = {world.members[rank].id: rank for rank, known in heard.items() if known.finished}
    here = {k.node.id: rank for rank, k in heard.items() if not (k.finished or k.gone or k.node.id in back)}
    holders = sum(k.holds and not k.finished for k in heard.values())
    ended_before = run.recorded.ended_before if run.recorded is not None else 0
    earlier = ((f"finished-before-{number}", -1) for number in range(ended_before))
    adopted = change(
        run,
        incarnation=highest.incarnation,
        world=world,
        ranks=SortedMap.build((node.id, rank) for rank, node in enumerate(world.members)),
        active=SortedMap.build(here.items()),
        finished=SortedMap.build(chain(finished.items(), earlier)),
        queue=SortedMap(),
        spares=SortedMap(),
        heard=SortedMap(),
        recorded=None,
        predecessor=None,
        hold_ends=None,
        last_call_ends=None,
    )
    kept = _keep_waiters(
        adopted,
        (w for i, w in run.queue.items() if i not in back),
        (w for i, w in run.spares.items() if i not in back),
        "",
        next((known.node for known in heard.values() if known.node.address), None),
    )
    if run.recorded is None:
        # No record names this world yet: the next server is to know it.
        kept = msgspec.structs.replace(kept, durability=Durability.SEAL_OR_CLOSE)
    if len(finished) == world.size:
        return close(kept.run, Ending.SUCCEEDED, "all members have finished", now).after(kept)
    if holders + len(finished) == world.size:
        whole = f"all {world.size} ranks of round {world.round} still hold it"
        return Step(enter(kept.run, Phase.SEALED, told_at=now), (), whole).after(kept)
    broken = enter(
        kept.run,
        Phase.GATHERING,
        returned=SortedMap.build(back.items()),
        regroup_ends=now + run.settings.regroup_s,
    )
    whys = ", ".join(known.why for known in heard.values() if known.gone and known.why)
    why = f"only {holders} of {world.size} ranks of round {world.round} still hold it{': ' if whys else ''}{whys}"
    return Step(broken, (Notice((broken.active,), Broken(world.seal_id, why)),), why).after(kept)


def adopt_at_once(run: Run, now: float) -> Step:
    """The run is closed while the server still listens: the highest world that is known, as far as it is."""
    highest = _highest(run) if run.phase is Phase.RECOVERING else None
    return Step(run) if highest is None else _adopt(run, highest, now)


def recognised(run: Run, node: Node, seat: Seat) -> Run:
    """A node that the record has as finished, and that the server had not heard: from now on it is told things."""
    world = run.world
    if world is None or world.seal_id != seat.seal_id or seat.rank >= world.size:
        return run
    known = world.members[seat.rank]
    if known.id == node.id or run.finished.get(known.id) != seat.rank or known != _nobody(world, seat.rank):
        return run
    members = (*world.members[: seat.rank], node, *world.members[seat.rank + 1 :])
    return change(
        run,
        world=msgspec.structs.replace(world, members=members),
        ranks=run.ranks.without(known.id).set(node.id, seat.rank),
        finished=run.finished.without(known.id).set(node.id, seat.rank),
    )


def closed_before(run: Run, said: Announced, now: float, mint: str) -> Step:
    """One node knows that the run was closed: that suffices, unless others speak of a later incarnation."""
    highest = _highest(run)
    if not said.incarnation:
        return Step(run, (), f"{said.node.name} speaks of a closed run that it does not name")
    if highest is None and not run.incarnation:
        known = change(run, incarnation=said.incarnation, bounds=said.bounds, settings=said.settings)
        return close(stays(known, said), said.ending, said.why, now)
    if (highest.incarnation if highest is not None else run.incarnation) != said.incarnation:
        return Step(run, (), f"{said.node.name} speaks of an incarnation that is gone")
    concluded = _adopt(run, highest, now) if highest is not None else Step(run)
    if concluded.run.phase is Phase.CLOSED:
        return concluded
    return close(stays(concluded.run, said), said.ending, said.why, now).after(concluded)


def stays(run: Run, said: Announced) -> Run:
    """A member of a closed run is still here: until it has left, nobody founds the next incarnation (rule 1).

    Who was only told that the run is closed does not count: newcomers that come and go would keep it closed for ever.
    """
    node = said.node
    known = node.id in run.active or node.id in run.finished or find_waiter(run, node.id) is not None
    if known or said.seat is None:
        return run
    waiter = WaitingNode(node, run.arrivals)
    return change(run, arrivals=run.arrivals + 1, queue=run.queue.set(node.id, waiter))


def standing_of(said: Announced) -> tuple[bool, bool]:
    """Whether an announcement says that the node holds its world, and whether it finished in it."""
    return said.standing in (Standing.HOLDS, Standing.FINISHED), said.standing is Standing.FINISHED


def known_world(run: Run) -> tuple[str, RecordedWorld] | None:
    """The incarnation and world to record while the server recovers: the highest that is known, with its finished ranks."""
    highest = _highest(run)
    if highest is None:
        return None
    finished = rank_bitmap(rank for rank, heard in run.heard.items() if heard.finished)
    before = run.recorded
    if before is not None:
        return highest.incarnation, msgspec.structs.replace(before, finished=finished)
    return highest.incarnation, RecordedWorld(highest.round, highest.seal_id, highest.size, finished)


def _highest(run: Run) -> _WorldName | None:
    """The highest world that was announced, or that the record names."""
    if run.recorded is not None:
        recorded = run.recorded
        return _WorldName(run.incarnation, recorded.round, recorded.seal_id, recorded.size)
    known = next(run.heard.values(), None)
    return None if known is None else _WorldName(known.incarnation, known.round, known.seal_id, known.size)


def _with_heard(run: Run, rank: int, heard: HeardRank) -> Run:
    if heard.holds:
        run = depart(run, heard.node.id)  # an earlier join was answered after all
    if run.heard.get(rank) == heard:
        return run
    return change(run, heard=run.heard.set(rank, heard), ranks=run.ranks.set(heard.node.id, rank))


def _unannounced(world: _WorldName, rank: int, *, finished: bool = False, gone: bool = False) -> HeardRank:
    """A rank that will not speak."""
    node = _nobody(world, rank)
    return HeardRank(
        node, world.incarnation, world.round, world.seal_id, world.size, finished, finished, gone, announced=False
    )


def _nobody(world: _WorldName | World, rank: int) -> Node:
    """A stand-in for a member that was never heard."""
    name = f"rank-{rank}-of-round-{world.round}"
    return Node(id=name, name=name)


def _spoke(node: Node, seat: Seat) -> str:
    return f"{node.name} had rank {seat.rank} of {seat.size} in round {seat.round}"


def _roster(run: Run, highest: _WorldName) -> tuple[Node, ...]:
    heard = (run.heard.get(rank) for rank in range(highest.size))
    return tuple(known.node if known is not None else _nobody(highest, rank) for rank, known in enumerate(heard))
