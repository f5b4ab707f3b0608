"""How the backend `etcd-v3` and the commands get their client of etcd: endpoints, users and certificates from options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rallypoint.backends.options import Option, OptionValues, text
from rallypoint.errors import RendezvousConnectionError, RendezvousTimeoutError
from rallypoint.etcd_client import EtcdClient, EtcdError, EtcdMissingError, EtcdRefusedError, Tls, User

DEFAULT_ENDPOINT = "localhost:2379"

PREFIX = text("etcd_prefix", "/rallypoint", "where in etcd the keys of all runs lie; the same on all nodes of a run")
USERNAME = text("username", None, "the name of etcd's user, where it has users")
PASSWORD_FILE = text("password_file", None, "the file with that user's password")
CACERT = text("cacert", None, "the file with the certificates that etcd's own are signed by; implies TLS")
CERT = text("cert", None, "the file with this client's certificate, where etcd wants one; implies TLS")
KEY = text("key", None, "the file with the key of that certificate")
OPTIONS = (PREFIX, USERNAME, PASSWORD_FILE, CACERT, CERT, KEY)

_WITH_TLS = re.compile(r"\betcds://", re.IGNORECASE)

# The client's words for what the options have other names for.
_IN_OPTIONS = (
    ("pass user=User(name, password)", "give the options username and password_file"),
    ("see Tls(server_name=…)", "name in the endpoint what the certificate was issued for"),
    ("Tls(cert_file=…, key_file=…)", "give the options cert and key"),
    ("ca_file", "cacert"),
    ("cert_file", "cert"),
    ("key_file", "key"),
)


def open_client(endpoint: str | None, options: OptionValues, *, timeout_s: float) -> EtcdClient:
    """A client of the cluster; it does not connect yet.  ValueError for what cannot be read, or without grpcio."""
    places = (endpoint or "").strip() or DEFAULT_ENDPOINT
    if "@" in places:
        # It is not repeated here: there may be a password in it.
        raise ValueError(
            "The endpoint has something before an @, but names and passwords do not belong there: give the options "
            "username and password_file."
        )
    try:
        members = _WITH_TLS.sub("https://", places)
        return EtcdClient(members, tls=_tls(options), user=_user(options), timeout_s=timeout_s)
    except EtcdMissingError as exc:
        raise ValueError(in_options(str(exc))) from exc
    except EtcdRefusedError as exc:
        raise ValueError(f"etcd cannot be reached as it was asked for: {in_options(str(exc))}") from exc


def in_options(words: str) -> str:
    """A sentence of the client's in the names that the options have."""
    for theirs, ours in _IN_OPTIONS:
        words = words.replace(theirs, ours)
    return words


@contextmanager
def in_option_names() -> Iterator[None]:
    """What goes wrong with etcd becomes an error of the rendezvous, in the names that the options have."""
    try:
        yield
    except EtcdError as exc:
        raise RendezvousConnectionError(in_options(str(exc))) from exc
    except (RendezvousConnectionError, RendezvousTimeoutError) as exc:
        raise type(exc)(in_options(str(exc))) from exc.__cause__


def _tls(options: OptionValues) -> Tls | None:
    ca, cert, key = options[CACERT], options[CERT], options[KEY]
    _refuse_half(options, CERT, KEY, "a certificate and its key go together")
    return Tls(ca, cert, key) if ca or cert else None


def _user(options: OptionValues) -> User | None:
    name, path = options[USERNAME], options[PASSWORD_FILE]
    _refuse_half(options, USERNAME, PASSWORD_FILE, "etcd wants both, or neither")
    if name is None or path is None:
        return None
    try:
        password = Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "it is no text in UTF-8"
        raise ValueError(f"The password_file {path!r} cannot be read: {why}.") from exc
    if not password:
        raise ValueError(
            f"The password_file {path!r} is empty: it should hold the password of {name!r} and nothing else."
        )
    return User(name, password)


def _refuse_half(options: OptionValues, one: Option[str | None], other: Option[str | None], why: str) -> None:
    """Refuse one of two options that go together."""
    if (options[one] is None) != (options[other] is None):
        given, missing = (one, other) if options[other] is None else (other, one)
        raise ValueError(f"The option {given.name!r} is given and {missing.name!r} is not: {why}.")
