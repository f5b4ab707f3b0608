"""Recovery from announcements (rule 14): what an authority does that has lost its memory, or part of it.

It seals nothing until every rank of the highest announced world has spoken, or every node of an earlier life must have
spoken; ranks not heard by then are lost.
"""

from __future__ import annotations

from itertools import chain

import msgspec

from rallypoint.core.changes import Step, change, close, depart, enter, found, tell
from rallypoint.core.events import Announced, Joined, Seat, Standing
from rallypoint.core.model import Claim, Ending, Node, Phase, Run, Waiter, World, find_waiter
from rallypoint.core.notices import Broken, Fenced, Notice
from rallypoint.core.table import Table


def blank(run_id: str, started_at: float, now: float, hold_s: float) -> Run:
    """A run of which this authority, up since `started_at`, has no record."""
    hold_ends = started_at + hold_s
    if now >= hold_ends:
        return Run(run_id=run_id)
    return Run(run_id=run_id, phase=Phase.RECOVERING, hold_ends=hold_ends)


def claimed(run: Run, said: Joined | Announced, seat: Seat, *, holds: bool, finished: bool = False) -> Step:
    """A node speaks of a world of an earlier life."""
    node = said.node
    highest = next(run.claims.values(), None)
    wrong = _contradiction(run, highest, said, seat)
    if wrong:
        return Step(run, tell(node.id, Fenced(seat.seal_id, wrong)), wrong)
    claim = Claim(node, said.incarnation, seat.round, seat.seal_id, seat.size, holds, finished)
    if highest is None or seat.round > highest.round:
        superseded = tuple(
            notice
            for old in run.claims.values()
            for notice in tell(old.node.id, Broken(old.seal_id, f"round {seat.round} came after it"))
        )
        taken = change(
            run,
            bounds=said.bounds,
            settings=said.settings,
            claims=Table(),
            ranks=Table(),
        )
        return Step(_with_claim(taken, seat.rank, claim), superseded, _spoke(node, seat))
    if seat.seal_id != highest.seal_id:
        return Step(
            run,
            tell(node.id, Broken(seat.seal_id, f"round {highest.round} came after it")),
            f"{node.name} speaks of round {seat.round}, but round {highest.round} came after it",
        )
    known = run.claims.get(seat.rank)
    if known is not None:
        # What is broken stays broken, and who has finished stays finished: an older message may arrive late.
        claim = msgspec.structs.replace(claim, holds=holds and known.holds, finished=finished or known.finished)
    noted = _with_claim(run, seat.rank, claim)
    return Step(noted) if noted is run else Step(noted, (), _spoke(node, seat))


def _contradiction(run: Run, highest: Claim | None, said: Joined | Announced, seat: Seat) -> str:
    """Why what a node says of a world cannot be true beside what others said; empty if it can."""
    name = said.node.name
    if not said.incarnation:
        return f"{name} speaks of round {seat.round} of an incarnation that it does not name"
    if seat.size > said.bounds.max:
        return f"{name} speaks of a world of {seat.size}, where {said.bounds.max} are the most that it asks for"
    if highest is None or highest.seal_id != seat.seal_id:
        return ""
    if (highest.incarnation, highest.round, highest.size) != (said.incarnation, seat.round, seat.size):
        return f"{name} and {highest.node.name} speak of round {seat.round}, but not of the same world"
    known = run.claims.get(seat.rank)
    if known is not None and known.node.id != said.node.id:
        return f"rank {seat.rank} of round {seat.round} is {known.node.name}"
    if run.ranks.get(said.node.id, seat.rank) != seat.rank:
        return f"{name} speaks of two ranks in round {seat.round}"
    return ""


def silenced(run: Run, node_id: str, *, finished: bool = False) -> Run:
    """A node that had spoken goes while the authority still recovers: its rank is out, or has finished."""
    rank = run.ranks.get(node_id)
    if rank is None or run.claims[rank].finished:
        return run
    known = run.claims[rank]
    claim = msgspec.structs.replace(known, holds=finished and known.holds, finished=finished, gone=not finished)
    return change(run, claims=run.claims.set(rank, claim))


def complete(run: Run, now: float) -> bool:
    """Whether nothing is to be gained by listening on."""
    assert run.hold_ends is not None, "recovery has an end"
    highest = next(run.claims.values(), None)
    if now >= run.hold_ends:
        return True
    if highest is not None:
        return len(run.claims) >= highest.size
    # Max nodes who have never heard of a world: nobody is left whom it would be unfair not to wait for.
    return run.round == 0 and len(run.queue) >= run.bounds.max


