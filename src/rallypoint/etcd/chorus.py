"""Words that the nodes of one process have for one run: those that come at the same time are written together.

To write a word costs etcd, and the process, hardly more with others beside it than alone.  So the first waits for others for
a moment, if there are any, and those who come while it is being written go together next.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from weakref import WeakValueDictionary

from rallypoint.etcd import crew
from rallypoint.etcd_client import (
    EtcdClosedError,
    EtcdError,
    EtcdLeaseLostError,
    EtcdRefusedError,
    Lease,
    Outcome,
)
from rallypoint.etcd_client.hub import Hub
from rallypoint.etcd_client.messages import RequestOp

_MOST = 32  # etcd takes 128 operations at once

_COMES_S = 1.0
"""Who was on its way for so long is waited for no more."""

_MOMENT_S = 0.003
"""Nodes that begin together come within so much time; to etcd it is nothing."""


class Word:
    """What one node has to say.  `wake` is called when another has written it, or could not."""

    def __init__(self, node_id: str, lease: Lease, puts: Sequence[RequestOp], wake: Callable[[], None]) -> None:
        self.node_id = node_id
        self.lease = lease
        self.began = math.inf
        """When it began to be written."""
        self.patience_ends = 0.0
        """Until when it waits for others who are on their way."""
        self.puts = tuple(puts)
        self.wake = wake
        self.outcome: Outcome | None = None
        """What came of the transaction that it was written in; None where it has yet to be written, alone.

        So it is where somebody else's word may have been to blame."""
        self.is_first = True
        """Whether it was not written along with another: if nobody leads, that one does."""
        self.trouble: EtcdError | None = None
        """Why it could not be written, nor could it be alone."""
        self.is_settled = False
        """Whether there is nobody to wait for."""
        self.is_withdrawn = False
        """Whether its node wants it written no more."""


Write = Callable[[Sequence[Word]], Outcome]
"""Writes some words in one transaction."""


class Chorus:
    """The words for one run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Word, Write]] = deque()
        self._coming: dict[str, float] = {}
        self._is_busy = False

    def announce(self, node_id: str) -> None:
        """A node will have something to say soon."""
        with self._lock:
            self._coming.setdefault(node_id, time.monotonic())

    def say(self, word: Word, write: Write, patience_s: float = 0.0) -> None:
        """Write it, with those that wait; or leave it to be written next, and it is not settled yet.

        So it is where somebody is writing; and for `patience_s` where others are on their way.  Who hears nothing by then
        is to `hurry` it.
        """
        with self._lock:
            self._coming.pop(word.node_id, None)
            word.patience_ends = time.monotonic() + patience_s
            self._waiting.append((word, write))
        self.hurry(word)

    def hurry(self, word: Word) -> None:
        """Write what waits, if nobody does so and there is nobody to wait for any more."""
        with self._lock:
            if self._is_busy or not self._waiting or self._gathers():
                return
            self._is_busy = True
        if crew.size() > 1:
            time.sleep(_MOMENT_S)
        if self._write_some(word):
            # Others came meanwhile.  They are not to be held up by what this one does next, nor it by them.
            try:
                crew.enlist(self._write_rest).wake()
            except RuntimeError:  # no thread is to be had
                self._write_rest()

    def _gathers(self) -> bool:
        """Whether others are about to come, and nobody who waits has lost its patience."""
        now = time.monotonic()
        self._coming = {node_id: since for node_id, since in self._coming.items() if now < since + _COMES_S}
        is_patient = now < min(word.patience_ends for word, _ in self._waiting)
        return bool(self._coming) and is_patient and len(self._waiting) < _MOST

    def _write_rest(self) -> None:
        while self._write_some(None):
            pass

    def _write_some(self, own: Word | None) -> bool:
        """As many as fit into one transaction; whether there are more.  Where there are none, whoever comes next writes."""
        with self._lock:
            together = [self._waiting.popleft() for _ in range(min(_MOST, len(self._waiting)))]
        # A lease that is gone would spoil it for all.
        able = [(word, write) for word, write in together if not word.is_withdrawn and not word.lease.lost.is_set()]
        words, outcome, trouble, is_more = [word for word, _ in able], None, None, False
        for word in words:
            word.began = time.monotonic()
        try:
            outcome = able[0][1](words) if able else None
            is_more = True
        except (EtcdLeaseLostError, EtcdRefusedError, EtcdClosedError):
            is_more = True
        except EtcdError as exc:
            trouble = exc
        finally:
            settled = [word for word, _ in together]
            with self._lock:
                if not is_more:  # it is no better for those who wait
                    settled += [word for word, _ in self._waiting]
                    self._waiting.clear()
                self._is_busy = is_more = bool(self._waiting)
            for word in settled:
                word.outcome, word.trouble = outcome if word in words else None, trouble
                word.is_first, word.is_settled = word.outcome is None or word is words[0], True
                if word is not own:
                    word.wake()
        return is_more


class Choir:
    """The choruses of a process, one for each run on one cluster, for as long as somebody has to do with it."""

    def __init__(self, hub: Hub) -> None:
        self._lock = threading.Lock()
        self._choruses: WeakValueDictionary[str, Chorus] = WeakValueDictionary()

    def of(self, run: str) -> Chorus:
        """The one of all who take part in this run."""
        with self._lock:
            chorus = self._choruses.get(run)
            if chorus is None:
                chorus = self._choruses[run] = Chorus()
            return chorus

    def close(self) -> None:
        """There is nothing to end: who has something to say hears of the end from the client."""
