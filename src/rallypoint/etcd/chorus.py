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

from rallypoint.etcd import crew
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
        self._waiting: deque[tuple[Word, Write]] = deque()
        self._is_busy = False

    def say(self, word: Word, write: Write) -> None:
        """Write it, with those that wait; or where somebody is writing, leave it to be written next: it is not settled yet.

        What goes wrong is left to each of them to try alone.
        """
        with self._lock:
            self._waiting.append((word, write))
            if self._is_busy:
                return
            self._is_busy = True
        if self._write_some(word):
            # Others came meanwhile.  They are not to be held up by what this one does next, nor it by them.
            try:
                crew.enlist(self._write_rest).wake()
            except RuntimeError:  # no thread is to be had
                self._write_rest()

    def _write_rest(self) -> None:
        while self._write_some(None):
            pass

    def _write_some(self, own: Word | None) -> bool:
        """As many as fit into one transaction; whether there are more.  Where there are none, whoever comes next writes."""
        with self._lock:
            together = [self._waiting.popleft() for _ in range(min(_MOST, len(self._waiting)))]
        words, write, outcome = [word for word, _ in together], together[0][1], None
        try:
            with suppress(EtcdError):
                outcome = write(words)
        finally:
            with self._lock:
                if outcome is None:
                    words += [word for word, _ in self._waiting]
                    self._waiting.clear()
                self._is_busy = bool(self._waiting)
                is_more = self._is_busy
            _settle(words, outcome, own)
        return is_more


def _settle(words: Sequence[Word], outcome: Outcome | None, own: Word | None) -> None:
    for word in words:
        word.outcome, word.is_first, word.is_settled = outcome, outcome is None or word is words[0], True
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
