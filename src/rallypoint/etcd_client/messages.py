"""The table: those messages of etcd's v3 protocol that we use, with the numbers that their fields have on the wire.

Names are etcd's own.  A field that is not listed is skipped when it is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

from rallypoint.etcd_client.wire import Message, Tag


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


@dataclass(frozen=True, slots=True)
class ResponseHeader(Message):
    """Who answered, and at which revision of the whole store."""

    cluster_id: Annotated[int, Tag(1, "uint64")] = 0
    member_id: Annotated[int, Tag(2, "uint64")] = 0
    revision: Annotated[int, Tag(3)] = 0
    raft_term: Annotated[int, Tag(4, "uint64")] = 0


@dataclass(frozen=True, slots=True)
class Response(Message):
    """What all answers have."""

    header: Annotated[ResponseHeader | None, Tag(1)] = None

    @property
    def revision(self) -> int:
        """The revision of the whole store when it answered."""
        return self.header.revision if self.header is not None else 0


@dataclass(frozen=True, slots=True)
class KeyValue(Message):
    """A key as it is stored.  `version` counts its writes since it was created; `lease` is 0 where it hangs on none."""

    key: Annotated[bytes, Tag(1)] = b""
    create_revision: Annotated[int, Tag(2)] = 0
    mod_revision: Annotated[int, Tag(3)] = 0
    version: Annotated[int, Tag(4)] = 0
    value: Annotated[bytes, Tag(5)] = b""
    lease: Annotated[int, Tag(6)] = 0


# Keys and values ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RangeRequest(Message):
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


@dataclass(frozen=True, slots=True)
class RangeResponse(Response):
    """The keys; `count` is how many there are without the limit."""

    kvs: Annotated[tuple[KeyValue, ...], Tag(2)] = ()
    more: Annotated[bool, Tag(3)] = False
    count: Annotated[int, Tag(4)] = 0


@dataclass(frozen=True, slots=True)
class PutRequest(Message):
    """Write one key."""

    key: Annotated[bytes, Tag(1)] = b""
    value: Annotated[bytes, Tag(2)] = b""
    lease: Annotated[int, Tag(3)] = 0
    prev_kv: Annotated[bool, Tag(4)] = False
    ignore_value: Annotated[bool, Tag(5)] = False
    ignore_lease: Annotated[bool, Tag(6)] = False


@dataclass(frozen=True, slots=True)
class PutResponse(Response):
    """What was there before, if that was asked."""

    prev_kv: Annotated[KeyValue | None, Tag(2)] = None


@dataclass(frozen=True, slots=True)
class DeleteRangeRequest(Message):
    """Delete keys from `key` up to but without `range_end`."""

    key: Annotated[bytes, Tag(1)] = b""
    range_end: Annotated[bytes, Tag(2)] = b""
    prev_kv: Annotated[bool, Tag(3)] = False


@dataclass(frozen=True, slots=True)
class DeleteRangeResponse(Response):
    """How many keys were deleted."""

    deleted: Annotated[int, Tag(2)] = 0
    prev_kvs: Annotated[tuple[KeyValue, ...], Tag(3)] = ()


@dataclass(frozen=True, slots=True)
class RequestOp(Message):
    """One operation of a transaction."""

    request_range: Annotated[RangeRequest | None, Tag(1, oneof="request")] = None
    request_put: Annotated[PutRequest | None, Tag(2, oneof="request")] = None
    request_delete_range: Annotated[DeleteRangeRequest | None, Tag(3, oneof="request")] = None


@dataclass(frozen=True, slots=True)
class ResponseOp(Message):
    """The answer to one operation of a transaction."""

    response_range: Annotated[RangeResponse | None, Tag(1, oneof="response")] = None
    response_put: Annotated[PutResponse | None, Tag(2, oneof="response")] = None
    response_delete_range: Annotated[DeleteRangeResponse | None, Tag(3, oneof="response")] = None


@dataclass(frozen=True, slots=True)
class Compare(Message):
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


@dataclass(frozen=True, slots=True)
class TxnRequest(Message):
    """All of `success` if every compare holds, all of `failure` otherwise."""

    compare: Annotated[tuple[Compare, ...], Tag(1)] = ()
    success: Annotated[tuple[RequestOp, ...], Tag(2)] = ()
    failure: Annotated[tuple[RequestOp, ...], Tag(3)] = ()


@dataclass(frozen=True, slots=True)
class TxnResponse(Response):
    """Which of the two it was, and the answers."""

    succeeded: Annotated[bool, Tag(2)] = False
    responses: Annotated[tuple[ResponseOp, ...], Tag(3)] = ()


@dataclass(frozen=True, slots=True)
class CompactionRequest(Message):
    """Forget the history before a revision."""

    revision: Annotated[int, Tag(1)] = 0
    physical: Annotated[bool, Tag(2)] = False


@dataclass(frozen=True, slots=True)
class CompactionResponse(Response):
    """Done."""


# Watches --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WatchCreateRequest(Message):
    """Tell me of changes from a revision on."""

    key: Annotated[bytes, Tag(1)] = b""
    range_end: Annotated[bytes, Tag(2)] = b""
    start_revision: Annotated[int, Tag(3)] = 0
    progress_notify: Annotated[bool, Tag(4)] = False
    filters: Annotated[tuple[int, ...], Tag(5, "int32")] = ()
    prev_kv: Annotated[bool, Tag(6)] = False
    watch_id: Annotated[int, Tag(7)] = 0
    fragment: Annotated[bool, Tag(8)] = False


@dataclass(frozen=True, slots=True)
class WatchCancelRequest(Message):
    """Tell me no more."""

    watch_id: Annotated[int, Tag(1)] = 0


@dataclass(frozen=True, slots=True)
class WatchProgressRequest(Message):
    """Say that you are there."""


@dataclass(frozen=True, slots=True)
class WatchRequest(Message):
    """What a client says on a stream of watches."""

    create_request: Annotated[WatchCreateRequest | None, Tag(1, oneof="request_union")] = None
    cancel_request: Annotated[WatchCancelRequest | None, Tag(2, oneof="request_union")] = None
    progress_request: Annotated[WatchProgressRequest | None, Tag(3, oneof="request_union")] = None


@dataclass(frozen=True, slots=True)
class Event(Message):
    """A change of one key."""

    type: Annotated[int, Tag(1, "int32")] = EventType.PUT
    kv: Annotated[KeyValue | None, Tag(2)] = None
    prev_kv: Annotated[KeyValue | None, Tag(3)] = None


@dataclass(frozen=True, slots=True)
class WatchResponse(Response):
    """What etcd says on a stream of watches.  It can be created and canceled at once: read `canceled` first."""

    watch_id: Annotated[int, Tag(2)] = 0
    created: Annotated[bool, Tag(3)] = False
    canceled: Annotated[bool, Tag(4)] = False
    compact_revision: Annotated[int, Tag(5)] = 0
    cancel_reason: Annotated[str, Tag(6)] = ""
    fragment: Annotated[bool, Tag(7)] = False
    events: Annotated[tuple[Event, ...], Tag(11)] = ()


# Leases ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeaseGrantRequest(Message):
    """A lease of so many seconds, under an id of the client's choice."""

    ttl: Annotated[int, Tag(1)] = 0
    id: Annotated[int, Tag(2)] = 0


