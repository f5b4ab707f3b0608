"""The table: those messages of etcd's v3 protocol that we use, with the numbers that their fields have on the wire.

Names are etcd's own, but for `GetRequest`.  A field that is not listed is skipped when it is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Annotated

from rallypoint.etcd_client.straight import reader_of, writer_of
from rallypoint.etcd_client.tables import Message, Tag


class EventType(IntEnum):
    """What happened to a key."""

    PUT = 0
    DELETE = 1


class CompareResult(IntEnum):
    """How a compare relates what is stored to what is given."""

    EQUAL = 0
    GREATER = 1
    LESS = 2
    NOT_EQUAL = 3


class CompareTarget(IntEnum):
    """What of a key is compared."""

    VERSION = 0
    CREATE = 1
    MOD = 2
    VALUE = 3
    LEASE = 4


class ResponseHeader(Message, frozen=True):
    """Who answered, and at which revision of the whole store: the same until somebody writes."""

    RECURS = True

    cluster_id: Annotated[int, Tag(1, "uint64")] = 0
    member_id: Annotated[int, Tag(2, "uint64")] = 0
    revision: Annotated[int, Tag(3)] = 0
    raft_term: Annotated[int, Tag(4, "uint64")] = 0


class Response(Message, frozen=True):
    """What all answers have."""

    header: Annotated[ResponseHeader | None, Tag(1)] = None

    @property
    def revision(self) -> int:
        """The revision of the whole store when it answered."""
        return self.header.revision if self.header is not None else 0


class KeyValue(Message, frozen=True):
    """A key as it is stored.  `version` counts its writes since it was created; `lease` is 0 where it hangs on none."""

    key: Annotated[bytes, Tag(1)] = b""
    create_revision: Annotated[int, Tag(2)] = 0
    mod_revision: Annotated[int, Tag(3)] = 0
    version: Annotated[int, Tag(4)] = 0
    value: Annotated[bytes, Tag(5)] = b""
    lease: Annotated[int, Tag(6)] = 0


# Keys and values ------------------------------------------------------------------------------------------------------


class RangeRequest(Message, frozen=True):
    """Read keys from `key` up to but without `range_end`."""

    key: Annotated[bytes, Tag(1)] = b""
    range_end: Annotated[bytes, Tag(2)] = b""
    limit: Annotated[int, Tag(3)] = 0
    revision: Annotated[int, Tag(4)] = 0
    sort_order: Annotated[int, Tag(5, "int32")] = 0
    sort_target: Annotated[int, Tag(6, "int32")] = 0
    serializable: Annotated[bool, Tag(7)] = False
    keys_only: Annotated[bool, Tag(8)] = False
    count_only: Annotated[bool, Tag(9)] = False
    min_mod_revision: Annotated[int, Tag(10)] = 0
    max_mod_revision: Annotated[int, Tag(11)] = 0
    min_create_revision: Annotated[int, Tag(12)] = 0
    max_create_revision: Annotated[int, Tag(13)] = 0


class GetRequest(Message, frozen=True):
    """Read one key: a `RangeRequest` that has no other fields, which is quicker to write."""

    key: Annotated[bytes, Tag(1)] = b""
    revision: Annotated[int, Tag(4)] = 0


class RangeResponse(Response, frozen=True):
    """The keys; `count` is how many there are without the limit."""

    kvs: Annotated[tuple[KeyValue, ...], Tag(2)] = ()
    more: Annotated[bool, Tag(3)] = False
    count: Annotated[int, Tag(4)] = 0


class PutRequest(Message, frozen=True):
    """Write one key."""

    key: Annotated[bytes, Tag(1)] = b""
    value: Annotated[bytes, Tag(2)] = b""
    lease: Annotated[int, Tag(3)] = 0
    prev_kv: Annotated[bool, Tag(4)] = False
    ignore_value: Annotated[bool, Tag(5)] = False
    ignore_lease: Annotated[bool, Tag(6)] = False


class PutResponse(Response, frozen=True):
    """What was there before, if that was asked."""

    prev_kv: Annotated[KeyValue | None, Tag(2)] = None


class DeleteRangeRequest(Message, frozen=True):
    """Delete keys from `key` up to but without `range_end`."""

    key: Annotated[bytes, Tag(1)] = b""
    range_end: Annotated[bytes, Tag(2)] = b""
    prev_kv: Annotated[bool, Tag(3)] = False


class DeleteRangeResponse(Response, frozen=True):
    """How many keys were deleted."""

    deleted: Annotated[int, Tag(2)] = 0
    prev_kvs: Annotated[tuple[KeyValue, ...], Tag(3)] = ()


class RequestOp(Message, frozen=True):
    """One operation of a transaction."""

    request_range: Annotated[RangeRequest | None, Tag(1, oneof="request")] = None
    request_put: Annotated[PutRequest | None, Tag(2, oneof="request")] = None
    request_delete_range: Annotated[DeleteRangeRequest | None, Tag(3, oneof="request")] = None


class ResponseOp(Message, frozen=True):
    """The answer to one operation of a transaction."""

    response_range: Annotated[RangeResponse | None, Tag(1, oneof="response")] = None
    response_put: Annotated[PutResponse | None, Tag(2, oneof="response")] = None
    response_delete_range: Annotated[DeleteRangeResponse | None, Tag(3, oneof="response")] = None


class Compare(Message, frozen=True):
    """A condition of a transaction; a range that is empty fulfils it."""

    result: Annotated[int, Tag(1, "int32")] = CompareResult.EQUAL
    target: Annotated[int, Tag(2, "int32")] = CompareTarget.VERSION
    key: Annotated[bytes, Tag(3)] = b""
    version: Annotated[int | None, Tag(4, oneof="target_union")] = None
    create_revision: Annotated[int | None, Tag(5, oneof="target_union")] = None
    mod_revision: Annotated[int | None, Tag(6, oneof="target_union")] = None
    value: Annotated[bytes | None, Tag(7, oneof="target_union")] = None
    lease: Annotated[int | None, Tag(8, oneof="target_union")] = None
    range_end: Annotated[bytes, Tag(64)] = b""


class TxnRequest(Message, frozen=True):
    """All of `success` if every compare holds, all of `failure` otherwise."""

    compare: Annotated[tuple[Compare, ...], Tag(1)] = ()
    success: Annotated[tuple[RequestOp, ...], Tag(2)] = ()
    failure: Annotated[tuple[RequestOp, ...], Tag(3)] = ()


class TxnResponse(Response, frozen=True):
    """Which of the two it was, and the answers."""

    succeeded: Annotated[bool, Tag(2)] = False
    responses: Annotated[tuple[ResponseOp, ...], Tag(3)] = ()


class CompactionRequest(Message, frozen=True):
    """Forget the history before a revision."""

    revision: Annotated[int, Tag(1)] = 0
    physical: Annotated[bool, Tag(2)] = False


class CompactionResponse(Response, frozen=True):
    """Done."""


# Watches --------------------------------------------------------------------------------------------------------------


class WatchCreateRequest(Message, frozen=True):
    """Tell me of changes from a revision on."""

    key: Annotated[bytes, Tag(1)] = b""
    range_end: Annotated[bytes, Tag(2)] = b""
    start_revision: Annotated[int, Tag(3)] = 0
    progress_notify: Annotated[bool, Tag(4)] = False
    filters: Annotated[tuple[int, ...], Tag(5, "int32")] = ()
    prev_kv: Annotated[bool, Tag(6)] = False
    watch_id: Annotated[int, Tag(7)] = 0
    fragment: Annotated[bool, Tag(8)] = False


class WatchCancelRequest(Message, frozen=True):
    """Tell me no more."""

    watch_id: Annotated[int, Tag(1)] = 0


class WatchProgressRequest(Message, frozen=True):
    """Say that you are there."""


class WatchRequest(Message, frozen=True):
    """What a client says on a stream of watches."""

    create_request: Annotated[WatchCreateRequest | None, Tag(1, oneof="request_union")] = None
    cancel_request: Annotated[WatchCancelRequest | None, Tag(2, oneof="request_union")] = None
    progress_request: Annotated[WatchProgressRequest | None, Tag(3, oneof="request_union")] = None


class Event(Message, frozen=True):
    """A change of one key."""

    type: Annotated[int, Tag(1, "int32")] = EventType.PUT
    kv: Annotated[KeyValue | None, Tag(2)] = None
    prev_kv: Annotated[KeyValue | None, Tag(3)] = None


class WatchResponse(Response, frozen=True):
    """What etcd says on a stream of watches.  It can be created and canceled at once: read `canceled` first."""

    watch_id: Annotated[int, Tag(2)] = 0
    created: Annotated[bool, Tag(3)] = False
    canceled: Annotated[bool, Tag(4)] = False
    compact_revision: Annotated[int, Tag(5)] = 0
    cancel_reason: Annotated[str, Tag(6)] = ""
    fragment: Annotated[bool, Tag(7)] = False
    events: Annotated[tuple[Event, ...], Tag(11)] = ()


# Leases ---------------------------------------------------------------------------------------------------------------


class LeaseGrantRequest(Message, frozen=True):
    """A lease of so many seconds, under an id of the client's choice."""

    ttl: Annotated[int, Tag(1)] = 0
    id: Annotated[int, Tag(2)] = 0


