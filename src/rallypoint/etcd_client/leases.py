"""Leases, and the thread that keeps them alive and does nothing else.

A lease is renewed at a third of its time.  One renewal may take a quarter of it, then the next endpoint is asked, so
that one member that is stopped costs nobody a lease.  Only etcd's word ends a lease: an outage leaves it in doubt.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from rallypoint.etcd_client.answers import Verdict, judge
from rallypoint.etcd_client.errors import EtcdError, EtcdLeaseLostError, EtcdMessageError
from rallypoint.etcd_client.hub import Hub, Reply
from rallypoint.etcd_client.messages import LeaseKeepAliveRequest, LeaseKeepAliveResponse
from rallypoint.etcd_client.transport import CallFailedError
from rallypoint.etcd_client.wire import decode

log = logging.getLogger("rallypoint.etcd_client")

KEEP_ALIVE = "/etcdserverpb.Lease/LeaseKeepAlive"

_SHARE_BETWEEN = 1 / 3
_SHARE_OF_A_TRY = 1 / 4
_SHARE_OF_A_PAUSE = 1 / 20


class Renewal:
    """When one lease is to be renewed; pure, time is an argument."""

    def __init__(self, ttl_s: float, granted_at: float) -> None:
        self.ttl_s = ttl_s
        self.sent_at = granted_at
        self.until = granted_at + ttl_s  # it lives at least so long
        self.due = granted_at + ttl_s * _SHARE_BETWEEN
        self.failures = 0

    @property
    def try_s(self) -> float:
        """How long one endpoint may take."""
        return self.ttl_s * _SHARE_OF_A_TRY

    def sent(self, now: float) -> None:
        """A renewal is on its way."""
        self.sent_at = now

    def renewed(self, ttl_s: float) -> None:
        """etcd has renewed it, at the earliest when it was asked to."""
        self.failures = 0
        self.ttl_s = ttl_s
        self.until = max(self.until, self.sent_at + ttl_s)
        self.due = self.sent_at + ttl_s * _SHARE_BETWEEN

    def failed(self, now: float) -> None:
        """Nobody answered: the next endpoint is asked, at once the first time."""
        self.due = now + (self.ttl_s * _SHARE_OF_A_PAUSE if self.failures else 0)
        self.failures += 1


class Lease:
    """A lease that is kept alive until it is revoked, released or lost.  Usable in a `with`, which revokes it."""

    def __init__(self, lease_id: int, renewal: Renewal, keeper: Keeper, revoke: Callable[[int], None]) -> None:
        self.id = lease_id
        self.is_granted = False
        """Whether etcd has said that it exists; one that was asked for ahead may not yet."""
        self.answered = threading.Event()
        """Set when etcd has answered to the grant, or did not in time."""
        self.lost = threading.Event()
        """Set when etcd has said that the lease is gone, and its keys with it."""
        self.trouble: str | None = None
        """Why the last renewal did not succeed, in words; None while all is well."""
        self.when_lost: Callable[[], None] | None = None
        """Called on the keeper's thread when etcd says that the lease is gone; it must not take long."""
        self.renewal = renewal  # the keeper's own
        self._keeper = keeper
        self._revoke = revoke
        self._is_over = False
        self._lock = threading.Lock()

    @property
    def ttl_s(self) -> float:
        """How long it lives without being renewed, as granted by etcd."""
        return self.renewal.ttl_s

    def remaining_s(self) -> float:
        """For how long it lives at least; 0 when that is in doubt, because nobody has renewed it for its whole time."""
        return 0.0 if self.lost.is_set() else max(self.renewal.until - time.monotonic(), 0.0)

    def check(self) -> None:
        """Raise `EtcdLeaseLostError` if it is lost."""
        if self.lost.is_set():
            raise EtcdLeaseLostError(f"lease {self.id:x} of {self.ttl_s:g} s has expired or was revoked")

    def exists(self, renewal: Renewal, *, keep: bool) -> None:
        """etcd has said so; whoever hears it first has it kept alive from now on."""
        with self._lock:
            if not self.is_granted:
                self.is_granted, self.renewal = True, renewal
                if keep and not self._is_over:
                    self._keeper.keep(self)
        self.answered.set()

    def release(self) -> None:
        """Renew it no more; it and its keys expire by themselves."""
        with self._lock:
            self._is_over = True
            self._keeper.drop(self)

    def revoke(self) -> None:
        """End it now, and delete its keys; fine if it is gone already."""
        self.release()
        self._revoke(self.id)
        self.lost.set()

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.revoke()

    def __repr__(self) -> str:
        return f"<Lease {self.id:x}, {'lost' if self.lost.is_set() else f'{self.remaining_s():.1f} s left'}>"


