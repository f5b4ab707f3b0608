"""Whether a claim is stale, by what one reader has seen (rule 17a).  Pure; the reader brings the times of its reads.

No clock is compared with another's: the reader measures how long the beat rests, from the end of one of its own reads to
the start of a later one, and holds that against the claim's own `rest_s`.
"""

from __future__ import annotations

import msgspec

from rallypoint.record import Record


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
