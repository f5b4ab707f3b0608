"""Claims (rules 17a, 17b): whether one is stale, who may claim, after which delay, and what the record says then.  Pure.

No clock is compared with another's: a reader measures how long the beat rests, from the end of one of its own reads to the
start of a later one, and compares that with the claim's own `rest_s`.
"""

from __future__ import annotations

import msgspec

from rallypoint.core.model import EndedIncarnation
from rallypoint.messages.types import Bounds, Settings
from rallypoint.record import MOST_RANKS, Claim, Record

STAGGER_S, LONGEST_STAGGER_S = 0.03, 1.0
WITHOUT_RANK_S, WITHOUT_RANK_SPREAD_S = 1.0, 0.5
LEAVING_S = 2.0
FOR_HOST_S = 0.2
"""How long the others let the process claim first in which the medium itself lives."""
LONGEST_UNMET_S = 60.0
FIRST_RETRY_S, LONGEST_RETRY_S = 0.05, 1.0


class Claimant(msgspec.Struct, frozen=True, kw_only=True):
    """What a process that may claim knows of its own nodes.

    `seal_id` and `ranks` are those of the world that they are in, `incarnation` the one that they know.  `leaving` says
    that they leave, and `delivers` that a server has not acknowledged yet why, or that the run is to be closed; `trains`
    that they train in the process itself.  `heard_at` is when one of them last heard a server.  `hosts` says whether the
    register's medium lives in this process; None where it lives in no node.
    """

    bounds: Bounds
    settings: Settings
    incarnation: str = ""
    round: int = 0
    seal_id: str = ""
    ranks: tuple[int, ...] = ()
    epoch: int = 0
    leaving: bool = False
    delivers: bool = False
    trains: bool = False
    heard_at: float = float("-inf")
    hosts: bool | None = None

    def is_in(self, record: Record) -> bool:
        """Whether one of its nodes is an unfinished rank of the recorded world."""
        world = record.world
        return world is not None and world.seal_id == self.seal_id and not {*self.ranks} <= {*world.finished_ranks()}


def delay_s(candidate: Claimant, record: Record | None, chance: float) -> float:
    """How long a process waits before it claims (rule 17b): the lowest rank first, so that few write at once."""
    if candidate.leaving:
        return LEAVING_S
    if candidate.hosts:
        return 0.0  # where this process ends, the register ends with it: nobody is better placed to serve
    if record is None:
        return 0.0 if candidate.hosts is None else FOR_HOST_S
    world = record.world if record.closing is None else None
    if world is None:
        return 0.0
    if world.seal_id != candidate.seal_id or not candidate.ranks:
        return WITHOUT_RANK_S + WITHOUT_RANK_SPREAD_S * chance
    served = record.claim.ranks if record.claim is not None else ()
    rank = min(candidate.ranks)
    place = rank - sum(other < rank for other in served)
    return min(STAGGER_S * place, LONGEST_STAGGER_S) + 0.1 * candidate.trains


def retry_s(failures: int, chance: float) -> float:
    """How long a process waits before it asks a register again that did not answer."""
    return min(FIRST_RETRY_S * 2.0 ** min(failures, 6), LONGEST_RETRY_S) * (0.5 + chance / 2)


def unmet_s(record: Record, settings: Settings) -> float | None:
    """How long a claim that no other process has met is tried in vain before it may be taken; None: for ever."""
    if record.claim is None or record.epoch <= record.met:
        return None
    tries = min(record.epoch - record.met - 1, 16)
    return min(settings.heartbeat_timeout_s * 2.0**tries, LONGEST_UNMET_S)


def claim_record(candidate: Claimant, record: Record | None, run_id: str, claim: Claim, mint: str) -> Record:
    """The record by which a process claims: the next epoch, and a new incarnation where the old one has ended."""
    epoch = 1 + max(candidate.epoch, record.epoch if record is not None else 0)
    if record is not None and record.world is not None and record.closing is None:
        ranks = candidate.ranks[:MOST_RANKS] if candidate.seal_id == record.world.seal_id else ()
        claim = msgspec.structs.replace(claim, ranks=ranks)
        return msgspec.structs.replace(record, epoch=epoch, write_id=mint, claim=claim)
    incarnation, last = candidate.incarnation, None
    if record is not None:
        incarnation, last = record.incarnation, record.last
        if (outcome := record.closing) is not None:
            incarnation, last = "", EndedIncarnation(record.incarnation, outcome.ending, outcome.why)
    return Record(
        run_id=run_id,
        incarnation=incarnation or f"r{mint}",
        epoch=epoch,
        round=max(candidate.round, record.round if record is not None else 0),
        write_id=mint,
        bounds=candidate.bounds,
        settings=candidate.settings,
        claim=claim,
        last=last,
        met=record.met if record is not None else epoch - 1,
    )


class SeenClaim(msgspec.Struct, frozen=True):
    """The claim and beat that a reader saw last, since when it has seen them rest, and when its last read ended."""

    claim_id: str = ""
    epoch: int = 0
    beat: int = -1
    resting_since: float = 0.0
    read_at: float = 0.0
    stale: bool = False


def seen(watched: SeenClaim, record: Record, claim_lives: bool | None, started: float, ended: float) -> SeenClaim:
    """A read that lasted from `started` to `ended` has shown this record, which has a claim."""
    claim = record.claim
    assert claim is not None, "only a claim can be stale"
    if claim_lives is not None:
        return SeenClaim(claim.id, record.epoch, claim.beat, ended, ended, stale=not claim_lives)
    same = (watched.claim_id, watched.epoch, watched.beat) == (claim.id, record.epoch, claim.beat)
    # A reader that was away itself has not seen the beat rest.
    if not same or started - watched.read_at > claim.rest_s / 2:
        return SeenClaim(claim.id, record.epoch, claim.beat, ended, ended)
    stale = started - watched.resting_since > claim.rest_s
    return msgspec.structs.replace(watched, read_at=ended, stale=stale)