class LeaseGrantResponse(Response, frozen=True):
    """The lease; etcd may grant more seconds than were asked for."""

    id: Annotated[int, Tag(2)] = 0
    ttl: Annotated[int, Tag(3)] = 0
    error: Annotated[str, Tag(4)] = ""


class LeaseRevokeRequest(Message, frozen=True):
    """End a lease and delete its keys."""

    id: Annotated[int, Tag(1)] = 0


class LeaseRevokeResponse(Response, frozen=True):
    """Done."""


class LeaseKeepAliveRequest(Message, frozen=True):
    """Renew a lease."""

    id: Annotated[int, Tag(1)] = 0


class LeaseKeepAliveResponse(Response, frozen=True):
    """How long it lives from now on; 0 if there is no such lease."""

    id: Annotated[int, Tag(2)] = 0
    ttl: Annotated[int, Tag(3)] = 0


class LeaseTimeToLiveRequest(Message, frozen=True):
    """Ask for a lease without renewing it."""

    id: Annotated[int, Tag(1)] = 0
    keys: Annotated[bool, Tag(2)] = False


class LeaseTimeToLiveResponse(Response, frozen=True):
    """What is left of it (-1: nothing, it is gone), and the keys that hang on it."""

    id: Annotated[int, Tag(2)] = 0
    ttl: Annotated[int, Tag(3)] = 0
    granted_ttl: Annotated[int, Tag(4)] = 0
    keys: Annotated[tuple[bytes, ...], Tag(5)] = ()


