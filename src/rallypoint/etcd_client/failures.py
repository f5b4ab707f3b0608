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
class Failure:
    """A verdict, the answer in words, and the error where it is final."""

    verdict: FailureAction
    words: str
    error: type[errors.EtcdError] = errors.EtcdRefusedError


_ELSEWHERE, _HOPELESS, _MAYBE, _LOGIN, _FINAL = FailureAction
_NO_SPACE = (
    "etcd's database has reached its quota and takes no writes (alarm NOSPACE). Make room: `etcdctl compact` to a recent "
    "revision, `etcdctl defrag` on each member, then `etcdctl alarm disarm`; or start the members with a larger "
    "--quota-backend-bytes"
)
_NO_USER = "etcd wants a user, and none was given: pass user=User(name, password)"
_PASSWORD = "etcd refuses the user's name or password"
_NOT_ETCD = "something listens there that is not etcd (port 2379 is etcd's; 2380 is for its members only)"
_HUNG_UP = "hung up at once; perhaps it wants TLS (https://) or a client certificate"
_CERTIFICATE = "it wants a client certificate that it trusts: Tls(cert_file=…, key_file=…)"
_TLS_CLOSED = "hung up after the TLS handshake; most likely it wants a client certificate"
_NO_TLS = "hung up during the TLS handshake; perhaps it does not speak TLS"

# What etcd says, by a part of its text.  The texts have been the same since 3.0.
_SAID = {
    "invalid auth token": Failure(_LOGIN, "the token is not valid any more", errors.EtcdAuthError),
    "revision of auth store is old": Failure(_LOGIN, "users or roles have changed", errors.EtcdAuthError),
    "user name is empty": Failure(_LOGIN, _NO_USER, errors.EtcdAuthError),
    "authentication failed": Failure(_FINAL, f"{_PASSWORD} (authentication failed)", errors.EtcdAuthError),
    "user name not found": Failure(_FINAL, f"{_PASSWORD} (no such user)", errors.EtcdAuthError),
    "permission denied": Failure(_FINAL, "the user has no permission for that key range", errors.EtcdAuthError),
    "database space exceeded": Failure(_FINAL, _NO_SPACE, errors.EtcdNoSpaceError),
    "requested lease not found": Failure(_FINAL, "there is no such lease (any more)", errors.EtcdLeaseLostError),
    "revision has been compacted": Failure(_FINAL, "that revision has been compacted", errors.EtcdCompactedError),
    "no leader": Failure(_ELSEWHERE, "the member knows of no leader: it is cut off, or an election is on"),
    "too many requests": Failure(_ELSEWHERE, "the member has too many requests to work on"),
    "rpc not supported for learner": Failure(_HOPELESS, "the member is a learner and serves no requests"),
    "request is too large": Failure(_FINAL, "the request is larger than etcd takes (1.5 MiB by default)"),
    "too many operations": Failure(_FINAL, "the transaction has more operations than etcd takes (128 by default)"),
}

# What grpcio says of a connection that did not come about.  In front of them all: nothing was sent.
_UNCONNECTED = ("failed to connect to all addresses", "errors resolving", "DNS resolution failed")
_CONNECTING = {
    "CERTIFICATE_VERIFY_FAILED": Failure(_HOPELESS, "its certificate was not issued by an authority in ca_file"),
    "Hostname Verification": Failure(_HOPELESS, "its certificate is for another name; see Tls(server_name=…)"),
    "BAD_CERTIFICATE": Failure(_HOPELESS, _CERTIFICATE),
    "CERTIFICATE_REQUIRED": Failure(_HOPELESS, "it wants a client certificate: Tls(cert_file=…, key_file=…)"),
    "UNKNOWN_CA": Failure(_HOPELESS, "it does not trust the authority of the client certificate"),
    "create security handshaker": Failure(_HOPELESS, "the certificates given are not usable"),
    "Tls handshake failed": Failure(_HOPELESS, "no agreement on TLS"),
    "Unwrap failed": Failure(_HOPELESS, _TLS_CLOSED),
    "Handshake read failed": Failure(_ELSEWHERE, _NO_TLS),
    "Expected SETTINGS frame": Failure(_HOPELESS, _NOT_ETCD),
    "Connection refused": Failure(_ELSEWHERE, "nothing listens there (connection refused)"),
    "No route to host": Failure(_ELSEWHERE, "no route to that host"),
    "Network is unreachable": Failure(_ELSEWHERE, "that network is unreachable"),
    "Socket closed": Failure(_ELSEWHERE, _HUNG_UP),
    "Connection reset": Failure(_ELSEWHERE, _HUNG_UP),
    "timed out": Failure(_ELSEWHERE, "no answer in time"),
    "lookup": Failure(_ELSEWHERE, "the name is not known (DNS)"),
    "resol": Failure(_ELSEWHERE, "the name is not known (DNS)"),
}
_ADDRESS = re.compile(r".*ipv[46]:\S+: ")

# What a load balancer says that finds no member behind it at present.  That passes.
_GATEWAY = re.compile(r"(?:HTTP status|header with status:) (50[234])\b")


def classify(code: str, details: str) -> Failure:
    """What a status such as `UNAVAILABLE` with its text means."""
    details = details or "no details"
    is_unsent = any(part in details for part in _UNCONNECTED)
    if gateway := _GATEWAY.search(details):
        words = f"a load balancer or gateway there reaches no etcd at present (HTTP status {gateway[1]})"
        return Failure(_ELSEWHERE if is_unsent else _MAYBE, words)  # perhaps it lost the answer only
    for part, failure in (_CONNECTING if is_unsent else _SAID).items():
        if part in details:
            return failure
    # etcd's or grpcio's own words without what only repeats the endpoint.
    plain = _ADDRESS.sub("", details.removeprefix("etcdserver: "))
    if is_unsent:
        return Failure(_ELSEWHERE, plain)
    if code == "UNIMPLEMENTED" or "http2 header with status" in details:
        return Failure(_HOPELESS, f"{_NOT_ETCD}, or an etcd before v3 ({details})")
    if code == "DEADLINE_EXCEEDED":
        return Failure(_MAYBE, "no answer in time")
    if code in ("UNAVAILABLE", "CANCELLED", "UNKNOWN", "INTERNAL", "ABORTED", "DATA_LOSS"):
        return Failure(_MAYBE, plain)
    if code == "RESOURCE_EXHAUSTED":
        return Failure(_FINAL, f"too much at once: {plain}")
    is_auth = code in ("UNAUTHENTICATED", "PERMISSION_DENIED")
    return Failure(_FINAL, plain, errors.EtcdAuthError if is_auth else errors.EtcdRefusedError)