@dataclass(frozen=True)
class _Kept:
    """A lease is to be kept, or not any more."""

    lease: Lease
    kept: bool


@dataclass(frozen=True)
class _Answered:
    """What came of a renewal."""

    lease: Lease
    reply: Reply


class Keeper:
    """One thread for all leases of a hub; it never waits for an answer."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._inbox: queue.SimpleQueue[_Kept | _Answered | None] = queue.SimpleQueue()
        self._due: list[tuple[float, int, Lease]] = []
        self._kept: set[Lease] = set()
        self._count = itertools.count()
        threading.Thread(target=self._run, name="etcd-leases", daemon=True).start()

    def keep(self, lease: Lease) -> None:
        """Renew it from now on."""
        self._inbox.put(_Kept(lease, True))

    def drop(self, lease: Lease) -> None:
        """Renew it no more."""
        self._inbox.put(_Kept(lease, False))

    def close(self) -> None:
        """Stop; leases expire by themselves."""
        self._inbox.put(None)

    def _run(self) -> None:
        while True:
            try:
                wait_s = max(self._due[0][0] - time.monotonic(), 0) if self._due else None
                message = self._inbox.get(timeout=wait_s)
            except queue.Empty:
                self._renew_what_is_due()
                continue
            if message is None:
                return
            if isinstance(message, _Kept):
                (self._kept.add if message.kept else self._kept.discard)(message.lease)
                if message.kept:
                    self._schedule(message.lease)
            elif message.lease in self._kept:
                self._answered(message)
            self._renew_what_is_due()

    def _schedule(self, lease: Lease) -> None:
        heapq.heappush(self._due, (lease.renewal.due, next(self._count), lease))

    def _renew_what_is_due(self) -> None:
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            _, _, lease = heapq.heappop(self._due)
            if lease in self._kept:
                self._renew(lease, now)

    def _renew(self, lease: Lease, now: float) -> None:
        lease.renewal.sent(now)
        # One message each way, so the stream that etcd offers for it can be used as a plain call with a deadline.
        request, try_s = LeaseKeepAliveRequest(lease.id), lease.renewal.try_s
        self._hub.ask(KEEP_ALIVE, request, try_s, lambda reply: self._inbox.put(_Answered(lease, reply)))

    def _answered(self, message: _Answered) -> None:
        lease = message.lease
        try:
            if isinstance(message.reply.outcome, CallFailedError):
                raise message.reply.outcome
            answer = decode(LeaseKeepAliveResponse, message.reply.outcome)
        except (CallFailedError, EtcdMessageError) as failure:
            self._failed(lease, message.reply, failure)
        else:
            if lease.trouble is not None:
                log.info("lease %x is renewed again", lease.id)
            lease.trouble = None
            if answer.ttl <= 0:
                self._kept.discard(lease)
                lease.lost.set()
                log.warning("lease %x of %g s has expired or was revoked", lease.id, lease.ttl_s)
                if lease.when_lost is not None:
                    lease.when_lost()
                return
            lease.renewal.renewed(answer.ttl)
        self._schedule(lease)

    def _failed(self, lease: Lease, reply: Reply, failure: CallFailedError | EtcdMessageError) -> None:
        lease.renewal.failed(time.monotonic())
        judgement = judge(failure.code, failure.details) if isinstance(failure, CallFailedError) else None
        words = judgement.words if judgement is not None else str(failure)
        if lease.trouble is None:
            log.info("lease %x was not renewed by %s: %s; the next member is asked", lease.id, reply.endpoint, words)
        lease.trouble = f"{reply.endpoint}: {words}"
        if judgement is not None and judgement.verdict is Verdict.LOGIN and self._hub.user is not None:
            # It takes its time; the renewals do not wait for it.
            arguments = (reply.logins, lease.ttl_s)
            threading.Thread(target=self._login, args=arguments, name="etcd-login", daemon=True).start()
            return
        self._hub.failed(reply.endpoint)

    def _login(self, seen: int, timeout_s: float) -> None:
        try:
            self._hub.login(seen, timeout_s)
        except EtcdError:
            return  # the next renewal says so
