"""The client: what a user calls.  Clients of the same cluster in one process share connections, threads and the token."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType

from rallypoint.etcd_client.conductor import Watcher
from rallypoint.etcd_client.endpoints import Tls, User, parse_endpoints
from rallypoint.etcd_client.errors import (
    EtcdClosedError,
    EtcdCompactedError,
    EtcdError,
    EtcdLeaseLostError,
    EtcdMessageError,
    EtcdRefusedError,
)
from rallypoint.etcd_client.hub import STATUS, Hub, Kind, P, Reply, open_hub, release_hub
from rallypoint.etcd_client.keeper import Keeper
from rallypoint.etcd_client.leases import Lease, Renewal
from rallypoint.etcd_client.messages import (
    CompactionRequest,
    CompactionResponse,
    Compare,
    DeleteRangeRequest,
    DeleteRangeResponse,
    GetRequest,
    KeyValue,
    LeaseGrantRequest,
    LeaseGrantResponse,
    LeaseRevokeRequest,
    LeaseRevokeResponse,
    LeaseTimeToLiveRequest,
    LeaseTimeToLiveResponse,
    Member,
    MemberListRequest,
    MemberListResponse,
    PutRequest,
    PutResponse,
    RangeRequest,
    RangeResponse,
    RequestOp,
    StatusRequest,
    StatusResponse,
    TxnRequest,
    TxnResponse,
)
from rallypoint.etcd_client.transactions import Guarded, Outcome, Text, compare, get_op, put_op, range_of, to_bytes
from rallypoint.etcd_client.watches import Watch
from rallypoint.etcd_client.watching import Watched
from rallypoint.etcd_client.wire import decode

_PAGE = 1000
_RANGE = "/etcdserverpb.KV/Range"
_GRANT = "/etcdserverpb.Lease/LeaseGrant"


@dataclass(frozen=True)
class Health:
    """What one endpoint says of itself, or why it says nothing."""

    endpoint: str
    status: StatusResponse | None
    trouble: str | None


class EtcdClient:
    """An etcd v3 cluster.  Safe to use from many threads; not across a fork.

    `endpoints`: `"a:2379,b:2379,c:2379"`, `"https://…"`, or a list.  `timeout_s` is how long a call may take, all
    endpoints together; each method takes another for itself.  `spread=False` begins with the first endpoint instead of
    any.  Nothing is connected before the first call.
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
        places, secure = parse_endpoints(endpoints)
        if secure is False and tls is not None:
            raise EtcdRefusedError("the endpoints say http://, and certificates were given; write https://")
        self.endpoints = places
        self._arguments = (tls, user, spread)
        self._secure = bool(secure) or tls is not None
        self._timeout_s = timeout_s
        self._hub: Hub | None = open_hub(places, Tls() if secure and tls is None else tls, user, spread=spread)
        self._leases: set[Lease] = set()  # those that are to be released in the end
        self._watches: set[Watch] = set()

    def twin(self, *, timeout_s: float | None = None) -> EtcdClient:
        """Another client of the same cluster, over the same connections; closing one leaves the other as it is."""
        tls, user, spread = self._arguments
        scheme = "https" if self._secure else "http"
        places = [f"{scheme}://{place}" for place in self.endpoints]
        return EtcdClient(places, tls=tls, user=user, timeout_s=self._time(timeout_s), spread=spread)

    def warm_up(self) -> None:
        """Begin to connect without waiting, where a first call is to come soon and to be quick; says nothing if it fails."""
        self._open.warm_up()

    @property
    def needs_login(self) -> bool:
        """Whether the next call is to wait for a login."""
        hub = self._open
        return hub.user is not None and not hub.logins

    def part(self, kind: type[P]) -> P:
        """The one of its kind that all clients of this cluster in this process share; it ends with the last of them."""
        return self._open.part(kind)

    # Keys and values --------------------------------------------------------------------------------------------------

    def get(self, key: Text, *, revision: int = 0, timeout_s: float | None = None) -> KeyValue | None:
        """One key; None if it does not exist."""
        hub, request = self._hub or self._open, GetRequest(range_of(key)[0], revision)
        found = hub.call(_RANGE, request, RangeResponse, self._timeout_s if timeout_s is None else timeout_s)
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
        serializable: bool = False,
        timeout_s: float | None = None,
    ) -> RangeResponse:
        """Keys in their order: one, all with a prefix, or up to but without an end.

        `serializable` asks one member only, which may be behind the others, and may be cut off from them.
        """
        start, stop = range_of(key, prefix, end)
        request = RangeRequest(
            start, stop, limit, revision, serializable=serializable, keys_only=keys_only, count_only=count_only
        )
        return self._open.call(_RANGE, request, RangeResponse, self._time(timeout_s), leader=not serializable)

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
            request = RangeRequest(start, stop, page, revision, keys_only=keys_only)
            found = self._open.call(_RANGE, request, RangeResponse, self._time(timeout_s))
            yield found
            if not found.more or not found.kvs:
                return
            start, revision = found.kvs[-1].key + b"\0", revision or found.revision

    def put(
        self, key: Text, value: Text, *, lease: Lease | int = 0, previous: bool = False, timeout_s: float | None = None
    ) -> PutResponse:
        """Write one key.  `EtcdAmbiguousError` means that it may have happened."""
        request = PutRequest(to_bytes(key), to_bytes(value), _written_on(lease), previous)
        return self._open.call("/etcdserverpb.KV/Put", request, PutResponse, self._time(timeout_s), Kind.ONCE)

    def delete(
        self,
        key: Text,
        *,
        prefix: bool = False,
        end: Text | None = None,
        previous: bool = False,
        timeout_s: float | None = None,
    ) -> DeleteRangeResponse:
        """Delete one key, or a range; the answer has their number.  `EtcdAmbiguousError`: it may have happened."""
        request = DeleteRangeRequest(*range_of(key, prefix, end), previous)
        return self._open.call(
            "/etcdserverpb.KV/DeleteRange", request, DeleteRangeResponse, self._time(timeout_s), Kind.ONCE
        )

    def transaction(
        self,
        when: Sequence[Compare] = (),
        then: Sequence[RequestOp] = (),
        otherwise: Sequence[RequestOp] = (),
        *,
        again: bool = False,
        timeout_s: float | None = None,
    ) -> Outcome:
        """All of `then` if all conditions hold, else all of `otherwise`.  `EtcdAmbiguousError`: it may have happened.

        `again` says that it does no harm if it happens twice: when an answer is lost, another member is asked to do it.
        """
        request = TxnRequest(tuple(when), tuple(then), tuple(otherwise))
        if all(op.request_range is not None for op in (*then, *otherwise)):
            return self._transact(request, timeout_s, Kind.READ)
        return self._transact(request, timeout_s, Kind.AGAIN if again else Kind.ONCE)

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
    ) -> Guarded:
        """Write a key only if it is still at `mod_revision` (0: does not exist), and find out whether it was.

        The value must be unique, such as one with a random token in it.  That is what makes it safe to send it again
        when an answer is lost: its own success spoils its guard, and the value tells whose it was.  More conditions and
        operations may go along; let them be such that cannot come true again once they have failed.
        `EtcdAmbiguousError` is raised only if nobody answers until the deadline.
        """
        wanted = to_bytes(value)
        request = TxnRequest(
            (compare(key, mod_revision=mod_revision), *when),
            (put_op(key, wanted, lease=_written_on(lease)), *then),
            (get_op(key),),
        )
        outcome = self._transact(request, timeout_s, Kind.AGAIN)
        if outcome.succeeded:
            return Guarded(True, outcome.revision, None)
        found = outcome.answers[0]
        assert isinstance(found, RangeResponse)
        current = found.kvs[0] if found.kvs else None
        if current is not None and current.value == wanted:
            return Guarded(True, current.mod_revision, None)
        return Guarded(False, current.mod_revision if current is not None else 0, current)

    def compact(self, revision: int, *, timeout_s: float | None = None) -> None:
        """Forget the history before a revision; fine if it is forgotten already."""
        try:
            request = CompactionRequest(revision)
            self._open.call("/etcdserverpb.KV/Compact", request, CompactionResponse, self._time(timeout_s), Kind.AGAIN)
        except EtcdCompactedError:
            return

    def _transact(self, request: TxnRequest, timeout_s: float | None, kind: Kind) -> Outcome:
        return Outcome.of(self._open.call("/etcdserverpb.KV/Txn", request, TxnResponse, self._time(timeout_s), kind))

    # Leases -----------------------------------------------------------------------------------------------------------

    def grant(
        self,
        ttl_s: int,
        *,
        keep: bool = True,
        renew_while: Callable[[], bool] | None = None,
        ahead: bool = False,
        wake: Callable[[], None] | None = None,
        timeout_s: float | None = None,
    ) -> Lease:
        """A lease that is kept alive from now on; etcd may grant more than was asked for.

        With `ahead` this does not wait for the answer: there is time for something else.  `ensure` that it is there before
        anything is written on it: a write that came first would be refused, and if a member of etcd 3.4 is killed then, it
        does it all the same when it comes back, and disagrees with the others from then on.  It is for leases that are kept;
        others are waited for.  `wake` is called, on a thread of the client's, when etcd has answered, or has not in time.
        """
        hub, asked_at = self._open, time.monotonic()
        # The id is ours, so that a grant whose answer was lost can be asked for again.
        lease = self._lease(secrets.randbits(62) + 1, Renewal(ttl_s, asked_at))
        if ahead and keep and not self.needs_login:
            hub.ask(_GRANT, LeaseGrantRequest(ttl_s, lease.id), self._time(timeout_s), partial(_granted, lease, wake))
        else:
            self._grant(lease, timeout_s, keep=keep)
        if keep:
            self._leases.add(lease)
        return lease

    def _lease(self, lease_id: int, renewal: Renewal) -> Lease:
        return Lease(lease_id, renewal, self.part(Keeper), self.revoke, self._leases.discard)

    def ensure(self, lease: Lease, *, timeout_s: float | None = None) -> None:
        """Wait until a lease that was asked for ahead is granted."""
        lease.answered.wait(self._time(timeout_s))
        if not lease.is_granted:
            self._grant(lease, timeout_s, keep=True)

    def _grant(self, lease: Lease, timeout_s: float | None, *, keep: bool) -> None:
        asked_at = time.monotonic()
        request = LeaseGrantRequest(math.ceil(lease.ttl_s), lease.id)
        try:
            granted_s = self._open.call(_GRANT, request, LeaseGrantResponse, self._time(timeout_s), Kind.AGAIN).ttl
        except EtcdRefusedError as refusal:
            if "lease already exists" not in str(refusal):
                raise
            granted_s = self.time_to_live(lease, timeout_s=timeout_s).granted_ttl
            asked_at = lease.renewal.sent_at
        lease.exists(Renewal(granted_s, asked_at), keep=keep)

    def adopt(self, lease_id: int, *, timeout_s: float | None = None) -> Lease:
        """A lease that another process was granted, kept alive by this one from now on.

        Several may keep one lease.  `EtcdLeaseLostError` if it is gone.
        """
        asked_at = time.monotonic()
        found = self.time_to_live(lease_id, timeout_s=timeout_s)
        if found.ttl <= 0:
            raise EtcdLeaseLostError(f"lease {lease_id:x} has expired or was revoked")
        renewal = Renewal(found.granted_ttl, asked_at - (found.granted_ttl - found.ttl))
        lease = self._lease(lease_id, renewal)
        self._leases.add(lease)
        lease.exists(renewal, keep=True)
        return lease

    def revoke(self, lease: Lease | int, *, timeout_s: float | None = None) -> None:
        """End a lease and delete its keys; fine if it is gone already."""
        try:
            request = LeaseRevokeRequest(_id(lease))
            self._open.call(
                "/etcdserverpb.Lease/LeaseRevoke", request, LeaseRevokeResponse, self._time(timeout_s), Kind.AGAIN
            )
        except EtcdLeaseLostError:
            return

    def time_to_live(
        self, lease: Lease | int, *, keys: bool = False, timeout_s: float | None = None
    ) -> LeaseTimeToLiveResponse:
        """What is left of a lease (-1: it is gone), and the keys that hang on it."""
        request = LeaseTimeToLiveRequest(_id(lease), keys)
        return self._open.call(
            "/etcdserverpb.Lease/LeaseTimeToLive", request, LeaseTimeToLiveResponse, self._time(timeout_s)
        )

    # Watches ----------------------------------------------------------------------------------------------------------

    def watch(
        self,
        key: Text = b"",
        *,
        prefix: bool = False,
        end: Text | None = None,
        revision: int | None = None,
        snapshot: bool = False,
        previous: bool = False,
        ahead: bool = False,
        within: Text | None = None,
        wake: Callable[[], None] | None = None,
        timeout_s: float | None = None,
    ) -> Watch:
        """Changes from a revision on, or from now on: whatever is written after this call returns is delivered.

        With `snapshot` the first thing that it gives is a `Resync`: the present state, and then what changes in it.  With
        `ahead` nothing is asked before: it begins soon, and `since` tells with which revision; who has yet to do what is
        watched for, and does it then, hears of it sooner than by a watch from a revision that is past.  (Behind etcd's proxy
        `since` is -1, and what comes during a break may be lost before the first change: watch from a revision there.)
        `wake` is called, on a thread of the client's, when there is something to get: for whoever waits for several
        watches at once.  Watches that look at the same share what etcd sends; so do those of single keys that say
        `within` which prefix, for a process that looks at many keys of which all begin so.
        """
        start, stop = range_of(key, prefix, end)
        if ahead and (revision is not None or snapshot):
            raise EtcdRefusedError("a watch that is asked for ahead begins by itself: with no revision and no snapshot")
        if revision is None and not snapshot and not ahead:
            revision = self.range(key, prefix=prefix, end=end, count_only=True, timeout_s=timeout_s).revision + 1
        if within is not None and (stop or not start.startswith(to_bytes(within))):
            raise EtcdRefusedError(f"{key!r} is no single key within {within!r}")
        around = None if within is None else range_of(within, True, None)
        watched = Watched(start, stop, 0 if ahead else revision or 1, previous, around)

        def read(read_timeout_s: float) -> tuple[tuple[KeyValue, ...], int]:
            return self._read_all(key, prefix, end, read_timeout_s)

        watch = Watch(self.part(Watcher), watched, read, self._time(timeout_s), snapshot=snapshot, wake=wake)
        self._watches = {known for known in self._watches if not known.is_over} | {watch}
        return watch

    @property
    def watching(self) -> int:
        """About how many watches there are in this process, of all clients of the cluster."""
        return self.part(Watcher).count

    def _read_all(
        self, key: Text, prefix: bool, end: Text | None, timeout_s: float
    ) -> tuple[tuple[KeyValue, ...], int]:
        try:
            pages = list(self.pages(key, prefix=prefix, end=end, timeout_s=timeout_s))
        except EtcdCompactedError:
            # Compacted between two pages: once more, in one piece.
            pages = [self.range(key, prefix=prefix, end=end, timeout_s=timeout_s)]
        return tuple(kv for page in pages for kv in page.kvs), pages[0].revision

    # The cluster ------------------------------------------------------------------------------------------------------

    def members(self, *, timeout_s: float | None = None) -> tuple[Member, ...]:
        """Who belongs to the cluster."""
        request = MemberListRequest(linearizable=True)
        return self._open.call(
            "/etcdserverpb.Cluster/MemberList", request, MemberListResponse, self._time(timeout_s)
        ).members

    def health(self, *, timeout_s: float = 2.0) -> tuple[Health, ...]:
        """What each endpoint says of itself, one after the other."""
        return tuple(self._health(endpoint, timeout_s) for endpoint in self.endpoints)

    def _health(self, endpoint: str, timeout_s: float) -> Health:
        hub = self._open
        try:
            # A member's health is not to depend on a login elsewhere; newer versions want a user, and say so.
            bare = hub.logins == 0
            status = hub.call(
                STATUS, StatusRequest(), StatusResponse, timeout_s, leader=False, anonymous=bare, only=endpoint
            )
        except EtcdClosedError:
            raise
        except EtcdError as problem:
            return Health(endpoint, None, str(problem))
        return Health(endpoint, status, "; ".join(status.errors) or None)

    # The end ----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the watches and let the leases of this client expire; revoke them first if they are to go at once."""
        hub, self._hub = self._hub, None
        if hub is None:
            return
        for watch in self._watches:
            watch.close()
        for lease in list(self._leases):
            lease.release()
        release_hub(hub)

    def __enter__(self) -> EtcdClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<EtcdClient {','.join(self.endpoints)}{'' if self._hub else ', closed'}>"

    @property
    def _open(self) -> Hub:
        if self._hub is None:
            raise EtcdClosedError("the client is closed")
        return self._hub

    def _time(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else timeout_s


def _granted(lease: Lease, wake: Callable[[], None] | None, reply: Reply) -> None:
    """What came of a grant that nobody waited for; where it is not known, whoever needs it asks again."""
    if isinstance(reply.outcome, bytes):
        with suppress(EtcdMessageError):
            granted_s = decode(LeaseGrantResponse, reply.outcome).ttl
            lease.exists(Renewal(granted_s, lease.renewal.sent_at), keep=True)
    lease.answered.set()
    if wake is not None:
        wake()


def _written_on(lease: Lease | int) -> int:
    if not isinstance(lease, int) and not lease.is_granted:
        raise EtcdRefusedError(
            f"lease {lease.id:x} was asked for ahead, and etcd has not said yet that it is there; call ensure() before "
            f"anything is written on it"
        )
    return _id(lease)


def _id(lease: Lease | int) -> int:
    return lease if isinstance(lease, int) else lease.id
