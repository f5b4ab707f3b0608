"""The threads behind watches: one stream for all watches of a hub, with its conductor and its reader.

The conductor owns the book.  It opens a stream at one endpoint after the other, asks for a sign of life when the
stream is quiet or its endpoint is suspected, and breaks off when none comes.
"""

from __future__ import annotations

import logging
import queue
import random
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from rallypoint.etcd_client.answers import Verdict, judge
from rallypoint.etcd_client.conversation import Conversation
from rallypoint.etcd_client.endpoints import Tries
from rallypoint.etcd_client.errors import (
    EtcdAuthError,
    EtcdClosedError,
    EtcdError,
    EtcdMessageError,
    EtcdUnavailableError,
)
from rallypoint.etcd_client.hub import Hub
from rallypoint.etcd_client.messages import WatchResponse
from rallypoint.etcd_client.transport import CallFailedError
from rallypoint.etcd_client.watching import Book, Change, Effects, Gap, Watched
from rallypoint.etcd_client.wire import decode

log = logging.getLogger("rallypoint.etcd_client")

WATCH = "/etcdserverpb.Watch/Watch"

_QUIET_S = 5.0  # so long may a stream say nothing before it is asked for a sign of life
_PATIENCE_S = 3.0  # so long may any answer take
_SUSPECTED_PATIENCE_S = 1.0  # the same where other calls to the endpoint have just failed
_LOGIN_S = 5.0
_PAUSES_S = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
_STUMBLE_PAUSE_S = 0.2  # after a mistake of our own, so that it does not keep a core busy
_BACKLOG = 20_000  # so many events are kept for a user who does not take them; etcd keeps the rest


class Mailbox:
    """What lies between a watch's user and the conductor."""

    def __init__(self, watched: Watched, wake: Callable[[], None] | None = None) -> None:
        self.watched = watched
        self.wake = wake
        self.items: queue.SimpleQueue[Change | Gap | EtcdError] = queue.SimpleQueue()
        self.is_full = False

    def put(self, what: tuple[Change, ...] | Gap | EtcdError) -> bool:
        """Deliver; whether that is enough until something is taken."""
        for item in what if isinstance(what, tuple) else (what,):
            self.items.put(item)
        if self.wake is not None:
            try:
                self.wake()
            except Exception:  # its user's mistake, which is not to cost the other watches their conductor
                log.exception("the watch of %r: wake failed", self.watched.key)
        return self.items.qsize() > _BACKLOG

    def was_emptied(self) -> bool:
        """Whether it was full and has been emptied: to be asked by either side after each change."""
        if not self.is_full or not self.items.empty():
            return False
        self.is_full = False
        return True


