"""Where etcd is and how one gets in: endpoints, certificates, a user; and whose turn it is.  No IO but reading files."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rallypoint.etcd_client.errors import EtcdMissingError, EtcdRefusedError

DEFAULT_PORT = 2379

_SCHEME = re.compile(r"^([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_PLACE = re.compile(r"^(?P<host>\[[^\[\]]+\]|[^\[\]:/@?#\s]+)(?::(?P<port>\d{1,5}))?$")


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
            raise EtcdRefusedError("a client certificate and its key go together: give both cert_file and key_file")

    def read(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """The contents: authority, key, certificate."""
        return _read(self.ca_file, "ca_file"), _read(self.key_file, "key_file"), _read(self.cert_file, "cert_file")


def _read(path: str | None, what: str) -> bytes | None:
    if path is None:
        return None
    try:
        content = Path(path).read_bytes()
    except OSError as problem:
        raise EtcdMissingError(f"{what} {path!r} cannot be read: {problem.strerror}") from problem
    if b"-----BEGIN " not in content:
        raise EtcdMissingError(f"{what} {path!r} holds nothing in PEM format (no line with -----BEGIN)")
    return content


@dataclass(frozen=True)
class User:
    """Who asks; the password is not shown."""

    name: str
    password: str = field(repr=False)


def parse_endpoints(endpoints: str | Iterable[str]) -> tuple[tuple[str, ...], bool | None]:
    """`a:2379,b:2379`, `etcd://a,b` or `https://a:2379` as host:port each, and whether they said TLS (None: nothing)."""
    listed = endpoints.split(",") if isinstance(endpoints, str) else list(endpoints)
    places: list[str] = []
    secure: set[bool] = set()
    for entry in listed:
        text = entry.strip()
        scheme = _SCHEME.match(text)
        if scheme:
            name = scheme[1].lower()
            if name not in ("etcd", "http", "https"):
                raise EtcdRefusedError(
                    f"endpoint {entry!r}: {name}:// is unknown; write host:port, http:// or https://"
                )
            if name != "etcd":
                secure.add(name == "https")
            text = text[scheme.end() :].rstrip("/")
        place = _PLACE.match(text)
        if place is None or int(place["port"] or DEFAULT_PORT) > 0xFFFF:
            raise EtcdRefusedError(
                f"endpoint {entry!r} is no host:port; write for example 10.0.0.5:2379, etcd-0.local:2379 or [::1]:2379, "
                f"several of them with commas in between"
            )
        address = f"{place['host']}:{place['port'] or DEFAULT_PORT}"
        if address not in places:
            places.append(address)
    if len(secure) > 1:
        raise EtcdRefusedError(f"{endpoints!r} mixes http:// and https://; use one for all members")
    return tuple(places), (secure.pop() if secure else None)


class Rotation:
    """Whose turn it is.  Everybody stays with one endpoint while it answers; who fails goes to the end of the line."""

    def __init__(self, endpoints: Sequence[str], first: int = 0) -> None:
        self.line = [*endpoints[first:], *endpoints[:first]]

    @property
    def current(self) -> str:
        """The endpoint to ask."""
        return self.line[0]

    def failed(self, endpoint: str) -> None:
        """Ask the others first from now on."""
        # Replaced as a whole, for threads that look at the line meanwhile.
        self.line = [*(other for other in self.line if other != endpoint), endpoint]

    def after(self, failed: Container[str]) -> str:
        """The first in line that is not among those who have failed; when all have, the first."""
        line = self.line
        for endpoint in line:
            if endpoint not in failed:
                return endpoint
        return line[0]


class Tries:
    """One request that met with trouble: who was asked, and for the sentence in the error what each endpoint last said."""

    def __init__(self, endpoints: Sequence[str]) -> None:
        self.asked: set[str] = set()  # in this round
        self.rounds = 0
        self.logins = 0
        self.ambiguous = False  # it was sent, and its answer was lost
        self._endpoints = endpoints
        self._answers: dict[str, str] = {}
        self._hopeless: set[str] = set()

    def all_asked(self, endpoint: str) -> bool:
        """This one was asked, too; whether with it all have been, and a new round begins."""
        self.asked.add(endpoint)
        if len(self.asked) < len(self._endpoints):
            return False
        self.asked.clear()
        self.rounds += 1
        return True

    def note(self, endpoint: str, answer: str, *, hopeless: bool = False) -> None:
        """Remember an answer; a hopeless one will be the same next time."""
        self._answers[endpoint] = answer
        (self._hopeless.add if hopeless else self._hopeless.discard)(endpoint)

    @property
    def all_hopeless(self) -> bool:
        """Whether there is no use in asking again."""
        return len(self._hopeless) == len(self._endpoints)

    def __str__(self) -> str:
        return "; ".join(f"{endpoint}: {self._answers.get(endpoint, 'not asked')}" for endpoint in self._endpoints)
