"""Leases, and when they are renewed.

A lease is renewed at a third of its time.  One renewal may take a quarter of it, then the next endpoint is asked, so that
one stopped member costs no lease.  Only etcd's answer ends a lease: an outage leaves it in doubt.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

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
        self.due: float | None = granted_at + ttl_s * _SHARE_BETWEEN  # None while an answer is owed
        self.failures = 0

    @property
    def try_s(self) -> float:
        """How long one endpoint may take."""
        usual_s = max(self.ttl_s * _SHARE_OF_A_TRY, _SHORTEST_TRY_S)
        return min(usual_s, self.ttl_s * _LONGEST_SHARE_OF_A_TRY, _LONGEST_TRY_S)

    def sent(self, now: float) -> None:
        """A renewal is on its way."""
        self.sent_at, self.due = now, None

    def renewed(self, ttl_s: float, now: float) -> None:
        """etcd has renewed it, at the earliest when it was asked to."""
        self.failures, self.ttl_s = 0, ttl_s
        self.until = max(self.until, self.sent_at + ttl_s)
        # Counted from the answer, as etcd's proxy does, which answers an earlier request no sooner.
        self.due = min(now + ttl_s * _SHARE_BETWEEN, self.sent_at + ttl_s * _LATEST_SHARE)

    def failed(self, now: float) -> None:
        """No endpoint answered: the next one is asked, at once the first time."""
        self.due = now + (self.ttl_s * _SHARE_OF_A_PAUSE if self.failures else 0)
        self.failures += 1

    def withheld(self, now: float) -> None:
        """Its owner does not want it renewed at present: ask the owner again soon."""
        self.due = now + self.ttl_s * _SHARE_OF_A_PAUSE


@dataclass(eq=False, repr=False)
class Lease:
    """A lease that is kept alive until it is revoked, released or lost.  Usable in a `with`, which revokes it."""

    id: int
    renewal: Renewal  # it belongs to the lease keeper
    renew_while: Callable[[], bool] | None
    _let_go: Callable[[Lease], None]
    _revoke: Callable[..., None]
    lost: threading.Event = field(default_factory=threading.Event)
    """Set when etcd has said that the lease is gone, and its keys with it; also when this process has revoked it."""
    trouble: str | None = None
    """Why the last renewal did not succeed, in words; None while all is well."""

    @property
    def ttl_s(self) -> float:
        """How long it lives without being renewed, as granted by etcd."""
        return self.renewal.ttl_s

    def remaining_s(self) -> float:
        """How long it lives at least; 0 when that is in doubt, because it was not renewed for its whole time."""
        return 0.0 if self.lost.is_set() else max(self.renewal.until - time.monotonic(), 0.0)

    def release(self) -> None:
        """Renew it no more; it and its keys expire by themselves."""
        self._let_go(self)

    def revoke(self, *, wait: bool = True) -> None:
        """End it now, and delete its keys; fine if it is gone already.  With `wait=False`, a thread in the background does it."""
        self.release()
        self._revoke(self.id, wait=wait)
        self.lost.set()

    def gone(self) -> None:
        """The lease keeper's: etcd has said that it is gone."""
        self.lost.set()
        self._let_go(self)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.revoke()

    def __repr__(self) -> str:
        return f"<Lease {self.id:x}, {'lost' if self.lost.is_set() else f'{self.remaining_s():.1f} s left'}>"
