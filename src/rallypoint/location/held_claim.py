"""Keeping a claim (rules 17c, 17d, 17e, 17g), sans-IO: the part of an election that runs while this process serves.

It writes what the server wants to be recorded, raises the beat, finds out what became of a write whose answer was lost,
claims again where the register forgot, and steps down where another claim came after its own.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from rallypoint.core.model import Phase, Run
from rallypoint.location.actions import Action, ClaimedAgain, Doubt, ReadRecord, Recorded, Renewed, Stop, WriteRecord
from rallypoint.location.claiming import WITHOUT_RANK_S, WITHOUT_RANK_SPREAD_S, retry_s
from rallypoint.location.register import Entry
from rallypoint.messages.types import rank_bitmap, ranks_of
from rallypoint.record import MOST_RANKS, Record, encode, of

OTHERS_FIRST_S = WITHOUT_RANK_S + WITHOUT_RANK_SPREAD_S
"""How long others may take to claim, once they have noticed that nobody serves (rule 17b)."""
MOST_EPOCHS = 1_000_000
"""A node that speaks of a claim so many epochs ahead is not believed."""
MOST_TRIED = 64
"""How many unconfirmed writes are remembered."""


class HeldClaim:
    """One life of a server: its claim, and the record as it was last confirmed."""

    def __init__(
        self, record: Record, entry: Entry, now: float, mint: Callable[[], str], chance: Callable[[], float]
    ) -> None:
        assert record.claim is not None, "a server has a claim"
        self.claim = record.claim
        """As it was last confirmed, also while it is removed."""
        self.record = record
        self.is_in_doubt = False
        self._token, self._has_lease = entry.token, entry.claim_lives is not None
        self._mint, self._chance = mint, chance
        self.renewed_at = now
        """When the register was last asked something whose answer shows this claim."""
        self._beat_at, self._retry_at = now + self.claim.rest_s / 3, 0.0
        self._wanted: tuple[Run, tuple[int, ...]] | None = None
        self._leaving: Run | None = None
        self._leaves = self._must_read = self._met = False
        self._is_relinquishing = False
        """Whether the claim is to be removed, or was, so that others may claim."""
        self._claims_again_at = float("-inf")
        self._awaited_since: float | None = None
        self._floor = self._failures = 0
        self._tried: dict[str, Record] = {}
        """What was written since the last write that was confirmed: each may still arrive, or have arrived."""

    # What the server wants ----------------------------------------------------------------------------------------

    def want(self, run: Run, own_ranks: tuple[int, ...]) -> None:
        """This is to be recorded before anybody hears of it; `Recorded` says when it is."""
        self._wanted = (run, own_ranks)

    def meet(self) -> bool:
        """A node of another process was welcomed under this claim (rule 17a); whether that is new, and to be written."""
        is_new, self._met = not self._met, True
        return is_new

    def hear_epoch(self, incarnation: str, epoch: int) -> None:
        """A node has heard of a higher epoch: the register must confirm it, or the claim is raised above it (17d)."""
        known = max(self._floor, self.record.epoch)
        if incarnation == self.record.incarnation and known < epoch <= known + MOST_EPOCHS:
            self._floor, self._must_read = epoch, True

    def check(self) -> None:
        """The register may have changed: look whether the claim still stands."""
        self._must_read = True

    def renew(self, now: float) -> None:
        """The server was paused, and answers nobody before a later read shows its claim; `Renewed` says so (17e)."""
        self._awaited_since, self._must_read = now, True

    def hand_over(self, run: Run | None) -> None:
        """The process leaves: remove the claim, and say whether the world is broken (rule 17g)."""
        self._leaves, self._leaving = True, run

    def relinquish(self, run: Run, now: float) -> None:
        """Most nodes cannot be heard: remove the claim, and claim again if nobody else does; `Renewed` says so (17e)."""
        self._is_relinquishing, self._leaving, self._awaited_since = True, run, now

    @property
    def _is_relinquished(self) -> bool:
        return self._is_relinquishing and self.record.claim is None

    def wake_at(self) -> float:
        """When there is something to do."""
        if self._is_relinquished and not (self._leaves or self._must_read):
            return min(max(self._claims_again_at, self._retry_at), self.doubt_at())
        if self._wanted is not None or self._leaves or self._must_read or self._is_relinquishing:
            return self._retry_at
        due = self._beat_at if not self._is_met_unwritten else self._retry_at
        return min(max(due, self._retry_at), self.doubt_at())

    def doubt_at(self) -> float:
        """When the claim is in doubt if it is not renewed until then."""
        return float("inf") if self.is_in_doubt else self.doubt_from()

    def doubt_from(self) -> float:
        """Until when what is known of the claim is fresh enough."""
        return max(self.renewed_at, self._claims_again_at) + self.claim.rest_s

    # What is to be done -------------------------------------------------------------------------------------------

    def go(self, now: float, *, busy: bool) -> list[Action]:
        """The next call of the register, where none is in flight; and whether the claim is in doubt."""
        actions: list[Action] = []
        if self.record.claim is None and not self._is_relinquishing:
            return actions  # handed over
        if now >= self.doubt_at():
            self.is_in_doubt = True
            actions.append(Doubt(f"the claim could not be renewed for {now - self.renewed_at:.1f} s"))
        if not busy and now >= self._retry_at and (call := self._next(now)) is not None:
            actions.append(call)
        return actions

    @property
    def _is_met_unwritten(self) -> bool:
        return self._met and self.record.met < self.record.epoch

    def _next(self, now: float) -> Action | None:
        if self._must_read:
            return self._read()
        if self._is_relinquished and not self._leaves:
            return self._read() if now >= self._claims_again_at else None
        if self._wanted is not None and not self._is_relinquishing:
            return self._write(self._drafted(*self._wanted))
        if self._is_relinquishing or self._leaves:
            return self._write(self._without_claim())
        if self._is_met_unwritten or (now >= self._beat_at and not self._has_lease):
            return self._write(self._beaten(self.record))
        return self._read() if now >= self._beat_at else None

    def _read(self) -> ReadRecord:
        self._must_read = False  # what makes a read necessary from now on makes another one necessary
        return ReadRecord()

    def _write(self, record: Record) -> WriteRecord:
        self._tried[record.write_id] = record
        if len(self._tried) > MOST_TRIED:
            del self._tried[next(iter(self._tried))]
        return WriteRecord(record, encode(record), self._token)

    def _drafted(self, run: Run, ranks: tuple[int, ...]) -> Record:
        claim = replace(self.claim, ranks=ranks[:MOST_RANKS])
        drafted = of(run, epoch=self.record.epoch, write_id=self._mint(), claim=claim)
        return self._beaten(replace(drafted, met=self.record.met))

    def _without_claim(self) -> Record:
        """The record as it was confirmed, without the claim; where the world broke since, it says so."""
        left = replace(self.record, claim=None, write_id=self._mint())
        run, world = self._leaving, left.world
        if world is None or run is None or run.phase is not Phase.GATHERING:
            return left
        broken = of(run, epoch=left.epoch, write_id=left.write_id, handing_over=True).world
        if broken is None or broken.seal_id != world.seal_id:
            return left
        # What was recorded since then counts: only that it is broken, and which ranks are gone, is added.
        finished = set(world.finished_ranks())
        gone = rank_bitmap(rank for rank in ranks_of(broken.gone) if rank not in finished)
        return replace(left, world=replace(world, broken=True, gone=gone))

    def _beaten(self, record: Record) -> Record:
        assert record.claim is not None, "a server has a claim"
        claim = replace(record.claim, beat=self.claim.beat + 1)
        met = record.epoch if self._met else record.met
        return replace(record, claim=claim, met=met, write_id=self._mint())

    # What the register answers ------------------------------------------------------------------------------------

    def wrote(self, wrote: Record, entry: Entry | None, started: float, now: float) -> list[Action]:
        """A write was answered."""
        # Another writer was first; or the lease ended meanwhile, and others take the claim for stale.
        self._must_read = self._must_read or entry is None or entry.claim_lives is False
        confirmed = [] if entry is None else self._confirmed(wrote, entry, started, now)
        return [*confirmed, *self.go(now, busy=False)]

    def away(self, now: float) -> list[Action]:
        """Nothing is known: what was written is looked up first."""
        self._must_read = True
        self._failures += 1
        self._retry_at = now + retry_s(self._failures, self._chance())
        return self.go(now, busy=False)

    def read(self, entry: Entry | None, shown: Record | None, started: float, now: float) -> list[Action]:
        """What is in the register: what this server wrote, or something else (rule 17d)."""
        written = None if shown is None else {self.record.write_id: self.record, **self._tried}.get(shown.write_id)
        if entry is not None and written is not None:
            actions = self._confirmed(written, entry, started, now)
            if written.claim is None:
                must_claim = self._is_relinquished and not self._leaves and now >= self._claims_again_at
            else:
                must_claim = self._floor > self.record.epoch or entry.claim_lives is False
            if must_claim:
                return [*actions, self._claim_again(entry, shown)]
            return actions if written.claim is None else [*actions, *self.go(now, busy=False)]
        if shown is not None and self._deposes(shown):
            why = f"another server was elected: epoch {shown.epoch} came after epoch {self.record.epoch}"
            return [Stop(why, shown.epoch, handed_over=self._leaves)]
        if not self._leaves or self._wanted is not None:
            return [self._claim_again(entry, shown)]
        if shown is not None and self._is_ours(shown):
            return self.away(now)  # an older record was shown
        return [Stop("its process leaves, and the register names it no longer", self.record.epoch, handed_over=True)]

    def _is_ours(self, shown: Record) -> bool:
        return shown.claim is not None and shown.claim.id == self.claim.id

    def _deposes(self, shown: Record) -> bool:
        """Whether what is shown ends this server: a later claim, or an incarnation that it knows nothing of."""
        ours = self._is_ours(shown)
        if shown.epoch > self.record.epoch and not ours:
            return True
        if shown.round > self.record.round and not ours:
            return True  # the register forgot the epochs, and others have gone on since
        if shown.world is None and shown.closing is None and shown.round < self.record.round:
            return False  # the register forgot, and the run was founded anew: nothing came of that yet
        last = self.record.last
        known = {tried.incarnation for tried in (self.record, *self._tried.values())}
        return shown.incarnation not in known | ({last.incarnation} if last is not None else set())

    def _claim_again(self, entry: Entry | None, shown: Record | None) -> WriteRecord:
        """The register forgot, or shows an older state: the same claim with a higher epoch, by compare-and-set."""
        self._token = entry.token if entry is not None else None
        epoch = 1 + max(self.record.epoch, self._floor, shown.epoch if shown is not None else 0)
        raised = replace(self.record, epoch=epoch, claim=self.claim)
        return self._write(self._beaten(raised))

    def _confirmed(self, record: Record, entry: Entry, started: float, now: float) -> list[Action]:
        """The register shows what was written: the claim is renewed, and what was awaited may be told."""
        actions: list[Action] = []
        if record.epoch > self.record.epoch:
            actions.append(ClaimedAgain(record.epoch))
            self._is_relinquishing = False
        if record is not self.record:
            self._tried.clear()  # the others of these were written with an older token, and come too late
            self._failures = 0
        beaten = record is not self.record or self._has_lease
        was_claimed = self.record.claim is not None
        self.record, self._token, self._retry_at = record, entry.token, 0.0
        if record.claim is None and self._is_relinquishing and not self._leaves:
            if was_claimed:
                self._claims_again_at = now + record.settings.reconnect_backoff_s + OTHERS_FIRST_S
            return actions
        if record.claim is None:
            self._is_relinquishing = False
            return [Stop("its process leaves, and another one serves from now on", record.epoch, handed_over=True)]
        self.claim, self.renewed_at = record.claim, started
        if beaten:
            self._beat_at = started + self.claim.rest_s / 3
        if self.is_in_doubt and now < self.doubt_from():
            self.is_in_doubt = False
            actions.append(Doubt(""))
        if self._awaited_since is not None and started >= self._awaited_since and not self._is_relinquishing:
            self._awaited_since = None
            actions.append(Renewed(started))
        if self._wanted is not None and _records(record, self._wanted[0]):
            self._wanted = None
            actions.append(Recorded())
        return actions


def _records(record: Record, run: Run) -> bool:
    """Whether a record says of a run all that it has to."""
    said = of(run, epoch=record.epoch, write_id=record.write_id, claim=record.claim)
    return replace(said, met=record.met) == record
