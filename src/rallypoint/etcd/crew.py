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
from enum import Enum

log = logging.getLogger("rallypoint.etcd")

MOST = 8
"""So many threads at most.  A turn may wait for etcd, and then it waits for others' turns as well."""

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
    """Some threads, as many as there are posts, but not more than `most`.  They end with the last post."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._work = threading.Condition(threading.Lock())
        self._ready: deque[Post] = deque()
        self._alarms: list[tuple[float, int, Post]] = []
        self._numbers = itertools.count()
        self._posts = 0
        self._threads = 0

    def enlist(self, turn: Turn) -> Post:
        """One more to be given turns, the first of them when it is woken; RuntimeError where there is no thread to be had."""
        with self._work:
            self._posts += 1
            if self._threads < min(self._posts, self._most):
                try:
                    threading.Thread(target=self._serve, name="rallypoint-etcd", daemon=True).start()
                except RuntimeError:
                    if not self._threads:
                        self._posts -= 1
                        raise
                else:
                    self._threads += 1
        return Post(self, turn)

    def wake(self, post: Post) -> None:
        """Give it a turn as soon as a thread is free."""
        with self._work:
            if post.state is _State.RESTS:
                self._make_ready(post)
                self._work.notify()
            elif post.state is _State.AT_WORK:
                post.state = _State.WOKEN

    def _serve(self) -> None:
        while (post := self._next()) is not None:
            try:
                wait_s = post.turn()
            except Exception:
                log.exception("a turn failed, and was the last of its kind")
                wait_s = None
            self._took(post, wait_s)

    def _next(self) -> Post | None:
        """Whose turn it is; None where this thread is one too many."""
        with self._work:
            while self._threads <= self._posts:
                now = time.monotonic()
                while self._alarms and self._alarms[0][0] <= now:
                    moment, _, post = heapq.heappop(self._alarms)
                    if post.state is _State.RESTS and post.due == moment:
                        self._make_ready(post)
                if self._ready:
                    self._work.notify()  # somebody who is free, if there is anybody, looks at the clock from now on
                    post = self._ready.popleft()
                    post.state = _State.AT_WORK
                    return post
                self._work.wait(self._alarms[0][0] - now if self._alarms else None)
            self._threads -= 1
            return None

    def _took(self, post: Post, wait_s: float | None) -> None:
        """It has had a turn, and wants the next one after so many seconds."""
        with self._work:
            if wait_s is None:
                post.state = _State.OVER
                self._posts -= 1
                self._work.notify_all()
            elif post.state is _State.WOKEN or wait_s <= 0:
                self._make_ready(post)
            else:
                post.state, post.due = _State.RESTS, time.monotonic() + wait_s
                heapq.heappush(self._alarms, (post.due, next(self._numbers), post))
        if wait_s is None:
            post.over.set()

    def _make_ready(self, post: Post) -> None:
        post.state = _State.READY
        self._ready.append(post)


class _Process:
    """What belongs to this process alone: a forked child has none of the threads, and a lock may be held for ever there."""

    def __init__(self) -> None:
        self.crew = Crew()
        os.register_at_fork(after_in_child=self._begin_anew)

    def _begin_anew(self) -> None:
        self.crew = Crew()


_process = _Process()


def enlist(turn: Turn) -> Post:
    """A post in the crew of this process."""
    return _process.crew.enlist(turn)