def conclude(run: Run, now: float, mint: str) -> Step:
    """The hold is over: the highest world stands, or is broken, or there was none."""
    highest = next(run.claims.values(), None)
    if highest is None:
        fresh = found(run, run.bounds, run.settings, mint)
        kept = change(fresh, queue=run.queue, spares=run.spares)
        return Step(kept, (), "nobody speaks of an earlier world: the run starts anew" if run.live else "")
    world = World(highest.incarnation, highest.round, highest.seal_id, _roster(run, highest), now)
    back = {i: w for i, w in chain(run.queue.items(), run.spares.items()) if i in run.ranks}
    finished = {c.node.id: rank for rank, c in run.claims.items() if c.finished}
    here = {c.node.id: rank for rank, c in run.claims.items() if not (c.finished or c.gone or c.node.id in back)}
    holders = sum(c.holds and not c.finished for c in run.claims.values())
    adopted = change(
        run,
        incarnation=highest.incarnation,
        world=world,
        active=Table.build(here.items()),
        finished=Table.build(finished.items()),
        claims=Table(),
        hold_ends=None,
    )
    if len(finished) == world.size:
        return close(adopted, Ending.SUCCEEDED, "all members have finished", now)
    if holders + len(finished) == world.size:
        return Step(
            enter(adopted, Phase.SEALED, told_at=now),
            (),
            f"all {world.size} ranks of round {world.round} still hold it",
        )
    broken = enter(
        adopted,
        Phase.GATHERING,
        returned=Table.build(back.items()),
        queue=Table.build((i, w) for i, w in run.queue.items() if i not in back),
        spares=Table.build((i, w) for i, w in run.spares.items() if i not in back),
        regroup_ends=now + run.settings.regroup_s,
    )
    why = f"only {holders} of {world.size} ranks of round {world.round} still hold it"
    return Step(broken, (Notice((broken.active,), Broken(world.seal_id, why)),), why)


def closed_before(run: Run, said: Announced, now: float, mint: str) -> Step:
    """One node knows that the run was closed: that suffices, unless others speak of a later incarnation."""
    highest = next(run.claims.values(), None)
    if not said.incarnation:
        return Step(run, (), f"{said.node.name} speaks of a closed run that it does not name")
    if highest is None:
        known = change(run, incarnation=said.incarnation, bounds=said.bounds, settings=said.settings)
        return close(stays(known, said), said.ending, said.why, now)
    if highest.incarnation != said.incarnation:
        return Step(run, (), f"{said.node.name} speaks of an incarnation that is gone")
    concluded = conclude(run, now, mint)
    return close(stays(concluded.run, said), said.ending, said.why, now).after(concluded)


def stays(run: Run, said: Announced) -> Run:
    """A member of a closed run is still here: until it has left, nobody founds the next incarnation (rule 1).

    Who was only told that the run is closed does not count: newcomers that come and go would keep it closed for ever.
    """
    node = said.node
    known = node.id in run.active or node.id in run.finished or find_waiter(run, node.id) is not None
    if known or said.seat is None:
        return run
    waiter = Waiter(node, run.arrivals)
    return change(run, arrivals=run.arrivals + 1, queue=run.queue.set(node.id, waiter))


def standing_of(said: Announced) -> tuple[bool, bool]:
    """Whether an announcement says that the node holds its world, and whether it finished in it."""
    return said.standing in (Standing.HOLDS, Standing.FINISHED), said.standing is Standing.FINISHED


def _with_claim(run: Run, rank: int, claim: Claim) -> Run:
    if claim.holds:
        run = depart(run, claim.node.id)  # an earlier join was answered after all
    if run.claims.get(rank) == claim:
        return run
    return change(run, claims=run.claims.set(rank, claim), ranks=run.ranks.set(claim.node.id, rank))


def _spoke(node: Node, seat: Seat) -> str:
    return f"{node.name} had rank {seat.rank} of {seat.size} in round {seat.round}"


def _roster(run: Run, highest: Claim) -> tuple[Node, ...]:
    unheard = (f"rank-{rank}-of-round-{highest.round}" for rank in range(highest.size))
    return tuple(
        claim.node if (claim := run.claims.get(rank)) is not None else Node(id=name, name=name)
        for rank, name in enumerate(unheard)
    )
