"""The thread that keeps leases alive and does nothing else.

All renewals of a hub go over one stream, which costs etcd a third of what as many calls would.  The stream is where the
calls go: when an endpoint fails and the turn passes to the next one, the stream moves there.  Several may keep one lease:
each is renewed for itself, so that one who lets go takes nothing from the others.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import queue
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from rallypoint.etcd_client.answers import Verdict, judge
from rallypoint.etcd_client.conversation import Conversation
from rallypoint.etcd_client.errors import EtcdError, EtcdMessageError
from rallypoint.etcd_client.hub import Hub
from rallypoint.etcd_client.leases import Lease
from rallypoint.etcd_client.messages import LeaseKeepAliveRequest, LeaseKeepAliveResponse
from rallypoint.etcd_client.transport import CallFailedError
from rallypoint.etcd_client.wire import decode

log = logging.getLogger("rallypoint.etcd_client")

KEEP_ALIVE = "/etcdserverpb.Lease/LeaseKeepAlive"

_LOGIN_S = 5.0
_PAUSE_S = 0.2  # after a mistake of our own, so that it does not keep a core busy


class Keeper:
    """One thread for all leases of a hub; it never waits for an answer.  All but the first three run on it."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._kept: set[Lease] = set()
        self._due: list[tuple[float, int, Lease]] = []
        self._owed: deque[Lease] = deque()  # what the stream has not answered yet, in the order of asking
        self._stream: Conversation | None = None
        self._count = itertools.count()
        self._is_over = False
        hub.start(self._run, "etcd-leases")

    def keep(self, lease: Lease) -> None:
        """Renew it from now on."""
        self._inbox.put(partial(self._keep, lease))

    def drop(self, lease: Lease) -> None:
        """Renew it no more."""
        self._inbox.put(partial(self._drop, lease))

    def close(self) -> None:
        """Stop; leases expire by themselves."""
        self._inbox.put(self._end)

    def _run(self) -> None:
        while not self._is_over:
            try:
                self._step()
            except Exception as problem:  # noqa: PERF203  # a mistake of our own is not to cost all leases their keeper
                log.exception("the keeper of the leases stumbled, and goes on")
                self._stumbled(problem)

    def _step(self) -> None:
        try:
            message = self._inbox.get(timeout=self._wait_s())
        except queue.Empty:
            message = self._look
        message()
        if not self._is_over:
            self._look()

    def _stumbled(self, problem: Exception) -> None:
        """Nobody knows how far it came: all are to be renewed, over a new stream."""
        with suppress(Exception):
            self._hang_up()
        self._owed.clear()
        self._hub.closing.wait(_PAUSE_S)
        now = time.monotonic()
        self._due = []
        for lease in self._kept:
            lease.trouble = f"the last renewal failed by a mistake of this program: {problem!r}"
            self._schedule(lease, now)

    def _wait_s(self) -> float | None:
        """Until when nothing has to be done, if nothing happens."""
        moments = [self._due[0][0]] if self._due else []
        if self._stream is not None and self._stream.answer_by is not None:
            moments.append(self._stream.answer_by)
        return max(min(moments) - time.monotonic(), 0) if moments else None

    def _look(self) -> None:
        """Do what is due."""
        if self._stream is not None and self._stream.is_overdue():
            self._over(self._stream, "DEADLINE_EXCEEDED", "no renewal was answered")
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            _, _, lease = heapq.heappop(self._due)
            if lease in self._kept:
                self._renew(lease, now)

    def _keep(self, lease: Lease) -> None:
        self._kept.add(lease)
        self._schedule(lease, lease.renewal.due)

    def _drop(self, lease: Lease) -> None:
        self._kept.discard(lease)
        if not self._kept:
            self._hang_up()

    def _end(self) -> None:
        self._is_over = True
        self._hang_up()

    def _schedule(self, lease: Lease, at: float) -> None:
        heapq.heappush(self._due, (at, next(self._count), lease))

    # The stream -------------------------------------------------------------------------------------------------------

    def _renew(self, lease: Lease, now: float) -> None:
        lease.renewal.sent(now)
        endpoint = self._hub.rotation.current
        if self._stream is not None and self._stream.endpoint != endpoint:
            for owed in self._hang_up():
                self._schedule(owed, now)
        try:
            if self._stream is None:
                self._stream = self._open(endpoint)
        except CallFailedError as failure:
            self._note([lease], endpoint, self._hub.logins, failure)
        else:
            self._owed.append(lease)
            self._stream.send(LeaseKeepAliveRequest(lease.id), lease.renewal.try_s)

    def _open(self, endpoint: str) -> Conversation:
        # Without a token for once, rather than wait for one: etcd may not ask for it, and says so if it does.
        metadata = self._hub.metadata(0, anonymous=self._hub.logins == 0)
        return Conversation(self._hub, endpoint, KEEP_ALIVE, metadata, self._inbox, hear=self._heard, broke=self._over)

    def _heard(self, stream: Conversation, data: bytes) -> None:
        if stream is not self._stream:
            return
        try:
            answer = decode(LeaseKeepAliveResponse, data)
        except EtcdMessageError as problem:
            self._over(stream, "INTERNAL", str(problem))
            return
        stream.heard()
        # The first that asked for this one: a stream answers in the order of asking, as far as one lease is concerned.
        lease = next((lease for lease in self._owed if lease.id == answer.id), None)
        if lease is not None:
            self._owed.remove(lease)
        if self._owed:
            # etcd answers one after the other: as long as it does, it may take its time for many.
            stream.expect(self._owed[0].renewal.try_s)
        if lease is not None and lease in self._kept:
            self._answered(lease, answer.ttl)

    def _answered(self, lease: Lease, ttl_s: int) -> None:
        if lease.trouble is not None:
            log.info("lease %x is renewed again", lease.id)
        lease.trouble = None
        if ttl_s > 0:
            lease.renewal.renewed(ttl_s, time.monotonic())
            self._schedule(lease, lease.renewal.due)
            return
        self._drop(lease)
        lease.gone()
        log.warning("lease %x of %g s has expired or was revoked", lease.id, lease.ttl_s)
        if lease.when_lost is not None:
            try:
                lease.when_lost()
            except Exception:  # its user's mistake, which is not to cost the other leases their keeper
                log.exception("lease %x: when_lost failed", lease.id)

    def _over(self, stream: Conversation, code: str, details: str) -> None:
        """The stream is over, by its own word or ours."""
        if stream is self._stream:
            self._note(self._hang_up(), stream.endpoint, stream.logins, CallFailedError(code, details))

    def _hang_up(self) -> list[Lease]:
        """End the stream; the leases for which it owed an answer."""
        stream, self._stream = self._stream, None
        owed, self._owed = list(self._owed), deque()
        if stream is not None:
            stream.hang_up()
        return owed

    def _note(self, leases: list[Lease], endpoint: str, logins: int, failure: CallFailedError) -> None:
        """Nobody renewed them: the next endpoint is asked."""
        judgement = judge(failure.code, failure.details)
        now = time.monotonic()
        for lease in leases:
            if lease not in self._kept:
                continue
            lease.renewal.failed(now)
            if lease.trouble is None:
                log.info(
                    "lease %x was not renewed by %s: %s; the next member is asked", lease.id, endpoint, judgement.words
                )
            lease.trouble = f"{endpoint}: {judgement.words}"
            self._schedule(lease, lease.renewal.due)
        if judgement.verdict is Verdict.LOGIN and self._hub.user is not None:
            # It takes its time; the renewals do not wait for it.  Without a thread to be had, the next failure asks again.
            with suppress(RuntimeError):
                self._hub.start(partial(self._login, logins), "etcd-login")
        else:
            self._hub.failed(endpoint)

    def _login(self, seen: int) -> None:
        try:
            self._hub.login(seen, _LOGIN_S)
        except EtcdError:
            return  # the next renewal says so