@dataclass(frozen=True, slots=True)
class LeaseGrantResponse(Response):
    """The lease; etcd may grant more seconds than were asked for."""

    id: Annotated[int, Tag(2)] = 0
    ttl: Annotated[int, Tag(3)] = 0
    error: Annotated[str, Tag(4)] = ""


@dataclass(frozen=True, slots=True)
class LeaseRevokeRequest(Message):
    """End a lease and delete its keys."""

    id: Annotated[int, Tag(1)] = 0


@dataclass(frozen=True, slots=True)
class LeaseRevokeResponse(Response):
    """Done."""


@dataclass(frozen=True, slots=True)
class LeaseKeepAliveRequest(Message):
    """Renew a lease."""

    id: Annotated[int, Tag(1)] = 0


@dataclass(frozen=True, slots=True)
class LeaseKeepAliveResponse(Response):
    """How long it lives from now on; 0 if there is no such lease."""

    id: Annotated[int, Tag(2)] = 0
    ttl: Annotated[int, Tag(3)] = 0


@dataclass(frozen=True, slots=True)
class LeaseTimeToLiveRequest(Message):
    """Ask for a lease without renewing it."""

    id: Annotated[int, Tag(1)] = 0
    keys: Annotated[bool, Tag(2)] = False


@dataclass(frozen=True, slots=True)
class LeaseTimeToLiveResponse(Response):
    """What is left of it (-1: nothing, it is gone), and the keys that hang on it."""

    id: Annotated[int, Tag(2)] = 0
    ttl: Annotated[int, Tag(3)] = 0
    granted_ttl: Annotated[int, Tag(4)] = 0
    keys: Annotated[tuple[bytes, ...], Tag(5)] = ()


# The cluster ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Member(Message):
    """One member of the cluster; it has no name until it has started."""

    id: Annotated[int, Tag(1, "uint64")] = 0
    name: Annotated[str, Tag(2)] = ""
    peer_urls: Annotated[tuple[str, ...], Tag(3)] = ()
    client_urls: Annotated[tuple[str, ...], Tag(4)] = ()
    is_learner: Annotated[bool, Tag(5)] = False


@dataclass(frozen=True, slots=True)
class MemberListRequest(Message):
    """Who belongs to the cluster?  etcd before 3.5 answers from memory in any case."""

    linearizable: Annotated[bool, Tag(1)] = False


@dataclass(frozen=True, slots=True)
class MemberListResponse(Response):
    """The members."""

    members: Annotated[tuple[Member, ...], Tag(2)] = ()


@dataclass(frozen=True, slots=True)
class StatusRequest(Message):
    """How are you?  One member answers for itself."""


@dataclass(frozen=True, slots=True)
class StatusResponse(Response):
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


@dataclass(frozen=True, slots=True)
class AuthenticateRequest(Message):
    """Give me a token."""

    name: Annotated[str, Tag(1)] = ""
    password: Annotated[str, Tag(2)] = ""


@dataclass(frozen=True, slots=True)
class AuthenticateResponse(Response):
    """The token, to be sent along with each call."""

    token: Annotated[str, Tag(2)] = ""
