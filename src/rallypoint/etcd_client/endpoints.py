"""Where etcd is and how a client gets in: endpoints, certificates, a user; and which endpoint is asked next.  No network."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rallypoint.etcd_client.errors import EtcdMissingError, EtcdRefusedError
from rallypoint.net import parse_endpoint, written

DEFAULT_PORT = 2379

_SCHEME = re.compile(r"^([a-z][a-z0-9+.-]*)://", re.IGNORECASE)


@dataclass(frozen=True)
class Tls:
    """Files in PEM format.  Without `ca_file` the system's authorities are trusted; `cert_file` and `key_file` go together.

    `server_name` is what the servers' certificates are issued for, where that is not the name in the endpoint.
    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.cert_file is None) != (self.key_file is None):
            raise EtcdRefusedError("a client certificate and its key go together: give both")

    def read(self) -> list[bytes | None]:
        """The contents: authority, key, certificate."""
        return [_pem("CA file", self.ca_file), _pem("key", self.key_file), _pem("certificate", self.cert_file)]


def _pem(what: str, path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        content = Path(path).read_bytes()
    except OSError as problem:
        raise EtcdMissingError(f"The {what} {path!r} cannot be read: {problem.strerror}.") from problem
    if b"-----BEGIN " not in content:
        raise EtcdMissingError(f"The {what} {path!r} holds nothing in PEM format (no line with -----BEGIN).")
    return content


@dataclass(frozen=True)
class User:
    """The user that etcd is asked as; the password is not shown."""

    name: str
    password: str = field(repr=False)


def parse_endpoints(endpoints: str | Iterable[str]) -> tuple[tuple[str, ...], bool | None]:
    """The endpoints of `a:2379,b:2379`, `etcd://a,b` or `https://a:2379` as host:port, and whether TLS (None: not said)."""
    places: dict[str, None] = {}
    schemes: set[str] = set()
    for entry in endpoints.split(",") if isinstance(endpoints, str) else endpoints:
        text = entry.strip()
        if found := _SCHEME.match(text):
            scheme, text = found[1].lower(), text[found.end() :].rstrip("/")
            if scheme not in ("etcd", "http", "https"):
                raise EtcdRefusedError(
                    f"endpoint {entry!r}: {scheme}:// is unknown; write host:port, http:// or https://"
                )
            schemes.add(scheme)
        try:
            if not text:
                raise ValueError("it is empty")
            places[written(*parse_endpoint(text, DEFAULT_PORT))] = None
        except ValueError as exc:
            raise EtcdRefusedError(
                f"endpoint {entry!r} is no host:port; write for example 10.0.0.5:2379, etcd-0.local:2379 or [::1]:2379, "
                f"several of them with commas in between"
            ) from exc
    if {"http", "https"} <= schemes:
        raise EtcdRefusedError(f"{endpoints!r} mixes http:// and https://; use one for all members")
    return tuple(places), ("https" in schemes) if schemes - {"etcd"} else None


class Attempts:
    """The attempts at one request: which endpoints were asked, and what each last answered, for the error's message."""

    def __init__(self, endpoints: Sequence[str]) -> None:
        self._asked: set[str] = set()  # in this round
        self.rounds = 0
        self.logins = 0
        self.ambiguous = False  # it was sent, and its answer was lost
        self._answers: dict[str, str] = dict.fromkeys(endpoints, "not asked")
        self._hopeless: set[str] = set()

    def next_of(self, order: Sequence[str]) -> str:
        """The first that was not asked yet in this round."""
        return next((endpoint for endpoint in order if endpoint not in self._asked), order[0])

    def ends_round(self, endpoint: str) -> bool:
        """Count this endpoint as asked; True if all have been, and a new round begins."""
        self._asked.add(endpoint)
        if len(self._asked) < len(self._answers):
            return False
        self._asked.clear()
        self.rounds += 1
        return True

    def note(self, endpoint: str, answer: str, *, hopeless: bool = False) -> None:
        """Remember an answer; a hopeless one will be the same next time."""
        self._answers[endpoint] = answer
        (self._hopeless.add if hopeless else self._hopeless.discard)(endpoint)

    @property
    def all_hopeless(self) -> bool:
        """No endpoint will answer otherwise if it is asked again."""
        return len(self._hopeless) == len(self._answers)

    def __str__(self) -> str:
        return "; ".join(f"{endpoint}: {answer}" for endpoint, answer in self._answers.items())
