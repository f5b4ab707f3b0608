"""The client: what a user calls."""

from __future__ import annotations

import copy
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from rallypoint.etcd_client import messages
from rallypoint.etcd_client.cluster import Cluster, RetryKind
from rallypoint.etcd_client.codec import Message
from rallypoint.etcd_client.endpoints import Tls, User, parse_endpoints
from rallypoint.etcd_client.errors import EtcdClosedError, EtcdLeaseLostError, EtcdRefusedError
from rallypoint.etcd_client.leases import Lease
from rallypoint.etcd_client.messages import Compare, KeyValue, RangeResponse, RequestOp
from rallypoint.etcd_client.transactions import (
    GuardedPut,
    Text,
    TransactionResult,
    compare,
    get_op,
    put_op,
    range_of,
    to_bytes,
)
from rallypoint.etcd_client.watch_state import WatchedRange
from rallypoint.etcd_client.watch_stream import WatchStream
from rallypoint.etcd_client.watches import Watch

_PAGE = 1000

M = TypeVar("M", bound=Message)


class EtcdClient:
    """An etcd v3 cluster.  Safe to use from many threads; not across a fork.

    `endpoints`: `"a:2379,b:2379,c:2379"`, `"https://…"`, or a list.  `timeout_s` is how long a call may take, all
    endpoints together; each method takes another for itself.  A client begins with any endpoint, with `spread=False` with
    the first.  Nothing is connected before the first call.
    """

    def __init__(
        self,
        endpoints: str | Iterable[str],
        *,
        tls: Tls | None = None,
        user: User | None = None,
        timeout_s: float = 10.0,
        spread: bool = True,
    ) -> None:
        self.endpoints, secure = parse_endpoints(endpoints)
        if secure is False and tls is not None:
            raise EtcdRefusedError("the endpoints say http://, and certificates were given; write https://")
        tls = Tls() if secure and tls is None else tls
        self._begin(Cluster(self.endpoints, tls, user, spread=spread), timeout_s)

    def _begin(self, cluster: Cluster, timeout_s: float) -> None:
        self._cluster: Cluster | None = cluster
        self._timeout_s = timeout_s
        self._leases: set[Lease] = set()  # those that this client keeps alive
        self._watches: set[Watch] = set()

    def twin(self, *, timeout_s: float | None = None) -> EtcdClient:
        """Another client of the same cluster, over the same connections; closing one leaves the other as it is."""
        twin = copy.copy(self)
        twin._begin(self._open.retain(), self._time(timeout_s))  # noqa: SLF001  # its own class
        return twin

    def warm_up(self) -> None:
        """Begin to connect without waiting, so that a first call soon after is quick; a failure is left to that call."""
        self._open.warm_up()

    # Keys and values --------------------------------------------------------------------------------------------------

    def get(self, key: Text, *, revision: int = 0, timeout_s: float | None = None) -> KeyValue | None:
        """One key; None if it does not exist."""
        found = self.range(key, revision=revision, timeout_s=timeout_s)
        return found.kvs[0] if found.kvs else None

    def range(
        self,
        key: Text = b"",
        *,
        prefix: bool = False,
        end: Text | None = None,
        limit: int = 0,
        revision: int = 0,
        keys_only: bool = False,
        count_only: bool = False,
        timeout_s: float | None = None,
    ) -> RangeResponse:
        """Keys in their order: one, all with a prefix, or up to but without an end."""
        where = range_of(key, prefix, end)
        request = messages.RangeRequest(*where, limit, revision, keys_only, count_only)
        return self._call("KV/Range", request, RangeResponse, timeout_s)

    def pages(
        self,
        key: Text = b"",
        *,
        prefix: bool = False,
        end: Text | None = None,
        page: int = _PAGE,
        revision: int = 0,
        keys_only: bool = False,
        timeout_s: float | None = None,
    ) -> Iterator[RangeResponse]:
        """The same in pages, all of them at one revision, however much is written meanwhile."""
        start, stop = range_of(key, prefix, end)
        while True:
            found = self.range(start, end=stop, limit=page, revision=revision, keys_only=keys_only, timeout_s=timeout_s)
            yield found
            if not found.more or not found.kvs:
                return
            start, revision = found.kvs[-1].key + b"\0", revision or found.revision

    def put(
        self, key: Text, value: Text, *, lease: Lease | int = 0, timeout_s: float | None = None
    ) -> messages.Response:
        """Write one key.  `EtcdAmbiguousError` means that it may have happened."""
        request = messages.PutRequest(to_bytes(key), to_bytes(value), _id(lease))
        return self._call("KV/Put", request, messages.Response, timeout_s, RetryKind.ONCE)

    def delete(
        self, key: Text, *, prefix: bool = False, end: Text | None = None, timeout_s: float | None = None
    ) -> messages.DeleteRangeResponse:
        """Delete one key, or a range; the answer has their number.  `EtcdAmbiguousError`: it may have happened."""
        request = messages.DeleteRangeRequest(*range_of(key, prefix, end))
        return self._call("KV/DeleteRange", request, messages.DeleteRangeResponse, timeout_s, RetryKind.ONCE)

    def transaction(
        self,
        when: Sequence[Compare] = (),
        then: Sequence[RequestOp] = (),
        otherwise: Sequence[RequestOp] = (),
        *,
        timeout_s: float | None = None,
    ) -> TransactionResult:
        """All of `then` if all conditions hold, else all of `otherwise`.  `EtcdAmbiguousError`: it may have happened."""
        is_read = all(op.request_range is not None for op in (*then, *otherwise))
        kind = RetryKind.READ if is_read else RetryKind.ONCE
        return self._transact(messages.TxnRequest(tuple(when), tuple(then), tuple(otherwise)), timeout_s, kind)

    def guarded_put(
        self,
        key: Text,
        value: Text,
        *,
        mod_revision: int,
        when: Sequence[Compare] = (),
        then: Sequence[RequestOp] = (),
        lease: Lease | int = 0,
        timeout_s: float | None = None,
    ) -> GuardedPut:
        """Write a key only if it is still at `mod_revision` (0: does not exist), and find out whether it was.

        The value must be unique, such as one with a random token in it.  That is what makes it safe to send it again
        when an answer is lost: its own success spoils its guard, and the value tells whose it was.  More conditions and
        operations may go along; let them be such that cannot come true again once they have failed.
        `EtcdAmbiguousError` is raised only if no member answers until the deadline.
        """
        wanted = to_bytes(value)
        when, then = (compare(key, mod_revision=mod_revision), *when), (put_op(key, wanted, lease=_id(lease)), *then)
        outcome = self._transact(messages.TxnRequest(when, then, (get_op(key),)), timeout_s, RetryKind.AGAIN)
        if outcome.succeeded:
            return GuardedPut(True, outcome.revision, None)
        found = outcome.answers[0]
        assert isinstance(found, RangeResponse)
        current = found.kvs[0] if found.kvs else None
        if current is not None and current.value == wanted:
            return GuardedPut(True, current.mod_revision, None)
        return GuardedPut(False, current.mod_revision if current is not None else 0, current)

    def _transact(self, request: messages.TxnRequest, timeout_s: float | None, kind: RetryKind) -> TransactionResult:
        return TransactionResult.of(self._call("KV/Txn", request, messages.TxnResponse, timeout_s, kind))

    # Leases -----------------------------------------------------------------------------------------------------------

    def grant(
        self, ttl_s: int, *, renew_while: Callable[[], bool] | None = None, timeout_s: float | None = None
    ) -> Lease:
        """A lease that is kept alive from now on; etcd may grant more than was asked for.

        A thread renews it only while `renew_while()` is true (None: always), so that a lease does not outlive the work that
        it stands for.  The thread calls it before each renewal.
        """
        # The id is ours, so that a grant whose answer was lost can be asked for again.
        asked_at, lease_id = time.monotonic(), secrets.randbits(62) + 1
        request, kind = messages.LeaseGrantRequest(ttl_s, lease_id), RetryKind.AGAIN
        try:
            granted_s = self._call("Lease/LeaseGrant", request, messages.LeaseResponse, timeout_s, kind).ttl
        except EtcdRefusedError as refusal:
            if "lease already exists" not in str(refusal):
                raise
            granted_s = self.time_to_live(lease_id, timeout_s=timeout_s).granted_ttl
        return self._lease(lease_id, granted_s, asked_at, renew_while)

    def adopt(
        self, lease_id: int, *, renew_while: Callable[[], bool] | None = None, timeout_s: float | None = None
    ) -> Lease:
        """A lease that another process was granted, kept alive by this one from now on, as with `grant`.

        Several may keep one lease.  `EtcdLeaseLostError` if it is gone.
        """
        asked_at = time.monotonic()
        found = self.time_to_live(lease_id, timeout_s=timeout_s)
        if found.ttl <= 0:
            raise EtcdLeaseLostError(f"lease {lease_id:x} has expired or was revoked")
        return self._lease(lease_id, found.granted_ttl, asked_at - (found.granted_ttl - found.ttl), renew_while)

    def _lease(self, lease_id: int, ttl_s: float, asked_at: float, renew_while: Callable[[], bool] | None) -> Lease:
        lease = Lease(self._open, lease_id, ttl_s, asked_at, renew_while, self._leases.discard, self.revoke)
        self._leases.add(lease)
        return lease

    def revoke(self, lease: Lease | int, *, wait: bool = True, timeout_s: float | None = None) -> None:
        """End a lease and delete its keys; fine if it is gone already.  With `wait=False`, in the background."""
        cluster, lease_id, time_s = self._open, _id(lease), self._time(timeout_s)

        def revoke() -> None:
            request, method = messages.LeaseRequest(lease_id), "/etcdserverpb.Lease/LeaseRevoke"
            with suppress(EtcdLeaseLostError):
                cluster.call(method, request, messages.Response, time_s, RetryKind.AGAIN)

        if wait:
            revoke()
        else:
            cluster.revoke_in_background(revoke)

    def time_to_live(self, lease: Lease | int, *, timeout_s: float | None = None) -> messages.LeaseResponse:
        """What is left of a lease (-1: it is gone)."""
        request = messages.LeaseRequest(_id(lease))
        return self._call("Lease/LeaseTimeToLive", request, messages.LeaseResponse, timeout_s)

    # Watches ----------------------------------------------------------------------------------------------------------

    def watch(
        self,
        key: Text = b"",
        *,
        prefix: bool = False,
        end: Text | None = None,
        revision: int | None = None,
        snapshot: bool = False,
        timeout_s: float | None = None,
    ) -> Watch:
        """Changes from a revision on, or from now on: whatever is written after this call returns is delivered.

        With `snapshot` the first thing that it gives is a `Resync`: the present state, and then what changes in it.
        `timeout_s` is for reading the state, here and after a compaction.
        """
        start, stop = range_of(key, prefix, end)
        if revision is None and not snapshot:
            revision = self.range(key, prefix=prefix, end=end, count_only=True, timeout_s=timeout_s).revision + 1
        read = partial(self.range, key, prefix=prefix, end=end, timeout_s=timeout_s)
        watched = WatchedRange(start, stop, revision or 1)
        watch = Watch(self._open.watch_stream(WatchStream), watched, read, self._watches.discard, snapshot=snapshot)
        self._watches.add(watch)
        if self._cluster is None:  # another thread has closed the client meanwhile, and may not have seen the watch
            watch.close()
        return watch

    def close(self) -> None:
        """End the watches and let the leases of this client expire; revoke them first if they are to go at once."""
        cluster, self._cluster = self._cluster, None
        if cluster is None:
            return
        for watch in list(self._watches):
            watch.close()
        for lease in list(self._leases):
            lease.release()
        cluster.release()

    def __enter__(self) -> EtcdClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<EtcdClient {','.join(self.endpoints)}{'' if self._cluster else ', closed'}>"

    @property
    def _open(self) -> Cluster:
        if self._cluster is None:
            raise EtcdClosedError("the client is closed")
        return self._cluster

    def _time(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else timeout_s

    def _call(
        self, method: str, request: Message, answer: type[M], timeout_s: float | None, kind: RetryKind = RetryKind.READ
    ) -> M:
        return self._open.call(f"/etcdserverpb.{method}", request, answer, self._time(timeout_s), kind)


def _id(lease: Lease | int) -> int:
    return lease if isinstance(lease, int) else lease.id
