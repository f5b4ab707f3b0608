"""Watching a backend that can be watched: it waits in a thread of its own, so that the node's own stays free.

A backend of a user's may have a third method, `wait_for_change`; where it has, nobody asks it again and again.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any, Protocol, runtime_checkable

from rallypoint.document.waiting import Waker

log = logging.getLogger("rallypoint.document")

LONGEST_S = 10.0
"""Nobody is kept for longer by a watch that nobody needs any more."""
RETRY_S = 10.0


@runtime_checkable
class Watchable(Protocol):
    """What a backend may bring besides `get_state` and `set_state`."""

    def wait_for_change(self, token: Any | None, timeout_s: float) -> object:
        """Return when the document's token is not `token` any more (None: when there is a document), or the time is up.

        It may return earlier: what it returns is not looked at, for the document is read anyway.  It is called from a
        thread of its own while others call `get_state` and `set_state`.  Whatever it raises, the document is read
        every now and then instead, and it is tried again later.
        """


class Watch:
    """One watch at a time on a backend; whoever waits is woken by it."""

    def __init__(self, backend: Watchable) -> None:
        self._backend = backend
        self._asked = threading.Condition()
        self._wanted: tuple[Any, Waker] | None = None
        self._under_way: tuple[Any, Waker] | None = None
        self._thread: threading.Thread | None = None
        self._ended = False
        self._works_at = 0.0

    @property
    def works(self) -> bool:
        """Whether it may be used: for a while after it failed it is not."""
        return time.monotonic() >= self._works_at

    def wait(self, token: Any | None, timeout_s: float, waker: Waker) -> None:
        """Wait until the document is another one, the time is over or somebody wakes us; it may be sooner."""
        if timeout_s <= 0:
            return
        with self._asked:
            if self._under_way != (token, waker):
                self._wanted = (token, waker)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rallypoint-watch", daemon=True)
                self._thread.start()
            self._asked.notify()
        waker.wait(timeout_s)

    def end(self) -> None:
        """Let go of it; a watch that is under way ends when its time is up."""
        with self._asked:
            self._ended = True
            self._asked.notify()

    def _run(self) -> None:
        while True:
            with self._asked:
                while self._wanted is None and not self._ended:
                    self._asked.wait()
                if self._wanted is None or self._ended:
                    return
                self._under_way, self._wanted = self._wanted, None
                token, waker = self._under_way
            try:
                self._backend.wait_for_change(token, LONGEST_S)
            except Exception:  # a user's backend may raise anything; the document is read without it
                log.warning("the backend's wait_for_change failed; asking instead for %.0f s", RETRY_S, exc_info=True)
                self._works_at = time.monotonic() + RETRY_S
            with self._asked:
                # Before anybody is woken: who asks then must not take this one for the watch that it wants.
                self._under_way = None
            waker.wake()
