"""Words that the nodes of one process have for one run: those that come while one is being written go together next.

To write a word costs etcd, and the process, hardly more with others beside it than alone.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from weakref import WeakValueDictionary

from rallypoint.etcd_client import EtcdError, Lease, Outcome
from rallypoint.etcd_client.hub import Hub
from rallypoint.etcd_client.messages import RequestOp

_MOST = 32  # etcd takes 128 operations at once


class Word:
    """What one node has to say.  `wake` is called when another has written it, or could not."""

    def __init__(self, node_id: str, lease: Lease, puts: Sequence[RequestOp], wake: Callable[[], None]) -> None:
        self.node_id = node_id
        self.lease = lease
        self.was_granted = lease.is_granted
        self.began = time.monotonic()
        self.puts = tuple(puts)
        self.wake = wake
        self.outcome: Outcome | None = None
        """What came of the transaction that it was written in; None where it has yet to be written, alone."""
        self.is_first = True
        """Whether it was not written along with another: if nobody leads, that one does."""
        self.is_settled = False
        """Whether there is nobody to wait for."""


Write = Callable[[Sequence[Word]], Outcome]
"""Writes some words in one transaction."""


class Chorus:
    """The words for one run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Word] = deque()
        self._is_busy = False

    def say(self, word: Word, write: Write) -> None:
        """Write it, and those that come meanwhile; or leave it to whoever is writing: then it is not settled yet.

        What goes wrong is left to each of them to try alone.
        """
        with self._lock:
            self._waiting.append(word)
            if self._is_busy:
                return
            self._is_busy = True
        while together := self._take():
            outcome: Outcome | None = None
            try:
                with suppress(EtcdError):
                    outcome = write(together)
            finally:
                self._settle(together if outcome is not None else [*together, *self._dismiss()], outcome, word)
            if outcome is None:
                return

    def _take(self) -> list[Word]:
        """The words of those who wait; where there are none, whoever comes next writes."""
        with self._lock:
            together = [self._waiting.popleft() for _ in range(min(_MOST, len(self._waiting)))]
            self._is_busy = bool(together)
            return together

    def _dismiss(self) -> list[Word]:
        """All who wait; whoever comes next writes."""
        with self._lock:
            together = list(self._waiting)
            self._waiting.clear()
            self._is_busy = False
            return together

    @staticmethod
    def _settle(together: Sequence[Word], outcome: Outcome | None, own: Word) -> None:
        for word in together:
            word.outcome, word.is_first, word.is_settled = outcome, outcome is None or word is together[0], True
            if word is not own:
                word.wake()


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