class Watcher:
    """The conductor of a hub's watches.  Everything but `add`, `remove`, `go_on` and `close` runs on its own thread."""

    def __init__(self, hub: Hub) -> None:
        self.pid = hub.pid
        self.trouble: str | None = None
        self._hub = hub
        self._book = Book()
        self._mailboxes: dict[Watched, Mailbox] = {}
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._stream: Conversation | None = None
        self._failures = 0
        self._open_at = 0.0
        self._is_over = False
        self._tries = Tries(hub.endpoints)
        hub.suspicions.append(lambda endpoint: self._inbox.put(lambda: self._suspect(endpoint)))
        hub.start(self._run, "etcd-watches")

    @property
    def count(self) -> int:
        """How many watches there are, at most: some of what waits to be done may be no watch."""
        return len(self._mailboxes) + self._inbox.qsize()

    def add(self, mailbox: Mailbox) -> None:
        """Begin a watch; one that begins with a snapshot waits until it was read."""
        self._inbox.put(partial(self._add, mailbox))
        if self._is_over:
            mailbox.put(_closed())

    def remove(self, mailbox: Mailbox) -> None:
        """End a watch."""
        self._inbox.put(partial(self._remove, mailbox.watched))

    def go_on(self, mailbox: Mailbox, revision: int | None) -> None:
        """Go on after a gap from a revision, or from where it stopped when its user was slow."""
        self._inbox.put(partial(self._go_on, mailbox.watched, revision))

    def close(self) -> None:
        """End all watches."""
        self._inbox.put(self._close)

    # The conductor's thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_over:
            try:
                self._next()()
            except Exception as problem:  # noqa: PERF203  # a mistake of our own is not to cost all watches their events
                log.exception("the conductor of the watches stumbled, and goes on")
                self._stumbled(problem)
        while not self._inbox.empty():  # who came at the last moment
            with suppress(Exception):
                self._inbox.get()()
        for mailbox in self._mailboxes.values():
            mailbox.put(_closed())
        self._mailboxes.clear()
        self._hang_up()

    def _close(self) -> None:
        self._is_over = True

    def _stumbled(self, problem: Exception) -> None:
        """Nobody knows how far it came: go on over a new stream, where every watch says what it needs next."""
        self.trouble = f"no watch stream: a mistake of this program: {problem!r}"
        self._failures += 1
        with suppress(Exception):
            self._hang_up()
        self._hub.closing.wait(_STUMBLE_PAUSE_S)
        self._open_at = time.monotonic()

    def _next(self) -> Callable[[], None]:
        try:
            return self._inbox.get(timeout=self._wait_s())
        except queue.Empty:
            return self._look

    def _wait_s(self) -> float | None:
        """Until when nothing has to be done, if nothing happens."""
        now = time.monotonic()
        if not self._mailboxes:
            return None
        if self._stream is None:
            return max(self._open_at - now, 0)
        if self._stream.answer_by is not None:
            return max(self._stream.answer_by - now, 0)
        return max(self._stream.heard_at + _QUIET_S - now, 0)

    def _look(self) -> None:
        """It is time to do something."""
        if self._stream is None:
            self._open()
        elif self._stream.answer_by is not None:
            self._over(self._stream, "DEADLINE_EXCEEDED", "the watch stream gave no sign of life")
        else:
            self._ask_for_sign_of_life(self._stream, _PATIENCE_S)

    def _ask_for_sign_of_life(self, stream: Conversation, patience_s: float) -> None:
        self._do(self._book.sign_of_life())
        stream.expect(patience_s)

    def _open(self) -> None:
        endpoint = self._hub.rotation.current
        try:
            metadata = self._hub.metadata(_LOGIN_S)
            self._stream = Conversation(
                self._hub, endpoint, WATCH, metadata, self._inbox, hear=self._heard, broke=self._over
            )
        except CallFailedError as failure:
            self._note(endpoint, failure.code, failure.details)
        except EtcdAuthError as refusal:
            self._end(refusal)
        except EtcdError as problem:  # nobody gave a token: the same outage
            self._note(endpoint, "UNAVAILABLE", str(problem))
        else:
            self._do(self._book.opened())

    def _heard(self, stream: Conversation, data: bytes) -> None:
        """The stream said something."""
        if stream is not self._stream:
            return
        stream.heard()
        try:
            effects = self._book.heard(decode(WatchResponse, data))
        except EtcdMessageError as problem:
            self._over(stream, "INTERNAL", str(problem))
            return
        if self._failures:
            log.info("watching again, at %s", stream.endpoint)
        self._failures, self.trouble = 0, None
        self._tries = Tries(self._hub.endpoints)
        self._do(effects)

    def _over(self, stream: Conversation, code: str, details: str) -> None:
        """The stream is over, by its own word or ours."""
        if stream is not self._stream:
            return
        self._hang_up()
        self._note(stream.endpoint, code, details)

    def _note(self, endpoint: str, code: str, details: str) -> None:
        judgement = judge(code, details)
        self.trouble = f"no watch stream: {endpoint}: {judgement.words}"
        if self._failures == 0:
            log.info("%s; the next member is asked", self.trouble)
        elif self._failures == len(self._hub.endpoints):
            log.warning("etcd cannot be watched at present. %s", self._tries)
        is_renewed = self._hub.failed(endpoint)
        is_hopeless = judgement.verdict is Verdict.HOPELESS and not is_renewed
        self._tries.note(endpoint, judgement.words, hopeless=is_hopeless)
        pause_s = _PAUSES_S[min(self._failures, len(_PAUSES_S) - 1)]
        self._open_at = time.monotonic() + pause_s * random.uniform(0.5, 1.0)
        self._failures += 1
        if self._tries.all_hopeless:
            self._end(EtcdUnavailableError(f"etcd cannot be watched. {self._tries}"))

    def _hang_up(self) -> None:
        stream, self._stream = self._stream, None
        self._book.broken()
        if stream is not None:
            stream.hang_up()

    def _suspect(self, endpoint: str) -> None:
        stream = self._stream
        if stream is not None and stream.endpoint == endpoint and self._mailboxes and len(self._hub.endpoints) > 1:
            self._ask_for_sign_of_life(stream, _SUSPECTED_PATIENCE_S)

    def _add(self, mailbox: Mailbox) -> None:
        self._mailboxes[mailbox.watched] = mailbox
        self._do(self._book.add(mailbox.watched))

    def _remove(self, watched: Watched) -> None:
        self._mailboxes.pop(watched, None)
        self._do(self._book.remove(watched))

    def _go_on(self, watched: Watched, revision: int | None) -> None:
        self._do(self._book.go_on(watched, revision or watched.next_revision))

    def _end(self, error: EtcdError) -> None:
        self._do(self._book.end(error))

    def _do(self, effects: Effects) -> None:
        # Deliver first: the book counts as seen what it has given out.
        for delivery in effects.deliver:
            mailbox = self._mailboxes.get(delivery.watch)
            if mailbox is not None:
                self._deliver(mailbox, delivery.what)
        for request in effects.send:
            if self._stream is not None:
                self._stream.send(request, _PATIENCE_S if request.cancel_request is None else None)
        if effects.login and self._stream is not None:
            self._login(self._stream)

    def _deliver(self, mailbox: Mailbox, what: tuple[Change, ...] | Gap | EtcdError) -> None:
        is_enough = mailbox.put(what)
        if isinstance(what, EtcdError):
            del self._mailboxes[mailbox.watched]
        elif is_enough and not isinstance(what, Gap):
            self._do(self._book.full(mailbox.watched))
            mailbox.is_full = True
            if mailbox.was_emptied():  # its user was quicker than this thread
                self._go_on(mailbox.watched, None)

    def _login(self, stream: Conversation) -> None:
        """The token belongs to a stream for its whole life: a new one needs a new stream."""
        self._hang_up()
        try:
            if self._hub.user is not None:
                self._hub.login(stream.logins, _LOGIN_S)
        except EtcdAuthError as refusal:
            self._end(refusal)
        except EtcdError as problem:
            self.trouble = f"no watch stream: {problem}"


def _closed() -> EtcdClosedError:
    return EtcdClosedError("the client was closed")
