"""The leader's thread: it watches what nodes say, lets `leading` decide, and writes what comes of it.

Every write compares the leader's key, and the board its own last revision: who is no longer the leader can write nothing.
When in doubt it forgets all and takes the run over from etcd once more.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from rallypoint import recording
from rallypoint.core import codec
from rallypoint.core.model import Phase
from rallypoint.errors import RendezvousStateError
from rallypoint.etcd import estate
from rallypoint.etcd.adopting import Estate, adopt
from rallypoint.etcd.at_once import at_once
from rallypoint.etcd.board import encode_board
from rallypoint.etcd.keys import Keys
from rallypoint.etcd.leading import Draft, Leading, Saying, Wish, Word
from rallypoint.etcd_client import (
    EtcdClient,
    EtcdError,
    EtcdLeaseLostError,
    KeyValue,
    Lease,
    Resync,
    Watch,
    compare,
    delete_op,
    put_op,
)
from rallypoint.etcd_client.messages import RequestOp

log = logging.getLogger("rallypoint.etcd")

RUN_LEASE_S = 600
_BATCH = 100
_LITTLE = 256 * 1024
_AT_ONCE = 4
"""How many operations, and how many bytes, go into one transaction; and how many of those are under way at a time."""

_LINGER_S = 0.3
_GAP_S = 0.05
_GLANCE_S = 0.01
"""How long a founder waits at most for those who come at the same moment, how long at least for the next of them, and how
often it looks."""

_PAUSES_S = (0.05, 0.1, 0.2, 0.5, 1.0)
_PAUSED_S = 1.0
"""Who wakes so much later than planned was stopped for a while, and reads before it decides."""


class _DeposedError(Exception):
    """Somebody else is the leader."""


class Leader:
    """A leader of one run, from its election until it retires or is deposed.

    `node_id` is the node's, `lease` its own, which the leader's key hangs on; `created` is the revision that the key was
    created at; `found` is all that there was in etcd at that revision, where that was no run yet, and `took_s` how long etcd took for
    the node's own word: so long those who came at the same moment may need.
    """

    def __init__(
        self,
        client: EtcdClient,
        keys: Keys,
        run_id: str,
        node_id: str,
        lease: Lease,
        created: int,
        over: Callable[[], None],
        *,
        found: Estate | None = None,
        took_s: float = 0.0,
    ) -> None:
        self._client = client
        self._keys = keys
        self._run_id = run_id
        self._node_id = node_id
        self._lease = lease
        self._mine = compare(keys.leader, create_revision=created)
        self._created = created
        self._over = over
        self._wake = threading.Event()
        self._retire_after: int | None = None
        self._stopped = False
        self._run_lease: Lease | None = None
        self._found = found
        self._linger_s = max(took_s, _GAP_S) if found is not None else 0.0
        self._asked_ahead: Lease | None = None
        self._tomb = 0
        self._heritage = 0
        self._shown = 0
        self._leading: Leading | None = None
        self.is_over = False
        self._thread = threading.Thread(target=self._run, name="rallypoint-leader", daemon=True)
        self._thread.start()

    def retire(self, after: int, timeout_s: float) -> None:
        """Publish what was said up to this revision, and stop; at most for so long."""
        self._retire_after = after
        self._wake.set()
        self._thread.join(timeout_s)
        self._stopped = True
        self._wake.set()

    # The thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        failures = 0
        try:
            while failures == 0 or self._is_leader():
                try:
                    self._lead()
                    return
                except EtcdError as exc:
                    log.info("run %r: its leader starts over: %s", self._run_id, exc)
                self._wake.wait(_PAUSES_S[min(failures, len(_PAUSES_S) - 1)])
                self._wake.clear()
                failures += 1
        except _DeposedError:
            log.info("run %r: another node leads it now", self._run_id)
        except RendezvousStateError as exc:
            log.error("run %r cannot be led: %s", self._run_id, exc)
        except Exception:
            log.exception("run %r: its leader failed", self._run_id)
        finally:
            self.is_over = True
            for lease in (self._run_lease, self._asked_ahead):
                if lease is not None:
                    lease.release()
            self._over()

    def _is_leader(self) -> bool:
        """Whether this node leads, as far as can be found out; only etcd's word ends it."""
        if self._stopped or self._lease.lost.is_set():
            return False
        try:
            found = self._client.get(self._keys.leader)
        except EtcdError:
            return True
        return found is not None and found.create_revision == self._created

    def _lead(self) -> None:
        found, self._found = self._found, None
        if found is not None:
            self._asked_ahead = self._client.grant(RUN_LEASE_S, ahead=True)  # it founds a run, and will need one soon
        else:
            found = estate.read_estate(self._client, self._keys, self._run_id)
        self._shown = found.shown
        self._release_run_lease()
        leading = self._leading
        if found.board is None and leading is not None and _is_written_down(leading):
            found = self._restore(leading, found)
        else:
            leading = self._leading = adopt(self._run_id, found, time.monotonic(), lambda: secrets.token_hex(8))
            leading.leader = self._node_id
        if found.board is not None and found.board.ended is not None:
            self._tomb = found.board.lease
        if leading.lease:
            self._hang(leading)  # also where there is nothing to write: the run lives by it
        since = found.revision + 1
        with (
            self._client.watch(self._keys.said, prefix=True, revision=since, wake=self._wake.set) as watch,
            self._client.watch(self._keys.board, revision=since, wake=self._wake.set) as boards,
        ):
            self._linger(leading)
            while not self._stopped and not self._lease.lost.is_set():
                self._check_board(leading, boards)
                self._publish(leading)
                if self._retire_after is not None and leading.folded >= self._retire_after:
                    return
                self._listen(leading, watch)

    def _check_board(self, leading: Leading, boards: Watch) -> None:
        """Nobody but the leader writes the board, but somebody may delete it, or the lease that it hangs on."""
        while (item := boards.get(0)) is not None:
            is_gone = not item.kvs if isinstance(item, Resync) else item.is_delete
            if is_gone and item.revision > self._shown and _is_written_down(leading):
                raise _StaleError("its board is gone")

    def _restore(self, leading: Leading, found: Estate) -> Estate:
        """Nothing is lost while a leader has it in mind: it writes down anew what was deleted, and nobody need regroup."""
        log.warning(
            "run %r: its board is gone from etcd: somebody deleted it, or revoked the lease %x that all of the run hangs "
            "on; this node leads the run, and writes it down anew",
            *(self._run_id, leading.lease),
        )
        unsaid = leading.unsaid(found.words)
        if unsaid:
            self._hang(leading)
            puts = (put_op(self._keys.node(w.node_id), codec.encode_message(w), lease=leading.lease) for w in unsaid)
            at_once(self._transact, _batches(puts), _AT_ONCE)
            found = estate.read_estate(self._client, self._keys, self._run_id)
        leading.restore(found.words, found.wishes, found.revision, time.monotonic())
        return found

    def _linger(self, leading: Leading) -> None:
        """Those who come at the same moment are heard before anything is published: often that is all that is needed.

        They are read, for etcd is in no hurry with a watch that begins before what was written last: it sends to those
        ten times a second.
        """
        gap_s, self._linger_s = self._linger_s, 0.0
        now = time.monotonic()
        until, here, heard_at = now + _LINGER_S, leading.run.live, now
        while leading.run.phase is Phase.GATHERING and now < min(until, heard_at + gap_s):
            time.sleep(_GLANCE_S)
            if self._stopped or self._retire_after is not None:
                return
            self._read_all(leading)
            now = time.monotonic()
            if leading.run.live != here:
                here, heard_at = leading.run.live, now

    def _listen(self, leading: Leading, watch: Watch) -> None:
        """Wait for something to be said, or for something to be due; take what was said."""
        now = time.monotonic()
        due = leading.wake_at()
        moments = [now + self._lease.ttl_s]
        moments += [moment for moment in (due, leading.remark_at(now)) if moment is not None]
        soonest = min(moments)
        self._wake.wait(max(soonest - now, 0.0))
        self._wake.clear()
        for sayings in self._news(watch):
            if isinstance(sayings, Resync):
                self._take_all(leading, sayings.kvs, sayings.revision)
            else:
                leading.take(sayings, time.monotonic())
        now = time.monotonic()
        if (due is not None and now >= due) or now >= soonest + _PAUSED_S:
            # Before a decision by time, and after a pause: what is in etcd counts, not what arrived (rule 10).
            self._read_all(leading)
            leading.tick(time.monotonic())

    def _news(self, watch: Watch) -> Iterator[Sequence[Saying] | Resync]:
        """All that has arrived."""
        sayings: list[Saying] = []
        while (item := watch.get(0)) is not None:
            if isinstance(item, Resync):
                sayings.clear()
                yield item
                continue
            said = (
                estate.gone(self._keys, item.key, item.revision)
                if item.is_delete
                else estate.saying_of(self._keys, item.kv)
            )
            if said is not None:
                sayings.append(said)
        yield sayings

    def _read_all(self, leading: Leading) -> None:
        pages = list(self._client.pages(self._keys.said, prefix=True))
        self._take_all(leading, [kv for page in pages for kv in page.kvs], pages[0].revision)

    def _take_all(self, leading: Leading, kvs: Sequence[KeyValue], revision: int) -> None:
        sayings = [said for kv in kvs if (said := estate.saying_of(self._keys, kv)) is not None]
        words = [said for said in sayings if isinstance(said, Word)]
        wishes = [said for said in sayings if isinstance(said, Wish)]
        leading.take_all(words, wishes, revision, time.monotonic())

    # Writing ------------------------------------------------------------------------------------------------------

    def _publish(self, leading: Leading) -> None:
        while True:
            if leading.draft(time.monotonic()) is None:
                return
            self._hang(leading)
            draft = leading.draft(time.monotonic())
            assert draft is not None, "what was to be written still is"
            self._write(leading, draft)
            leading.written(draft, time.monotonic())
            for turn in leading.turns:
                if turn.why:
                    log.info("run %r: %s", self._run_id, turn.why)
                recording.tell(turn.before, turn.after, turn.why, turn.losses, turn.leave)
            leading.turns.clear()
            self._bury()

    def _hang(self, leading: Leading) -> None:
        """The lease that all is written on: the run's own, or once it is closed that of its tombstone (rule 1)."""
        if leading.run.phase is Phase.CLOSED:
            if not self._tomb or leading.lease != self._tomb:
                self._heritage = leading.lease
                ttl_s = max(math.ceil(leading.run.settings.closed_ttl_s), 1)
                leading.lease = self._tomb = self._client.grant(ttl_s, keep=False).id
            return
        if self._run_lease is not None and leading.lease == self._run_lease.id and not self._run_lease.lost.is_set():
            return
        self._release_run_lease()
        self._run_lease = self._adopt_lease(leading)
        leading.lease = self._run_lease.id

    def _adopt_lease(self, leading: Leading) -> Lease:
        """The run's lease is renewed by whoever leads; a new one is granted where it is gone, or belongs to a tombstone."""
        if leading.lease and leading.lease != self._tomb:
            try:
                return self._client.adopt(leading.lease)
            except EtcdLeaseLostError:
                pass
        lease = self._asked_ahead
        if lease is None:
            return self._client.grant(RUN_LEASE_S)
        self._client.ensure(lease)
        self._asked_ahead = None
        return lease

    def _write(self, leading: Leading, draft: Draft) -> None:
        """Who reads the board finds all that it speaks of, so that is written before it.

        A small world goes into one transaction with the board that names it: every write waits for etcd's disks.
        """
        along = [(self._keys.part(draft.seal_id, number), part) for number, part in enumerate(draft.parts)]
        along += [
            (self._keys.told(node_id), codec.encode_message(said)) for node_id, said in sorted(draft.told.items())
        ]
        puts = [put_op(key, value, lease=leading.lease) for key, value in along]
        seals = draft.board is not None and bool(draft.parts) and draft.board.ended is None
        if not seals or len(puts) >= _BATCH or sum(len(value) for _, value in along) > _LITTLE:
            parts, told = puts[: len(draft.parts)], puts[len(draft.parts) :]
            at_once(self._transact, [*([part] for part in parts), *_batches(iter(told))], _AT_ONCE)
            puts = []
        if draft.board is not None:
            written = self._client.guarded_put(
                self._keys.board,
                encode_board(draft.board),
                mod_revision=self._shown,
                when=[self._mine],
                then=puts,
                lease=leading.lease,
            )
            if not written.succeeded:
                raise self._refused()
            self._shown = written.revision
        at_once(self._transact, _batches(self._litter(draft)), _AT_ONCE)

    def _litter(self, draft: Draft) -> Iterator[RequestOp]:
        """What nobody needs any more."""
        for node_id in draft.departed:
            yield delete_op(self._keys.node(node_id))
            yield delete_op(self._keys.told(node_id))
        for token in draft.granted:
            yield delete_op(self._keys.wish(token))
        if draft.parts:
            for first, end in self._keys.besides(draft.seal_id):
                yield delete_op(first, end=end)

    def _transact(self, operations: Sequence[RequestOp]) -> None:
        """Under the guard of the board as it is, a late copy of a write whose answer was lost does no harm."""
        guard = [self._mine, compare(self._keys.board, mod_revision=self._shown)]
        if not self._client.transaction(guard, operations, again=True).succeeded:
            raise self._refused()

    def _refused(self) -> Exception:
        return _StaleError("the board was changed by somebody else") if self._is_leader() else _DeposedError()

    def _bury(self) -> None:
        """Once a run is closed its lease goes, and with it all but the tombstone."""
        if self._heritage:
            self._release_run_lease()
            self._client.revoke(self._heritage)
            self._heritage = 0

    def _release_run_lease(self) -> None:
        if self._run_lease is not None:
            self._run_lease.release()
            self._run_lease = None


class _StaleError(EtcdError):
    """What the leader knew of the board is not true."""


def _is_written_down(leading: Leading) -> bool:
    """Whether there ought to be a board: one was written, and is not a tombstone, which goes by itself (rule 1)."""
    return leading.is_shown and leading.run.phase is not Phase.CLOSED


def _batches(operations: Iterator[RequestOp]) -> Iterator[list[RequestOp]]:
    """Operations in transactions that etcd takes: it allows 128 at once, conditions included."""
    while batch := list(islice(operations, _BATCH)):
        yield batch
