"""Leases, each kept alive by a thread that does nothing else.

A lease is renewed at a third of its time, by a call as any other: a member that does not answer is left for the next one, so
that one stopped member costs no lease.  Only etcd's answer ends a lease: an outage leaves it in doubt.  Several leases of a
process may have one id: each is renewed for itself, so that releasing one takes nothing from the others.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from rallypoint.etcd_client.cluster import Cluster, RetryKind
from rallypoint.etcd_client.errors import EtcdError
from rallypoint.etcd_client.messages import LeaseRequest, LeaseResponse
from rallypoint.etcd_client.transport import KEEP_ALIVE

log = logging.getLogger("rallypoint.etcd_client")

_SHARE_BETWEEN = 1 / 3
_LATEST_SHARE = 1 / 2
_SHARE_OF_A_CALL = 2 / 3
_SHARE_OF_A_PAUSE = 1 / 20
_WITHHELD = "it is not renewed at present: its renew_while() is not true"


class Lease:
    """A lease that is kept alive until it is revoked, released or lost.  Usable in a `with`, which revokes it."""

    def __init__(
        self,
        cluster: Cluster,
        lease_id: int,
        ttl_s: float,
        asked_at: float,
        renew_while: Callable[[], bool] | None,
        forget: Callable[[Lease], None],
        revoke: Callable[..., None],
    ) -> None:
        self.id = lease_id
        self.ttl_s = ttl_s
        """How long it lives without being renewed, as granted by etcd."""
        self.until = asked_at + ttl_s
        """It lives at least so long, on the monotonic clock."""
        self.lost = threading.Event()
        """Set when etcd has said that the lease is gone, and its keys with it; also when this process has revoked it."""
        self.trouble: str | None = None
        """Why the last renewal did not succeed, in words; None while all is well."""
        self._cluster, self._renew_while, self._forget, self._revoke = cluster, renew_while, forget, revoke
        self._released = threading.Event()
        self._due = asked_at + ttl_s * _SHARE_BETWEEN
        cluster.start(self._keep, "etcd-lease")

    def remaining_s(self) -> float:
        """How long it lives at least; 0 when that is in doubt, because it was not renewed for its whole time."""
        return 0.0 if self.lost.is_set() else max(self.until - time.monotonic(), 0.0)

    def release(self) -> None:
        """Renew it no more; it and its keys expire by themselves."""
        self._released.set()
        self._forget(self)

    def revoke(self, *, wait: bool = True) -> None:
        """End it now, and delete its keys; fine if it is gone already.  With `wait=False`, a thread in the background does it."""
        self.release()
        self._revoke(self.id, wait=wait)
        self.lost.set()

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.revoke()

    def __repr__(self) -> str:
        return f"<Lease {self.id:x}, {'lost' if self.lost.is_set() else f'{self.remaining_s():.1f} s left'}>"

    def _keep(self) -> None:
        while not self._released.wait(max(self._due - time.monotonic(), 0.0)):
            why: str | None = None
            try:
                if self._renew_while is None or self._renew_while():
                    self._renew()
                else:
                    why = _WITHHELD
            except EtcdError as problem:
                why = str(problem)
            except Exception as problem:  # of `renew_while`, for one: it must not cost the lease
                log.exception("lease %x is not renewed at present", self.id)
                why = f"an error of this program: {problem!r}"
            if why is not None:
                if self.trouble is None:
                    log.warning("lease %x of %g s: %s", self.id, self.ttl_s, why)
                self._due = time.monotonic() + self.ttl_s * _SHARE_OF_A_PAUSE
            elif self.trouble is not None:
                log.info("lease %x is renewed again", self.id)
            self.trouble = why

    def _renew(self) -> None:
        sent_at = time.monotonic()
        request, time_s = LeaseRequest(self.id), self.ttl_s * _SHARE_OF_A_CALL
        ttl_s = self._cluster.call(KEEP_ALIVE, request, LeaseResponse, time_s, RetryKind.READ).ttl
        if ttl_s > 0:
            self.ttl_s = ttl_s
            self.until = max(self.until, sent_at + ttl_s)
            # Counted from the answer, as etcd's proxy does, which answers an earlier request no sooner.
            self._due = min(time.monotonic() + ttl_s * _SHARE_BETWEEN, sent_at + ttl_s * _LATEST_SHARE)
        elif not self._released.is_set():
            log.warning("lease %x of %g s has expired or was revoked", self.id, self.ttl_s)
            self.lost.set()
            self.release()
