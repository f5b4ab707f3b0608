"""What a failed call means and what to do about it, decided from the status and its text alone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from rallypoint.etcd_client.errors import (
    EtcdAuthError,
    EtcdCompactedError,
    EtcdError,
    EtcdLeaseLostError,
    EtcdNoSpaceError,
    EtcdRefusedError,
)


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
    error: type[EtcdError] = EtcdRefusedError


_NO_SPACE = (
    "etcd's database has reached its quota and takes no writes (alarm NOSPACE). Make room: `etcdctl compact` to a recent "
    "revision, `etcdctl defrag` on each member, then `etcdctl alarm disarm`; or start the members with a larger "
    "--quota-backend-bytes"
)
_NOT_ETCD = "something listens there that is not etcd (port 2379 is etcd's; 2380 is for its members only)"
_HUNG_UP = "hung up at once; perhaps it wants TLS (https://) or a client certificate"
_PASSWORD = "etcd refuses the user's name or password"

# What etcd says, by a part of its text.  The texts have been the same since 3.0.
_SAID: tuple[tuple[str, Failure], ...] = (
    ("invalid auth token", Failure(FailureAction.LOGIN, "the token is not valid any more", EtcdAuthError)),
    ("revision of auth store is old", Failure(FailureAction.LOGIN, "users or roles have changed", EtcdAuthError)),
    (
        "user name is empty",
        Failure(
            FailureAction.LOGIN, "etcd wants a user, and none was given: pass user=User(name, password)", EtcdAuthError
        ),
    ),
    ("authentication failed", Failure(FailureAction.FINAL, f"{_PASSWORD} (authentication failed)", EtcdAuthError)),
    ("user name not found", Failure(FailureAction.FINAL, f"{_PASSWORD} (no such user)", EtcdAuthError)),
    ("permission denied", Failure(FailureAction.FINAL, "the user has no permission for that key range", EtcdAuthError)),
    ("database space exceeded", Failure(FailureAction.FINAL, _NO_SPACE, EtcdNoSpaceError)),
    (
        "requested lease not found",
        Failure(FailureAction.FINAL, "there is no such lease (any more)", EtcdLeaseLostError),
    ),
    (
        "revision has been compacted",
        Failure(FailureAction.FINAL, "that revision has been compacted", EtcdCompactedError),
    ),
    (
        "no leader",
        Failure(FailureAction.ELSEWHERE, "the member knows of no leader: it is cut off, or an election is on"),
    ),
    ("too many requests", Failure(FailureAction.ELSEWHERE, "the member has too many requests to work on")),
    (
        "rpc not supported for learner",
        Failure(FailureAction.HOPELESS, "the member is a learner and serves no requests"),
    ),
    (
        "request is too large",
        Failure(FailureAction.FINAL, "the request is larger than etcd takes (1.5 MiB by default)"),
    ),
    (
        "too many operations",
        Failure(FailureAction.FINAL, "the transaction has more operations than etcd takes (128 by default)"),
    ),
)

# What grpcio says of a connection that did not come about.  In front of them all: nothing was sent.
_UNCONNECTED = ("failed to connect to all addresses", "errors resolving", "DNS resolution failed")
_CONNECTING: tuple[tuple[str, FailureAction, str], ...] = (
    ("CERTIFICATE_VERIFY_FAILED", FailureAction.HOPELESS, "its certificate was not issued by an authority in ca_file"),
    ("Hostname Verification", FailureAction.HOPELESS, "its certificate is for another name; see Tls(server_name=…)"),
    (
        "BAD_CERTIFICATE",
        FailureAction.HOPELESS,
        "it wants a client certificate that it trusts: Tls(cert_file=…, key_file=…)",
    ),
    ("CERTIFICATE_REQUIRED", FailureAction.HOPELESS, "it wants a client certificate: Tls(cert_file=…, key_file=…)"),
    ("UNKNOWN_CA", FailureAction.HOPELESS, "it does not trust the authority of the client certificate"),
    ("create security handshaker", FailureAction.HOPELESS, "the certificates given are not usable"),
    ("Tls handshake failed", FailureAction.HOPELESS, "no agreement on TLS"),
    (
        "Unwrap failed",
        FailureAction.HOPELESS,
        "hung up after the TLS handshake; most likely it wants a client certificate",
    ),
    (
        "Handshake read failed",
        FailureAction.ELSEWHERE,
        "hung up during the TLS handshake; perhaps it does not speak TLS",
    ),
    ("Expected SETTINGS frame", FailureAction.HOPELESS, _NOT_ETCD),
    ("Connection refused", FailureAction.ELSEWHERE, "nothing listens there (connection refused)"),
    ("No route to host", FailureAction.ELSEWHERE, "no route to that host"),
    ("Network is unreachable", FailureAction.ELSEWHERE, "that network is unreachable"),
    ("Socket closed", FailureAction.ELSEWHERE, _HUNG_UP),
    ("Connection reset", FailureAction.ELSEWHERE, _HUNG_UP),
    ("timed out", FailureAction.ELSEWHERE, "no answer in time"),
    ("lookup", FailureAction.ELSEWHERE, "the name is not known (DNS)"),
    ("resol", FailureAction.ELSEWHERE, "the name is not known (DNS)"),
)
_ADDRESS = re.compile(r".*ipv[46]:\S+: ")

# What a load balancer says that finds no member behind it at present.  That passes.
_GATEWAY = re.compile(r"(?:HTTP status|header with status:) (50[234])\b")


def classify(code: str, details: str) -> Failure:
    """What a status such as `UNAVAILABLE` with its text means."""
    details = details or "no details"
    for part in _UNCONNECTED:
        if part in details:
            return _unconnected(details)
    for part, judgement in _SAID:
        if part in details:
            return judgement
    gateway = _gateway(details)
    if gateway is not None:
        return Failure(FailureAction.MAYBE, gateway)  # perhaps it lost the answer only
    if code == "UNIMPLEMENTED" or "http2 header with status" in details:
        return Failure(FailureAction.HOPELESS, f"{_NOT_ETCD}, or an etcd before v3 ({details})")
    if code == "DEADLINE_EXCEEDED":
        return Failure(FailureAction.MAYBE, "no answer in time")
    if code in ("UNAVAILABLE", "CANCELLED", "UNKNOWN", "INTERNAL", "ABORTED", "DATA_LOSS"):
        return Failure(FailureAction.MAYBE, _plain(details))
    if code == "RESOURCE_EXHAUSTED":
        return Failure(FailureAction.FINAL, f"too much at once: {_plain(details)}")
    if code in ("UNAUTHENTICATED", "PERMISSION_DENIED"):
        return Failure(FailureAction.FINAL, _plain(details), EtcdAuthError)
    return Failure(FailureAction.FINAL, _plain(details))


def _gateway(details: str) -> str | None:
    found = _GATEWAY.search(details)
    return found and f"a load balancer or gateway there reaches no etcd at present (HTTP status {found[1]})"


def _unconnected(details: str) -> Failure:
    gateway = _gateway(details)
    if gateway is not None:
        return Failure(FailureAction.ELSEWHERE, gateway)
    for part, verdict, words in _CONNECTING:
        if part in details:
            return Failure(verdict, words)
    return Failure(FailureAction.ELSEWHERE, _plain(details))


def _plain(details: str) -> str:
    """etcd's or grpcio's own words without what only repeats the endpoint."""
    return _ADDRESS.sub("", details.removeprefix("etcdserver: "))