# The cluster ----------------------------------------------------------------------------------------------------------


class Member(Message, frozen=True):
    """One member of the cluster; it has no name until it has started."""

    id: Annotated[int, Tag(1, "uint64")] = 0
    name: Annotated[str, Tag(2)] = ""
    peer_urls: Annotated[tuple[str, ...], Tag(3)] = ()
    client_urls: Annotated[tuple[str, ...], Tag(4)] = ()
    is_learner: Annotated[bool, Tag(5)] = False


class MemberListRequest(Message, frozen=True):
    """Who belongs to the cluster?  etcd before 3.5 answers from memory in any case."""

    linearizable: Annotated[bool, Tag(1)] = False


class MemberListResponse(Response, frozen=True):
    """The members."""

    members: Annotated[tuple[Member, ...], Tag(2)] = ()


class StatusRequest(Message, frozen=True):
    """How are you?  One member answers for itself."""


class StatusResponse(Response, frozen=True):
    """A member's version, size, leader (0: it knows of none) and alarms."""

    version: Annotated[str, Tag(2)] = ""
    db_size: Annotated[int, Tag(3)] = 0
    leader: Annotated[int, Tag(4, "uint64")] = 0
    raft_index: Annotated[int, Tag(5, "uint64")] = 0
    raft_term: Annotated[int, Tag(6, "uint64")] = 0
    raft_applied_index: Annotated[int, Tag(7, "uint64")] = 0
    errors: Annotated[tuple[str, ...], Tag(8)] = ()
    db_size_in_use: Annotated[int, Tag(9)] = 0
    is_learner: Annotated[bool, Tag(10)] = False


class AuthenticateRequest(Message, frozen=True):
    """Give me a token."""

    name: Annotated[str, Tag(1)] = ""
    password: Annotated[str, Tag(2)] = ""


class AuthenticateResponse(Response, frozen=True):
    """The token, to be sent along with each call."""

    token: Annotated[str, Tag(2)] = ""


def _prepare(messages: Iterable[type[Message]]) -> None:
    for message in messages:
        if issubclass(message, Response):
            reader_of(message)
        elif message.__name__.endswith("Request"):
            writer_of(message)
        _prepare(message.__subclasses__())


# All at once and by one thread, instead of by each of many that need them in the same moment.
_prepare(Message.__subclasses__())
