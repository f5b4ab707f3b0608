"""The thread that keeps leases alive and does nothing else.

All renewals of a cluster go over one stream, which costs etcd a third of what as many calls would.  The stream is where the
calls go: when an endpoint fails and the next one is asked, the stream moves there.  Several leases of a process may have
one id: each is renewed for itself, so that releasing one takes nothing from the others.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from functools import partial

from rallypoint.etcd_client.cluster import Cluster
from rallypoint.etcd_client.errors import EtcdError
from rallypoint.etcd_client.failures import FailureAction, classify
from rallypoint.etcd_client.leases import Lease
from rallypoint.etcd_client.message_stream import MessageStream, StreamThread
from rallypoint.etcd_client.messages import LeaseRequest, LeaseResponse
from rallypoint.etcd_client.transport import CallFailedError

log = logging.getLogger("rallypoint.etcd_client")

_LOGIN_S = 5.0
_WITHHELD = "it is not renewed at present: its renew_while() is not true"


class LeaseKeeper(StreamThread[LeaseResponse]):
    """Renews all leases of a cluster.  Everything but `keep`, `drop` and `close` runs on its own thread."""

    def __init__(self, cluster: Cluster) -> None:
        self._kept: dict[Lease, None] = {}
        self._owed: list[Lease] = []  # those that the stream has not answered yet, in the order of asking
        super().__init__(cluster, "/etcdserverpb.Lease/LeaseKeepAlive", LeaseResponse, "etcd-leases")

    def keep(self, lease: Lease) -> None:
        self._inbox.put(partial(self._kept.setdefault, lease))

    def drop(self, lease: Lease) -> None:
        self._inbox.put(partial(self._drop, lease))

    def _drop(self, lease: Lease) -> None:
        self._kept.pop(lease, None)
        if not self._kept:
            self._hang_up()

    def _due(self) -> float | None:
        moments = [lease.renewal.due for lease in self._kept if lease.renewal.due is not None]
        if self._stream is not None and self._stream.answer_by is not None:
            moments.append(self._stream.answer_by)
        return min(moments, default=None)

    def _act(self) -> None:
        now, stream = time.monotonic(), self._stream
        if stream is not None and stream.answer_by is not None and stream.answer_by <= now:
            self._broke(stream, CallFailedError("DEADLINE_EXCEEDED", "no renewal was answered"))
        for lease in list(self._kept):
            if lease.renewal.due is not None and lease.renewal.due <= now:
                self._renew(lease, now)

    def _renew(self, lease: Lease, now: float) -> None:
        if not _is_wanted(lease):
            if lease.trouble != _WITHHELD:
                log.warning("lease %x of %g s: %s", lease.id, lease.ttl_s, _WITHHELD)
            lease.trouble = _WITHHELD
            lease.renewal.withheld(now)
            return
        endpoint = self._cluster.rotation.current
        if self._stream is not None and self._stream.endpoint != endpoint:
            self._hang_up()
        try:
            if self._stream is None:
                self._stream = self._open(endpoint, self._cluster.metadata(0))
        except CallFailedError as failure:
            self._failed([lease], endpoint, self._cluster.logins, failure)
        else:
            lease.renewal.sent(now)
            self._owed.append(lease)
            self._stream.send(LeaseRequest(lease.id), lease.renewal.try_s)

    def _heard(self, stream: MessageStream, message: LeaseResponse) -> None:
        # A stream answers the requests for one lease in the order of asking.
        lease = next((lease for lease in self._owed if lease.id == message.id), None)
        if lease is not None:
            self._owed.remove(lease)
        if self._owed:
            # etcd answers one after the other: as long as it does, it may take its time for many.
            stream.expect(self._owed[0].renewal.try_s)
        if lease is None or lease not in self._kept:
            return
        trouble, lease.trouble = lease.trouble, None
        if message.ttl > 0:
            if trouble is not None:
                log.info("lease %x is renewed again", lease.id)
            lease.renewal.renewed(message.ttl, time.monotonic())
        else:
            log.warning("lease %x of %g s has expired or was revoked", lease.id, lease.ttl_s)
            self._drop(lease)
            lease.gone()

    def _broke(self, stream: MessageStream, failure: CallFailedError) -> None:
        owed, self._owed = self._owed, []
        self._close_stream()
        self._failed(owed, stream.endpoint, stream.logins, failure)

    def _hang_up(self) -> None:
        """Close the stream; the leases for which it owed an answer are due at once."""
        self._close_stream()
        owed, self._owed = self._owed, []
        for lease in owed:
            lease.renewal.due = time.monotonic()

    def _failed(self, leases: list[Lease], endpoint: str, logins: int, failure: CallFailedError) -> None:
        """These were not renewed: ask the next endpoint."""
        judgement, now = classify(failure.code, failure.details), time.monotonic()
        trouble = f"{endpoint}: {judgement.words}"
        for lease in leases:
            lease.renewal.failed(now)
            if lease.trouble is None:
                log.info("lease %x was not renewed by %s; the next member is asked", lease.id, trouble)
            lease.trouble = trouble
        if judgement.verdict is FailureAction.LOGIN and self._cluster.user is not None:
            # It takes its time, and renewals do not wait for it.  If the system has no thread left, the next failure asks.
            with suppress(RuntimeError):
                self._cluster.start(partial(self._login, logins), "etcd-login")
        else:
            self._cluster.failed(endpoint)

    def _login(self, seen: int) -> None:
        with suppress(EtcdError):  # the next renewal reports it
            self._cluster.login(seen, _LOGIN_S)


def _is_wanted(lease: Lease) -> bool:
    if lease.renew_while is None:
        return True
    try:
        return bool(lease.renew_while())
    except Exception:  # an error of its user's: no reason to renew, and no harm to the other leases
        log.exception("lease %x: renew_while failed", lease.id)
        return False
