"""The threads that the links of a process share: whoever has something to do is given a turn by one of them.

A process with a few links has a thread for each.  In one with hundreds, to wake a thread for everything that each of
them hears would cost more than what they do.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from itertools import islice

log = logging.getLogger("rallypoint.etcd")

USUAL = 4
"""So many turns are had at a time, usually: the more threads compete for the interpreter, the longer all others wait."""

_STUCK_S = 0.1
"""Who has been at its turn for so long waits for etcd, and keeps nobody else from having one."""

_MOST = 64
"""So many threads at most."""

Turn = Callable[[], float | None]
"""Does all that is to be done now: in how many seconds it is to be called again; None once it is over."""


class _State(Enum):
    RESTS = "until its time comes, or somebody wakes it"
    READY = "waits for a thread"
    AT_WORK = "is having its turn"
    WOKEN = "is having its turn, and will have another"
    OVER = "has no more turns"


class Post:
    """One who is given turns, never two at a time."""

    def __init__(self, crew: Crew, turn: Turn) -> None:
        self.turn = turn
        self.over = threading.Event()
        """Set when it has had its last turn."""
        self.state = _State.RESTS
        self.due = 0.0
        self._crew = crew

    def wake(self) -> None:
        """Something has happened: a turn soon, and after the one that it may be having."""
        self._crew.wake(self)


class Crew:
    """Some threads: one for each post, but not more than `usual` and one that looks out.  They end with the last post."""

    def __init__(self, usual: int = USUAL) -> None:
        self._usual = usual
        # Taken as it is and not by the condition: an exception out of a signal's handler must not come between, for then
        # the main thread would keep it for ever.
        self._lock = threading.RLock()
        self._work = threading.Condition(self._lock)
        self._ready: deque[Post] = deque()
        self._alarms: list[tuple[float, int, Post]] = []
        self._numbers = itertools.count()
        self._posts = 0
        self._threads = 0
        self._at_work: dict[Post, float] = {}  # since when; who began first is first
        self._looks_out = 0  # how many wait to see whether all others are stuck

    @property
    def posts(self) -> int:
        """How many there are who are given turns."""
        return self._posts

    @property
    def threads(self) -> int:
        """How many there are at the moment."""
        return self._threads

    def enlist(self, turn: Turn) -> Post:
        """One more to be given turns, the first of them when it is woken; RuntimeError where there is no thread to be had."""
        with self._lock:
            self._posts += 1
        try:
            self._reinforce()
        except RuntimeError:
            with self._lock:
                if not self._threads:
                    self._posts -= 1
                    raise
        return Post(self, turn)

    def wake(self, post: Post) -> None:
        """Give it a turn as soon as a thread is free."""
        with self._lock:
            if post.state is _State.AT_WORK:
                post.state = _State.WOKEN
            elif post.state is _State.RESTS:
                self._make_ready(post)
            # Also for one that was ready: a signal may have kept those who wait from hearing of it.
            if post.state is _State.READY and (not self._looks_out or time.monotonic() >= self._opens_at):
                self._work.notify()

    @property
    def _wanted(self) -> int:
        """How many threads there ought to be: where all of the usual ones have a turn, somebody is to look out."""
        return min(self._posts, max(self._usual, min(len(self._at_work), _MOST - 1)) + 1)

    def _reinforce(self) -> None:
        """One more thread where there are too few."""
        with self._lock:
            if self._threads >= self._wanted:
                return
            self._threads += 1
        try:
            threading.Thread(target=self._serve, name="rallypoint-etcd", daemon=True).start()
        except RuntimeError:
            with self._lock:
                self._threads -= 1
            raise

    def _serve(self) -> None:
        while (post := self._next()) is not None:
            with suppress(RuntimeError):
                self._reinforce()
            try:
                wait_s = post.turn()
            except Exception:
                log.exception("a turn failed, and was the last of its kind")
                wait_s = None
            self._took(post, wait_s)

    def _next(self) -> Post | None:
        """Whose turn it is; None where this thread is one too many."""
        with self._lock:
            while True:
                now = time.monotonic()
                self._ring(now)
                opens_at = self._opens_at
                if self._ready and now >= opens_at:
                    post = self._ready.popleft()
                    if post.state not in (_State.READY, _State.RESTS):
                        continue
                    post.state, self._at_work[post] = _State.AT_WORK, now
                    if not self._looks_out:
                        self._work.notify()  # whoever is free looks at the clock from now on
                    return post
                if self._threads > self._wanted:
                    self._threads -= 1
                    self._work.notify()
                    return None
                is_on_lookout = bool(self._ready)
                self._looks_out += is_on_lookout
                self._work.wait(opens_at - now if is_on_lookout else self._alarms[0][0] - now if self._alarms else None)
                self._looks_out -= is_on_lookout

    @property
    def _opens_at(self) -> float:
        """When one more may have a turn: as soon as fewer than usual are at work, but for those who wait for etcd."""
        if len(self._at_work) < self._usual:
            return 0.0
        return next(islice(reversed(self._at_work.values()), self._usual - 1, None)) + _STUCK_S

    def _ring(self, now: float) -> None:
        """Whose time has come is ready."""
        while self._alarms and self._alarms[0][0] <= now:
            moment, _, post = heapq.heappop(self._alarms)
            if post.state is _State.RESTS and post.due == moment:
                self._make_ready(post)

    def _took(self, post: Post, wait_s: float | None) -> None:
        """It has had a turn, and wants the next one after so many seconds."""
        with self._lock:
            del self._at_work[post]
            if wait_s is None:
                post.state, post.turn = _State.OVER, _nothing  # what it had to do with is kept alive no longer
                self._posts -= 1
                if not self._posts:
                    self._alarms.clear()
                self._work.notify_all()
            elif post.state is _State.WOKEN or wait_s <= 0:
                self._make_ready(post)
            else:
                post.state, post.due = _State.RESTS, time.monotonic() + wait_s
                heapq.heappush(self._alarms, (post.due, next(self._numbers), post))
        if wait_s is None:
            post.over.set()

    def _make_ready(self, post: Post) -> None:
        # In this order: a signal in between, by which this call ends, costs nobody its turn.
        self._ready.append(post)
        post.state = _State.READY


def _nothing() -> None:
    """The turn of one that is over."""


class _Process:
    """What belongs to this process alone: a forked child has none of the threads, and a lock may be held for ever there."""

    def __init__(self) -> None:
        self.crew = Crew()
        os.register_at_fork(after_in_child=self._begin_anew)

    def _begin_anew(self) -> None:
        self.crew = Crew()


_process = _Process()


def size() -> int:
    """How many posts the crew of this process has."""
    return _process.crew.posts


def enlist(turn: Turn) -> Post:
    """A post in the crew of this process."""
    return _process.crew.enlist(turn)
