"""How the backend `etcd-v3` and the commands get their client of etcd: endpoints, users and certificates from options."""

from __future__ import annotations

import re
from pathlib import Path

from rallypoint.backends.options import Option, OptionValues, text
from rallypoint.etcd_client import EtcdClient, EtcdMissingError, EtcdRefusedError, Tls, User

DEFAULT_ENDPOINT = "localhost:2379"

PREFIX = text("etcd_prefix", "/rallypoint", "where in etcd the keys of all runs lie; the same on all nodes of a run")
USERNAME = text("username", None, "the name of etcd's user, where it has users")
PASSWORD_FILE = text("password_file", None, "the file with that user's password")
CACERT = text("cacert", None, "the file with the certificates that etcd's own are signed by; implies TLS")
CERT = text("cert", None, "the file with this client's certificate, where etcd wants one; implies TLS")
KEY = text("key", None, "the file with the key of that certificate")
OPTIONS = (PREFIX, USERNAME, PASSWORD_FILE, CACERT, CERT, KEY)

_WITH_TLS = re.compile(r"\betcds://", re.IGNORECASE)


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
        raise ValueError(str(exc)) from exc
    except EtcdRefusedError as exc:
        raise ValueError(f"etcd cannot be reached as it was asked for: {exc}") from exc


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
