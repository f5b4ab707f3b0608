"""The messages of etcd's v3 protocol that the client uses, with the numbers that their fields have on the wire.

Names are etcd's own, but for `WatchEvent` and those that stand for several: `Response`, `LeaseRequest`, `LeaseResponse`.  A
field that is not listed here is skipped when it is read.
"""

from __future__ import annotations

from typing import Annotated

from rallypoint.etcd_client.codec import Message


class ResponseHeader(Message, frozen=True):
    """The revision of the whole store when it answered."""

    revision: Annotated[int, 3] = 0


class Response(Message, frozen=True):
    """What all answers have."""

    header: Annotated[ResponseHeader | None, 1] = None

    @property
    def revision(self) -> int:
        """The revision of the whole store when it answered."""
        return self.header.revision if self.header is not None else 0


class KeyValue(Message, frozen=True):
    """A key as it is stored.  `version` counts its writes since it was created; `lease` is 0 where it hangs on none."""

    key: Annotated[bytes, 1] = b""
    create_revision: Annotated[int, 2] = 0
    mod_revision: Annotated[int, 3] = 0
    version: Annotated[int, 4] = 0
    value: Annotated[bytes, 5] = b""
    lease: Annotated[int, 6] = 0


class RangeRequest(Message, frozen=True):
    """Read keys from `key` up to but without `range_end`."""

    key: Annotated[bytes, 1] = b""
    range_end: Annotated[bytes, 2] = b""
    limit: Annotated[int, 3] = 0
    revision: Annotated[int, 4] = 0
    keys_only: Annotated[bool, 8] = False
    count_only: Annotated[bool, 9] = False


class RangeResponse(Response, frozen=True):
    """The keys; `count` is how many there are without the limit."""

    kvs: Annotated[tuple[KeyValue, ...], 2] = ()
    more: Annotated[bool, 3] = False
    count: Annotated[int, 4] = 0


class PutRequest(Message, frozen=True):
    """Write one key."""

    key: Annotated[bytes, 1] = b""
    value: Annotated[bytes, 2] = b""
    lease: Annotated[int, 3] = 0


class DeleteRangeRequest(Message, frozen=True):
    """Delete keys from `key` up to but without `range_end`."""

    key: Annotated[bytes, 1] = b""
    range_end: Annotated[bytes, 2] = b""


class DeleteRangeResponse(Response, frozen=True):
    """How many keys were deleted."""

    deleted: Annotated[int, 2] = 0


class RequestOp(Message, frozen=True):
    """One operation of a transaction; one of these is set."""

    request_range: Annotated[RangeRequest | None, 1] = None
    request_put: Annotated[PutRequest | None, 2] = None
    request_delete_range: Annotated[DeleteRangeRequest | None, 3] = None


class ResponseOp(Message, frozen=True):
    """The answer to one operation of a transaction; one of these is set."""

    response_range: Annotated[RangeResponse | None, 1] = None
    response_put: Annotated[Response | None, 2] = None
    response_delete_range: Annotated[DeleteRangeResponse | None, 3] = None


class Compare(Message, frozen=True):
    """A condition of a transaction; one of `version` to `lease` is set."""

    result: Annotated[int, 1] = 0
    target: Annotated[int, 2] = 0
    key: Annotated[bytes, 3] = b""
    version: Annotated[int | None, 4] = None
    create_revision: Annotated[int | None, 5] = None
    mod_revision: Annotated[int | None, 6] = None
    value: Annotated[bytes | None, 7] = None
    lease: Annotated[int | None, 8] = None


class TxnRequest(Message, frozen=True):
    """All of `success` if every compare holds, all of `failure` otherwise."""

    compare: Annotated[tuple[Compare, ...], 1] = ()
    success: Annotated[tuple[RequestOp, ...], 2] = ()
    failure: Annotated[tuple[RequestOp, ...], 3] = ()


class TxnResponse(Response, frozen=True):
    """Which of the two it was, and the answers."""

    succeeded: Annotated[bool, 2] = False
    responses: Annotated[tuple[ResponseOp, ...], 3] = ()


class WatchCreateRequest(Message, frozen=True):
    """Report changes from a revision on; 0: from now on."""

    key: Annotated[bytes, 1] = b""
    range_end: Annotated[bytes, 2] = b""
    start_revision: Annotated[int, 3] = 0
    progress_notify: Annotated[bool, 4] = False


class WatchCancelRequest(Message, frozen=True):
    """Report no more."""

    watch_id: Annotated[int, 1] = 0


class WatchRequest(Message, frozen=True):
    """What a client sends on a stream of watches; one of these is set."""

    create_request: Annotated[WatchCreateRequest | None, 1] = None
    cancel_request: Annotated[WatchCancelRequest | None, 2] = None


class WatchEvent(Message, frozen=True):
    """A change of one key: 0 is a write, 1 a deletion."""

    type: Annotated[int, 1] = 0
    kv: Annotated[KeyValue | None, 2] = None


class WatchResponse(Response, frozen=True):
    """What etcd sends on a stream of watches.  It can be created and canceled at once: read `canceled` first."""

    watch_id: Annotated[int, 2] = 0
    created: Annotated[bool, 3] = False
    canceled: Annotated[bool, 4] = False
    compact_revision: Annotated[int, 5] = 0
    cancel_reason: Annotated[str, 6] = ""
    events: Annotated[tuple[WatchEvent, ...], 11] = ()


class LeaseGrantRequest(Message, frozen=True):
    """A lease of so many seconds, under an id of the client's choice."""

    ttl: Annotated[int, 1] = 0
    id: Annotated[int, 2] = 0


class LeaseRequest(Message, frozen=True):
    """Revoke a lease, renew it, or ask for it without renewing it."""

    id: Annotated[int, 1] = 0


class LeaseResponse(Response, frozen=True):
    """How long a lease lives from now on (0 or -1: it is gone); `granted_ttl` only if it was asked for."""

    id: Annotated[int, 2] = 0
    ttl: Annotated[int, 3] = 0
    granted_ttl: Annotated[int, 4] = 0


class AuthenticateRequest(Message, frozen=True):
    """Ask for a token."""

    name: Annotated[str, 1] = ""
    password: Annotated[str, 2] = ""


class AuthenticateResponse(Response, frozen=True):
    """The token, to be sent along with each call."""

    token: Annotated[str, 2] = ""
