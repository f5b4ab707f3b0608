"""The election of a server through a register (rule 17), sans-IO: one for each run in a process.

It takes the answers of the register, what becomes of connections, and the time; it returns actions: calls of the register,
one at a time, and decisions.  A process looks for the server (`look`), claims the register where nobody lives that
serves, serves (`serving`), and hands over or steps down.  The shell does what it is told, and the simulation is one.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from rallypoint.core.model import EndedIncarnation, Predecessor, Run
from rallypoint.errors import RendezvousStateError
from rallypoint.location import actions as do
from rallypoint.location.actions import Action, Connect, ReadRecord, WriteRecord
from rallypoint.location.claiming import Claimant, SeenClaim, claim_record, delay_s, retry_s, seen, unmet_s
from rallypoint.location.held_claim import HeldClaim
from rallypoint.location.register import Entry
from rallypoint.record import LONGEST_REST_S, SHORTEST_REST_S, Claim, Record, decode, encode, restored

SUSPICIOUS = 0.75
"""The share of the time-out after which a silent server is doubted."""
READS_AWAITED = 2
"""How many reads of the others a takeover allows for, where they may not have noticed yet (rule 17f)."""


class Election:
    """Finds the server of a run for the nodes of this process, or makes this process the server.

    `is_host` says whether this process may serve: False forbids it, True lets it claim before the others.
    """

    def __init__(
        self,
        run_id: str,
        candidate: Callable[[], Claimant],
        *,
        mint: Callable[[], str],
        chance: Callable[[], float],
        rest_s: float,
        is_host: bool | None = None,
        secret: Callable[[], str] = str,
    ) -> None:
        self.run_id = run_id
        self.serving: HeldClaim | None = None
        self.why = "the register was not read yet"
        """What is awaited, in words (rule 11)."""
        self._candidate, self._mint, self._chance, self._secret = candidate, mint, chance, secret
        self._rest_s = min(max(rest_s, SHORTEST_REST_S), LONGEST_REST_S)
        self._is_host = is_host
        self._looks = self._gone = False
        self._in_flight: Action | None = None
        self._started = 0.0
        self._read_at: float | None = None
        self._entry: Entry | None = None
        self._record: Record | None = None
        self._watched = SeenClaim()
        self._welcomed = ""
        self._refused: tuple[str, float, int | None] = ("", 0.0, None)
        """A claim that had welcomed this process and then refused it, when, and the beat that was read after that."""
        self._failing: tuple[str, float] = ("", 0.0)
        self._stale: tuple[str, float] = ("", 0.0)
        """A claim that was read as stale, and since when."""
        self._delayed: tuple[object, float] = (None, 0.0)
        self._offer: Claim | None = None
        self._over: Record | None = None
        self._failures = self._epoch = 0

    # What the shell tells -----------------------------------------------------------------------------------------

    def look(self, now: float) -> list[Action]:
        """A node of this process has no server, or has not heard of it for long: read the register."""
        if self._gone:
            return []
        if self.serving is not None:
            return [Connect(self.serving.claim), *self.tick(now)]
        if not self._looks:
            self._looks, self._read_at, self._failures, self._delayed = True, now, 0, (None, 0.0)
        return self.tick(now)

    def content(self, now: float) -> list[Action]:
        """The nodes of this process hear their server: nothing is to be found."""
        if self.serving is None and not isinstance(self._in_flight, (do.Bind, WriteRecord)):
            self._looks = False
        return self.tick(now)

    def welcomed(self, claim_id: str, epoch: int, now: float) -> list[Action]:
        """The server with this claim has taken a node of this process in."""
        self._welcomed, self._failing, self._refused = claim_id, ("", 0.0), ("", 0.0, None)
        self._epoch = max(self._epoch, epoch)
        return self.content(now)

    def failed(self, claim_id: str, now: float, *, refused: bool) -> list[Action]:
        """A connection to the server with this claim could not be made, or ended."""
        if self._failing[0] != claim_id:
            self._failing = (claim_id, now)
        if refused and claim_id == self._welcomed:
            self._refused = (claim_id, now, None)
            if self._looks:
                self._read_at = now
        return self.look(now)

    def changed(self, now: float) -> list[Action]:
        """The register may have changed."""
        if self._looks:
            self._read_at = now
        elif self.serving is not None:
            self.serving.check()
        return self.tick(now)

    def wake_at(self) -> float | None:
        """When `tick` is due; None while an answer is awaited, or nothing is to be done."""
        if self._in_flight is not None:
            return self.serving.doubt_at() if self.serving is not None else None
        if self.serving is not None:
            return self.serving.wake_at()
        return self._read_at if self._looks else None

    @property
    def is_content(self) -> bool:
        """Whether nothing is to be found: the nodes of this process hear their server."""
        return not self._looks

    @property
    def is_calling(self) -> bool:
        """Whether an answer is awaited."""
        return self._in_flight is not None

    @property
    def refused_by(self) -> str:
        """The claim that had welcomed this process and whose address refused it since; empty where there is none."""
        return self._refused[0]

    def leave(self, run: Run | None, now: float) -> list[Action]:
        """The last node of this process leaves: hand over where this process serves, and claim nothing any more."""
        if self.serving is not None:
            self.serving.hand_over(run)
            return self.tick(now)
        self._gone = True
        # A claim that is being written must be removed if it was: that is looked up first.
        self._looks = isinstance(self._in_flight, WriteRecord)
        return [] if self._looks else self._unbind()

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to be done after `leave`: the process may end."""
        return self._gone and self.serving is None and not self._looks and self._in_flight is None

    # What the register answers ------------------------------------------------------------------------------------

    def read(self, entry: Entry | None, now: float) -> list[Action]:
        """A read was answered."""
        started, self._in_flight = self._started, None
        try:
            record = None if entry is None else decode(entry.value)
        except RendezvousStateError as exc:
            # Somebody else writes under this name: what it wrote is not ours to overwrite.
            return self.away(str(exc), now)
        if self.serving is not None:
            return self._serving_did(self.serving.read(entry, record, started, now), now)
        self._entry, self._record, self._failures = entry, record, 0
        self._epoch = max(self._epoch, 0 if record is None else record.epoch)
        return self._judge(started, now) if self._looks else []

    def wrote(self, entry: Entry | None, now: float) -> list[Action]:
        """A write was answered; None: another writer was first."""
        wrote, started, self._in_flight = self._in_flight, self._started, None
        assert isinstance(wrote, WriteRecord), "only a write is answered so"
        if self.serving is not None:
            return self._serving_did(self.serving.wrote(wrote.record, entry, started, now), now)
        self._read_at = now
        if entry is not None and self._gone:
            return self._leave_again(wrote.record, entry, now)
        if entry is None or now - started > self._rest_s / 2:
            return self.tick(now)  # after so long the claim may be another's again: read it first
        return self._serve(wrote.record, entry, now)

    def _look_back(self, record: Record | None, now: float) -> list[Action]:
        """This process has left; was its claim written after all?"""
        self._looks = False
        if record is not None and self._is_offered(record.claim) and self._entry is not None:
            return self._leave_again(record, self._entry, now)
        return self._unbind()

    def _is_offered(self, claim: Claim | None) -> bool:
        return self._offer is not None and claim is not None and claim.id == self._offer.id

    def _leave_again(self, record: Record, entry: Entry, now: float) -> list[Action]:
        """The claim was written after this process had decided to leave: it is removed before anybody trusts it."""
        self._looks = False
        self.serving = HeldClaim(record, entry, now, self._mint, self._chance)
        self.serving.hand_over(None)
        return self.tick(now)

    def away(self, why: str, now: float) -> list[Action]:
        """The register could not be reached, or did not answer: a write may have happened."""
        self._in_flight = None
        if self.serving is not None:
            return self._serving_did(self.serving.away(now), now)
        self._failures += 1
        self.why = f"the register does not tell who serves: {why}"
        self._read_at = now + retry_s(self._failures, self._chance())
        return []

    def bound(self, addresses: tuple[str, ...], port: int, now: float) -> list[Action]:
        """This process has bound a port that it can serve on."""
        self._in_flight = None
        self._offer = Claim(f"c{self._mint()}", addresses, port, self._rest_s, self._secret())
        return self._claim(now) if self._looks else self._unbind()

    def not_bound(self, why: str, now: float) -> list[Action]:
        """This process cannot serve: it has no port that it may serve on; another one may claim meanwhile."""
        self._in_flight = None
        self.why, self._read_at = f"nobody serves this run, and this node cannot: {why}", now + self._poll_s
        return []

    # Looking ------------------------------------------------------------------------------------------------------

    @property
    def _poll_s(self) -> float:
        poll_s = self._candidate().settings.heartbeat_interval_s / 2
        claim = self._record.claim if self._record is not None else None
        return poll_s if claim is None else min(poll_s, claim.rest_s / 4)

    def tick(self, now: float) -> list[Action]:
        """Make the call that is due, if any; `wake_at` says when one is."""
        if self.serving is not None:
            return self._serving_did(self.serving.go(now, busy=self._in_flight is not None), now)
        if self._in_flight is None and self._looks and self._read_at is not None and now >= self._read_at:
            return self._call(ReadRecord(), now)
        return []

    def _call(self, action: Action, now: float) -> list[Action]:
        self._in_flight, self._started = action, now
        return [action]

    def _judge(self, started: float, now: float) -> list[Action]:
        """What a read means to a process that looks for a server."""
        candidate, record = self._candidate(), self._record
        if self._gone:
            return self._look_back(record, now)
        if record is not None and (over := _ending(record, candidate)) is not None:
            self._looks = False
            return [*self._unbind(), do.Ended(over)]
        if record is None or record.claim is None:
            return self._may_be_taken(candidate, now)
        claim = record.claim
        self._watched = seen(self._watched, record, self._entry.claim_lives if self._entry else None, started, now)
        if not self._watched.stale:
            self._stale = ("", 0.0)
        if self._is_offered(claim):
            assert self._entry is not None, "a record was read"
            if now - started > self._rest_s / 2:
                self._read_at = now
                return self.tick(now)
            return self._serve(record, self._entry, now)  # the answer to the write that claimed was lost
        stale = self._watched.stale and not self._answers(candidate, claim, now)
        if stale or self._has_refused(claim, started) or self._in_vain(candidate, record, now):
            return self._may_be_taken(candidate, now)
        self._read_at = now + self._poll_s
        self.why = f"the server at {', '.join(claim.addresses)}, port {claim.port}, is being reached"
        return [*self._unbind(), Connect(claim)]

    def _answers(self, candidate: Claimant, claim: Claim, now: float) -> bool:
        """Whether a server whose claim is stale still answers, and has had no time yet to renew it (rule 17e)."""
        if self._stale[0] != claim.id:
            self._stale = (claim.id, now)
        timeout_s = candidate.settings.heartbeat_timeout_s
        heard = claim.id == self._welcomed and now - candidate.heard_at < SUSPICIOUS * timeout_s
        return heard and now - self._stale[1] < timeout_s

    def _has_refused(self, claim: Claim, started: float) -> bool:
        """Whether the server's address has refused this process, and nothing read since shows that it lives."""
        claim_id, at, beat = self._refused
        if claim_id != claim.id or started < at:
            return False
        if beat is not None and beat != claim.beat:
            self._refused = ("", 0.0, None)
            return False
        self._refused = (claim_id, at, claim.beat)
        return True

    def _in_vain(self, candidate: Claimant, record: Record, now: float) -> bool:
        """Whether a claim that no other process has met was tried for so long that it may be taken (rule 17a)."""
        longest_s = unmet_s(record, candidate.settings)
        claim_id, since = self._failing
        tried = record.claim is not None and record.claim.id == claim_id
        entitled = record.world is None or record.closing is not None or candidate.is_in(record)
        return longest_s is not None and tried and entitled and now - since > longest_s

    def _may_be_taken(self, candidate: Claimant, now: float) -> list[Action]:
        """Nobody serves, as far as this process knows: claim, when it is its turn (rule 17b)."""
        if candidate.leaving and not candidate.delivers:
            return self._wait_for_others("this node leaves it", now)
        if self._is_host is False:
            return self._wait_for_others("this node may not", now)
        shown = (self._entry and self._entry.token,)
        if self._delayed[0] != shown:
            delay = 0.0 if self._is_host else delay_s(candidate, self._record, self._chance())
            self._delayed = (shown, now + delay)
        if now < self._delayed[1]:
            self.why, self._read_at = "nobody serves this run: other nodes may claim it first", self._delayed[1]
            return []
        return self._claim(now)

    def _wait_for_others(self, because: str, now: float) -> list[Action]:
        """Nobody seems to serve, and this process will not: what the record names is tried all the same."""
        self.why, self._read_at = f"nobody serves this run, and {because}", now + self._poll_s
        claim = self._record.claim if self._record is not None else None
        return [] if claim is None else [Connect(claim)]

    def _claim(self, now: float) -> list[Action]:
        if self._offer is None:
            return self._call(do.Bind(), now)
        candidate = msgspec.structs.replace(self._candidate(), epoch=self._epoch)
        self._over = self._record
        record = claim_record(candidate, self._record, self.run_id, self._offer, self._mint())
        return self._call(WriteRecord(record, encode(record), self._entry and self._entry.token), now)

    def _unbind(self) -> list[Action]:
        """Another process serves: the port that this one has bound is not needed."""
        offer, self._offer = self._offer, None
        return [] if offer is None else [do.Unbind()]

    # Serving ------------------------------------------------------------------------------------------------------

    def _serve(self, record: Record, entry: Entry, now: float) -> list[Action]:
        """The claim is recorded: this process is the server, and recovers what there is (rule 17f)."""
        before, offer = self._over, self._offer
        assert offer is not None, "a process that claims has a port"
        old = before.claim if before is not None and before.claim is not None and before.claim.id != offer.id else None
        settings = record.settings
        is_refused = old is not None and self._refused[0] == old.id
        all_noticed = old is None or is_refused
        hold_s = settings.reconnect_backoff_s if all_noticed else settings.hold_s + READS_AWAITED * self._poll_s
        predecessor = None
        if old is not None and record.world is not None and old.ranks:
            silent_from = now if is_refused else self._candidate().heard_at + settings.heartbeat_timeout_s
            until = max(now + settings.reconnect_grace_s, silent_from)
            predecessor = Predecessor(record.world.seal_id, old.ranks, until)
        self.serving = HeldClaim(record, entry, now, self._mint, self._chance)
        self._epoch, self._looks, self._offer = record.epoch, False, None
        self._failing, self._watched = ("", 0.0), SeenClaim()
        return [do.Serve(record, offer, restored(record, now, hold_s, predecessor)), Connect(offer)]

    def _serving_did(self, actions: list[Action], now: float) -> list[Action]:
        for action in actions:
            if isinstance(action, (ReadRecord, WriteRecord)):
                self._in_flight, self._started = action, now
            elif isinstance(action, do.Stop):
                self._epoch = max(self._epoch, action.epoch)
                self._gone = self._gone or action.handed_over
                self.serving, self._welcomed = None, ""
        return actions


def _ending(record: Record, candidate: Claimant) -> EndedIncarnation | None:
    """How the incarnation ended that this process is in a world of, where the record says so (rule 17h)."""
    if not candidate.seal_id:
        return None
    if record.closing is not None and record.incarnation == candidate.incarnation:
        return EndedIncarnation(record.incarnation, record.closing.ending, record.closing.why)
    last = record.last
    return last if last is not None and last.incarnation == candidate.incarnation else None
