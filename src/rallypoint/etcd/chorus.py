"""Words that the nodes of one process have for one run: those that come while one is being written go together next.

To write a word costs etcd, and the process, hardly more with others beside it than alone.
"""

from __future__ import annotations

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


class Word:
    """What one node has to say.  `wake` is called when another has written it, or could not."""

    def __init__(self, node_id: str, lease: Lease, puts: Sequence[RequestOp], wake: Callable[[], None]) -> None:
        self.node_id = node_id
        self.lease = lease
        self.began = time.monotonic()
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
        self._is_busy = False

    def say(self, word: Word, write: Write) -> None:
        """Write it, with those that wait; or where somebody is writing, leave it to be written next: it is not settled yet."""
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
        # A lease that is gone would spoil it for all.
        able = [(word, write) for word, write in together if not word.is_withdrawn and not word.lease.lost.is_set()]
        words, outcome, trouble, is_more = [word for word, _ in able], None, None, False
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
