"""Who leads next: a few named successors watch the leader's key, everybody else looks now and then."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rallypoint.etcd import estate
from rallypoint.etcd.chorus import Choir, Chorus, Word
from rallypoint.etcd.keys import Keys
from rallypoint.etcd.leader import Leader
from rallypoint.etcd_client import (
    EtcdClient,
    KeyValue,
    Lease,
    Outcome,
    Resync,
    Watch,
    compare,
    get_op,
    put_op,
)
from rallypoint.etcd_client.messages import RequestOp

_PAUSE_S = 0.5
"""How long a leader that could not lead pauses before it tries again."""

_PATIENCE_S = 0.3
"""So long at most a word waits for others of this process whose leases are on their way: on slow disks each write costs that."""

_LOOKS_A_SECOND = 50
"""How often all nodes of a run together look whether somebody leads, unless that is seldom for each of them."""
_LONGEST_S = 30.0
"""A run may be for many more nodes than have come."""


class Said(NamedTuple):
    """What came of saying something: the revision that it was written at, and the board as it was then."""

    revision: int
    board: KeyValue | None


class Succession:
    """One node's part in it.  For one thread."""

    def __init__(self, client: EtcdClient, keys: Keys, run_id: str, wake: Callable[[], None]) -> None:
        self.look_at = 0.0
        self._client = client
        self._keys = keys
        self._run_id = run_id
        self._wake = wake
        self._chorus: Chorus | None = None
        self._word: Word | None = None
        self._leader: Leader | None = None
        self._watch: Watch | None = None
        self.patience_s = 0.0
        """For how long what is not `said` yet may wait for others, with nobody writing it; 0 where somebody does."""
        self.is_in_doubt = False
        """Whether what was written last may be in etcd though there was no answer: a word, and the leader's key."""
        self._vacant = False

    def say(self, lease: Lease, node_id: str, puts: Sequence[RequestOp]) -> Said:
        """Write, and become the leader where there is none.

        If the answer was lost this is done once more: it changes nothing that the first time has done.
        """
        return self._written(Word(node_id, lease, puts, self._wake))

    def announce(self, node_id: str) -> None:
        """This node will say something along with others as soon as it has its lease."""
        self._join_chorus().announce(node_id)

    def say_with_others(self, lease: Lease, node_id: str, puts: Sequence[RequestOp]) -> Said | None:
        """The same, along with what other nodes of this process say; None where it is to be `said` later."""
        self._client.ensure(lease)
        word = Word(node_id, lease, puts, self._wake)
        self._join_chorus().say(word, self._write, _PATIENCE_S)
        self._word = word
        return self.said()

    @property
    def is_speaking(self) -> bool:
        """Whether something is being written along with what others say."""
        return self._word is not None

    def said(self) -> Said | None:
        """What came of it; None while it waits, or is being written: `wake` is called in the end.

        Whoever finds that its patience is over has it written.
        """
        word = self._word
        if word is not None and not word.is_settled:
            # In this order: who is told that nothing is left is also the one who has it written.
            self.patience_s = max(word.patience_ends - time.monotonic(), 0.0)
            self._join_chorus().hurry(word)
        if word is None or not word.is_settled:
            return None
        self._word = None
        if word.trouble is not None:
            self.is_in_doubt = True
            raise type(word.trouble)(*word.trouble.args) from word.trouble
        return self._written(word)

    def forget(self) -> None:
        """What was being said is the word of a node that is no more."""
        self.is_in_doubt = False
        if self._word is not None:
            self._word.is_withdrawn = True
            self._word = None

    @property
    def leads(self) -> bool:
        """Whether this node is the leader, and knows it."""
        return self._leader is not None and not self._leader.is_over

    def _written(self, word: Word) -> Said:
        lease = word.lease
        self._client.ensure(lease)
        self.is_in_doubt = True
        outcome = word.outcome
        if outcome is None:
            word.began = time.monotonic()
            outcome = self._write([word])
        leads = outcome.succeeded and word.is_first
        leader = None if outcome.succeeded else estate.found_by(outcome, -2)
        board = estate.found_by(outcome, -2 if outcome.succeeded else -1)
        if leads or (leader is not None and leader.lease == lease.id):
            created = outcome.revision if leader is None else leader.create_revision
            if self._leader is None or self._leader.is_over:
                self._leader = Leader(
                    *(self._client, self._keys, self._run_id, word.node_id, lease, created, self._wake),
                    found=estate.found_by_founder(self._keys, outcome) if leads and board is None else None,
                    took_s=time.monotonic() - word.began,
                )
        self.is_in_doubt = False
        return Said(outcome.revision, board)

    def _join_chorus(self) -> Chorus:
        if self._chorus is None:
            self._chorus = self._client.part(Choir).of(self._keys.run)
        return self._chorus

    def _write(self, words: Sequence[Word]) -> Outcome:
        keys, first = self._keys, words[0]
        puts = [put for word in words for put in word.puts]
        return self._client.transaction(
            [compare(keys.leader, create_revision=0)],
            [*puts, put_op(keys.leader, first.node_id, lease=first.lease.id), get_op(keys.board), estate.said_op(keys)],
            [*puts, get_op(keys.leader), get_op(keys.board)],
            again=True,
        )

    def is_vacant(self, lease: Lease, size: int, *, named_at: int | None, within_s: float) -> bool:
        """Whether it seems that nobody leads, until somebody has `looked`; asked when something happened, and at `look_at`.

        Etcd may take `within_s` to say so.
        `named_at` is the revision at which a leader has named this node as a successor; 0 where it names others, and None
        where there is no board.
        """
        if self._leader is not None and self._leader.is_over:
            # Either somebody else leads, or this node could not and is not asked to try again in a hurry.
            self._leader, self.look_at = None, time.monotonic() + _PAUSE_S
        if self._leader is not None:
            self.rest(lease.ttl_s)
            return False
        if named_at == 0 and self._watch is not None:
            # Else all would watch it in the end, and rise at once when it is gone.
            self._watch.close()
            self._watch = None
        if named_at and (self._watch is None or self._watch.is_over):
            self._watch = self._client.watch(self._keys.leader, revision=named_at + 1, wake=self._wake)
        self._hear()
        if not self._vacant and time.monotonic() >= self.look_at:
            # To read costs etcd no write to its disks; to claim the place does, be it taken.
            found = self._client.get(self._keys.leader, timeout_s=within_s)
            self._vacant = found is None or found.lease == lease.id  # a leader here that failed is to begin again
            if not self._vacant:
                self.looked(lease, size)
        return self._vacant

    def looked(self, lease: Lease, size: int) -> None:
        """Somebody leads.  The more nodes there are, the longer each of them waits until it looks again; one looks soon enough.

        Those who were named to succeed it may be gone with the leader.
        """
        self._vacant = False
        between_s = min(max(lease.ttl_s / 4, size / _LOOKS_A_SECOND), _LONGEST_S)
        self.look_at = time.monotonic() + random.uniform(1, 2) * between_s

    def rest(self, for_s: float) -> None:
        """There is nothing to look for."""
        self.look_at = time.monotonic() + for_s

    def end(self, after: int, timeout_s: float) -> None:
        """Let go of everything; a leader first publishes what was said up to this revision."""
        self.forget()
        if self._watch is not None:
            self._watch.close()
        if self._leader is not None:
            self._leader.retire(after, timeout_s)

    def _hear(self) -> None:
        while self._watch is not None and not self._watch.is_over and (item := self._watch.get(0)) is not None:
            self._vacant = not item.kvs if isinstance(item, Resync) else item.is_delete
