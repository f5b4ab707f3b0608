"""How the two backends on etcd's API v2 get their client of python-etcd, which is imported here and nowhere else."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Any

from rallypoint.backends.options import OptionValues, choice, text
from rallypoint.errors import RendezvousConnectionError
from rallypoint.net import written
from rallypoint.stores.errors import StoreError
from rallypoint.stores.etcd_v2.keys import EtcdAwayError, Keys
from rallypoint.waiting import Deadline

DEFAULT_PORT = 2379
PROTOCOL = choice("protocol", ("http", "https"), "http", "how etcd is reached")

_REACH_S = 3.0
"""How long an etcd that does not answer is waited for when a backend is created."""


def certificates(cert: str, key: str, ca: str) -> tuple[Any, Any, Any]:
    """The options for files of certificates, under the names that a backend has for them."""
    return (
        text(cert, None, "the file with this client's certificate, with https", or_empty=True),
        text(key, None, "the file with the key of that certificate", or_empty=True),
        text(ca, None, "the file with the certificates that etcd's own is signed by", or_empty=True),
    )


SSL_CERT, SSL_CERT_KEY, CA_CERT = certificates("ssl_cert", "ssl_cert_key", "ca_cert")
CONNECTION = (PROTOCOL, SSL_CERT, SSL_CERT_KEY, CA_CERT)
"""How the backend `etcd-v2` reaches etcd."""


def client_with(options: OptionValues, members: Sequence[tuple[str, int]], timeout_s: float) -> Any:
    """A client as the options in `CONNECTION` ask for it."""
    protocol, cert, key, ca = (options[option] for option in CONNECTION)
    return make_client(members, protocol=protocol, read_timeout_s=timeout_s, cert=cert, key=key, ca=ca)


def make_client(
    members: Sequence[tuple[str, int]],
    *,
    protocol: str = "http",
    read_timeout_s: float = 60,
    cert: str | None = None,
    key: str | None = None,
    ca: str | None = None,
) -> Any:
    """A client of the first of the members; it does not connect yet.  ValueError without python-etcd."""
    host, port = members[0]
    client = python_etcd().Client(
        host=f"[{host}]" if ":" in host else host,
        port=port,
        protocol=protocol,
        read_timeout=read_timeout_s,
        cert=(cert, key) if cert and key else cert,
        ca_cert=ca,
        allow_reconnect=False,
    )
    Keys.of(client).also(f"{protocol}://{written(*member)}" for member in members[1:])
    return client


def python_etcd() -> Any:
    """The package python-etcd, for its client, its results and its errors; ValueError without it."""
    try:
        import etcd
    except ImportError as exc:
        raise ValueError(
            f"etcd's API v2 needs the package python-etcd, which cannot be imported ({exc}): install "
            f"rallypoint[etcd-v2], or use the backend 'etcd-v3', which needs rallypoint[etcd]"
        ) from exc
    return etcd


def connect(client: Any, read_timeout_s: float, what: str) -> Keys:
    """See that etcd answers; RendezvousConnectionError says what was found instead."""
    keys = Keys.of(client)
    try:
        keys.read("/", Deadline.after(min(_REACH_S, read_timeout_s)))
    except EtcdAwayError as exc:
        advice = f"is it running there, and is {keys.member.partition(':')[0]} what it speaks?"
        if isinstance(getattr(exc.__cause__, "__cause__", None), ssl.SSLError):
            advice = (
                "is https what it speaks, and has each side a certificate that the other side's authority has signed?"
            )
        raise RendezvousConnectionError(f"{what} is not reached: {exc}; {advice}") from exc
    except StoreError as exc:
        raise RendezvousConnectionError(f"{what} cannot be used: {exc}") from exc
    return keys
