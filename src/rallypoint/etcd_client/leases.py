"""Leases, and when they are renewed.

A lease is renewed at a third of its time.  One renewal may take a quarter of it, then the next endpoint is asked, so
that one member that is stopped costs nobody a lease.  Only etcd's word ends a lease: an outage leaves it in doubt.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from rallypoint.etcd_client.errors import EtcdLeaseLostError

_SHARE_BETWEEN = 1 / 3
_SHARE_OF_A_TRY = 1 / 4
_SHARE_OF_A_PAUSE = 1 / 20
_LATEST_SHARE = 1 / 2
# etcd's proxy answers when it renews for itself, by a clock that ticks twice a second.
_SHORTEST_TRY_S = 0.75
_LONGEST_SHARE_OF_A_TRY = 0.4
_LONGEST_TRY_S = 2.5


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
        usual_s = max(self.ttl_s * _SHARE_OF_A_TRY, _SHORTEST_TRY_S)
        return min(usual_s, self.ttl_s * _LONGEST_SHARE_OF_A_TRY, _LONGEST_TRY_S)

    def sent(self, now: float) -> None:
        """A renewal is on its way."""
        self.sent_at = now

    def renewed(self, ttl_s: float, now: float) -> None:
        """etcd has renewed it, at the earliest when it was asked to.

        The next time is counted from the answer, as etcd's proxy does; who asks it earlier waits for that.
        """
        self.failures = 0
        self.ttl_s = ttl_s
        self.until = max(self.until, self.sent_at + ttl_s)
        self.due = min(now + ttl_s * _SHARE_BETWEEN, self.sent_at + ttl_s * _LATEST_SHARE)

    def failed(self, now: float) -> None:
        """Nobody answered: the next endpoint is asked, at once the first time."""
        self.due = now + (self.ttl_s * _SHARE_OF_A_PAUSE if self.failures else 0)
        self.failures += 1


class Keeps(Protocol):
    """Whoever renews leases."""

    def keep(self, lease: Lease) -> None:
        """Renew it from now on."""

    def drop(self, lease: Lease) -> None:
        """Renew it no more."""


class Lease:
    """A lease that is kept alive until it is revoked, released or lost.  Usable in a `with`, which revokes it."""

    def __init__(
        self,
        lease_id: int,
        renewal: Renewal,
        keeper: Keeps,
        revoke: Callable[[int], None],
        over: Callable[[Lease], None],
    ) -> None:
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
        self._over = over
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
        self._over(self)

    def gone(self) -> None:
        """etcd has said that it is, and its keys with it."""
        self.lost.set()
        self._over(self)

    def revoke(self) -> None:
        """End it now, and delete its keys; fine if it is gone already."""
        self.release()
        self._revoke(self.id)
        self.gone()

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.revoke()

    def __repr__(self) -> str:
        return f"<Lease {self.id:x}, {'lost' if self.lost.is_set() else f'{self.remaining_s():.1f} s left'}>"
