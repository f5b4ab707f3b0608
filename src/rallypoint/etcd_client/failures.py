"""What a failed call means and what to do about it, decided from the status and its text alone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from rallypoint.etcd_client import errors


class FailureAction(Enum):
    """What to do after a call failed."""

    ELSEWHERE = "nothing was done there: ask another endpoint"
    HOPELESS = "that endpoint will always answer so: ask another one, and give up when all do"
    MAYBE = "it may have been done: only a read, or a guarded write, may be repeated"
    LOGIN = "the token is stale: get another and repeat"
    FINAL = "etcd understood and refused"


@dataclass(frozen=True)
class Diagnosis:
    """What to do, the answer in words, and the error where it is final."""

    action: FailureAction
    words: str
    error: type[errors.EtcdError] = errors.EtcdRefusedError


_ELSEWHERE, _HOPELESS, _MAYBE, _LOGIN, _FINAL = FailureAction
_NO_SPACE = (
    "etcd's database has reached its quota and takes no writes (alarm NOSPACE). Make room: `etcdctl compact` to a recent "
    "revision, `etcdctl defrag` on each member, then `etcdctl alarm disarm`; or start the members with a larger "
    "--quota-backend-bytes"
)
_NO_USER = "etcd wants a user, and none was given: give the name and the password of one"
_PASSWORD = "etcd refuses the user's name or password"
_NOT_ETCD = "something listens there that is not etcd (port 2379 is etcd's; 2380 is for its members only)"
_HUNG_UP = "hung up at once; perhaps it wants TLS (https://) or a client certificate"
_CERTIFICATE = "it wants a client certificate that it trusts: give one, with its key"
_TLS_CLOSED = "hung up after the TLS handshake; most likely it wants a client certificate"
_NO_TLS = "hung up during the TLS handshake; perhaps it does not speak TLS"

# What etcd says, by a part of its text.  The texts have been the same since 3.0.
_SAID = {
    "invalid auth token": Diagnosis(_LOGIN, "the token is not valid any more", errors.EtcdAuthError),
    "revision of auth store is old": Diagnosis(_LOGIN, "users or roles have changed", errors.EtcdAuthError),
    "user name is empty": Diagnosis(_LOGIN, _NO_USER, errors.EtcdAuthError),
    "authentication failed": Diagnosis(_FINAL, f"{_PASSWORD} (authentication failed)", errors.EtcdAuthError),
    "user name not found": Diagnosis(_FINAL, f"{_PASSWORD} (no such user)", errors.EtcdAuthError),
    "permission denied": Diagnosis(_FINAL, "the user has no permission for that key range", errors.EtcdAuthError),
    "database space exceeded": Diagnosis(_FINAL, _NO_SPACE, errors.EtcdNoSpaceError),
    "requested lease not found": Diagnosis(_FINAL, "there is no such lease (any more)", errors.EtcdLeaseLostError),
    "revision has been compacted": Diagnosis(_FINAL, "that revision has been compacted", errors.EtcdCompactedError),
    "no leader": Diagnosis(_ELSEWHERE, "the member knows of no leader: it is cut off, or an election is on"),
    "too many requests": Diagnosis(_ELSEWHERE, "the member has too many requests to work on"),
    "rpc not supported for learner": Diagnosis(_HOPELESS, "the member is a learner and serves no requests"),
    "request is too large": Diagnosis(_FINAL, "the request is larger than etcd takes (1.5 MiB by default)"),
    "too many operations": Diagnosis(_FINAL, "the transaction has more operations than etcd takes (128 by default)"),
}

# What grpcio says of a connection that did not come about.  In front of them all: nothing was sent.
_UNCONNECTED = ("failed to connect to all addresses", "errors resolving", "DNS resolution failed")
_CONNECTING = {
    "CERTIFICATE_VERIFY_FAILED": Diagnosis(_HOPELESS, "its certificate was not issued by an authority in the CA file"),
    "Hostname Verification": Diagnosis(
        _HOPELESS, "its certificate is for another name: name in the endpoint what it was issued for"
    ),
    "BAD_CERTIFICATE": Diagnosis(_HOPELESS, _CERTIFICATE),
    "CERTIFICATE_REQUIRED": Diagnosis(_HOPELESS, "it wants a client certificate: give one, with its key"),
    "UNKNOWN_CA": Diagnosis(_HOPELESS, "it does not trust the authority of the client certificate"),
    "create security handshaker": Diagnosis(_HOPELESS, "the certificates given are not usable"),
    "Tls handshake failed": Diagnosis(_HOPELESS, "no agreement on TLS"),
    "Unwrap failed": Diagnosis(_HOPELESS, _TLS_CLOSED),
    "Handshake read failed": Diagnosis(_ELSEWHERE, _NO_TLS),
    "Expected SETTINGS frame": Diagnosis(_HOPELESS, _NOT_ETCD),
    "Connection refused": Diagnosis(_ELSEWHERE, "nothing listens there (connection refused)"),
    "No route to host": Diagnosis(_ELSEWHERE, "no route to that host"),
    "Network is unreachable": Diagnosis(_ELSEWHERE, "that network is unreachable"),
    "Socket closed": Diagnosis(_ELSEWHERE, _HUNG_UP),
    "Connection reset": Diagnosis(_ELSEWHERE, _HUNG_UP),
    "timed out": Diagnosis(_ELSEWHERE, "no answer in time"),
    "lookup": Diagnosis(_ELSEWHERE, "the name is not known (DNS)"),
    "resol": Diagnosis(_ELSEWHERE, "the name is not known (DNS)"),
}
_ADDRESS = re.compile(r".*ipv[46]:\S+: ")

# What a load balancer says that finds no member behind it at present.  That passes.
_GATEWAY = re.compile(r"(?:HTTP status|header with status:) (50[234])\b")


def classify(code: str, details: str) -> Diagnosis:
    """What a status such as `UNAVAILABLE` with its text means."""
    details = details or "no details"
    is_unsent = any(part in details for part in _UNCONNECTED)
    if gateway := _GATEWAY.search(details):
        words = f"a load balancer or gateway there reaches no etcd at present (HTTP status {gateway[1]})"
        return Diagnosis(_ELSEWHERE if is_unsent else _MAYBE, words)  # perhaps it lost the answer only
    for part, failure in (_CONNECTING if is_unsent else _SAID).items():
        if part in details:
            return failure
    # etcd's or grpcio's own words without what only repeats the endpoint.
    plain = _ADDRESS.sub("", details.removeprefix("etcdserver: "))
    if is_unsent:
        return Diagnosis(_ELSEWHERE, plain)
    if code == "UNIMPLEMENTED" or "http2 header with status" in details:
        return Diagnosis(_HOPELESS, f"{_NOT_ETCD}, or an etcd before v3 ({details})")
    if code == "DEADLINE_EXCEEDED":
        return Diagnosis(_MAYBE, "no answer in time")
    if code in ("UNAVAILABLE", "CANCELLED", "UNKNOWN", "INTERNAL", "ABORTED", "DATA_LOSS"):
        return Diagnosis(_MAYBE, plain)
    if code == "RESOURCE_EXHAUSTED":
        return Diagnosis(_FINAL, f"too much at once: {plain}")
    is_auth = code in ("UNAUTHENTICATED", "PERMISSION_DENIED")
    return Diagnosis(_FINAL, plain, errors.EtcdAuthError if is_auth else errors.EtcdRefusedError)
