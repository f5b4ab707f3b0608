"""Arguments that several commands take: where to ask, which is a server, or a register that names servers."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from rallypoint.errors import RendezvousConnectionError, RendezvousError

if TYPE_CHECKING:
    from rallypoint.client.admin import Visitor
    from rallypoint.location.admin import RegisterVisitor

DEFAULT_PORT = 29400
LONGEST_S = 365 * 86400.0
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
PROBE_S = 1.0
"""How long something that is no server is asked whether it is a c10d store."""

# Spelled out here, so that `--help` need not load what they are for.
_FOR_ETCD = {
    "etcd_prefix": ("TEXT", "where in etcd the keys of all runs lie (default: /rallypoint)"),
    "username": ("NAME", "the name of etcd's user, where it has users"),
    "password_file": ("FILE", "the file with that user's password"),
    "cacert": ("FILE", "the certificates that etcd's own are signed by; implies TLS"),
    "cert": ("FILE", "this client's certificate, where etcd wants one; implies TLS"),
    "key": ("FILE", "the key of that certificate"),
}
_ETCD_V3 = tuple(_FOR_ETCD)
_TAKEN_BY = {"etcd": _ETCD_V3, "etcds": _ETCD_V3, "etcd-v2": ("cacert", "cert", "key")}
"""Which of them the endpoints of a scheme take."""


def endpoint(text: str) -> tuple[str, int]:
    """Host and port, as argparse wants its types."""
    from rallypoint.elastic.utils import parse_rendezvous_endpoint

    try:
        return parse_rendezvous_endpoint(text, DEFAULT_PORT)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from None


def server_or_register(text: str) -> tuple[str, int] | str:
    """Host and port of a server, or the URL of a register as it was given."""
    from rallypoint.elastic.endpoints import scheme_of

    try:
        return text.strip() if scheme_of(text) else endpoint(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from None


def duration(text: str) -> float:
    """A time such as 30s, 10m or 2h, in seconds, as argparse wants its types."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([smhd]?)", text.strip())
    seconds = float(match[1]) * _UNITS[match[2]] if match is not None else -1.0
    if not 0 <= seconds <= LONGEST_S:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time: write a number and s, m, h or d behind it, such as 30s, 10m or 2h, 365d at most"
        )
    return seconds


def written(host: str, port: int) -> str:
    """An endpoint as people write it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def declare_endpoint(parser: argparse.ArgumentParser) -> None:
    """Where to ask."""
    parser.add_argument(
        "--endpoint",
        type=server_or_register,
        default=("localhost", DEFAULT_PORT),
        metavar="ENDPOINT",
        help=f"as the nodes have it: HOST:PORT of a server (default: localhost:{DEFAULT_PORT}), etcd://HOST:PORT,HOST:PORT "
        f"(etcds:// with TLS), etcd-v2://HOST:PORT,HOST:PORT, c10d://HOST:PORT or file:///PATH",
    )
    for_etcd = parser.add_argument_group(
        "where the endpoint is etcd", "etcd-v2:// takes --cacert, --cert and --key; others take none of these."
    )
    for name, (metavar, help_text) in _FOR_ETCD.items():
        for_etcd.add_argument(_as_flag(name), metavar=metavar, help=help_text)


def visit(given: argparse.Namespace) -> Visitor | RegisterVisitor:
    """A connection to the server that was named, or to those that the register names."""
    config = {name: value for name in _FOR_ETCD if (value := getattr(given, name)) is not None}
    if isinstance(given.endpoint, str):
        return _visit_register(given.endpoint, config)
    host, port = given.endpoint
    if config:
        raise RendezvousError(
            f"{_as_flag(next(iter(config)))} is for etcd, and {written(host, port)} would be a server: write the "
            f"endpoint as etcd://{written(host, port)}, or leave the option out"
        )
    return _visit_server(host, port)


def _visit_server(host: str, port: int) -> Visitor:
    from rallypoint.client.admin import Visitor

    try:
        return Visitor(host, port)
    except RendezvousConnectionError as exc:
        from rallypoint.elastic.store_probe import is_store

        if not is_store(host, port, PROBE_S):
            raise
        place = written(host, port)
        raise RendezvousConnectionError(
            f"a c10d store is at {place}, and no rallypoint server: write the endpoint as c10d://{place}"
        ) from exc


def _visit_register(url: str, config: dict[str, str]) -> RegisterVisitor:
    from rallypoint.client.admin import PATIENCE_S
    from rallypoint.elastic.endpoints import records_at, scheme_of
    from rallypoint.location.admin import RegisterVisitor

    scheme = scheme_of(url)
    taken = _TAKEN_BY.get(scheme, ())
    for name in config:
        if name not in taken:
            known = f"only {', '.join(map(_as_flag, taken))}" if taken else "none of these options"
            raise RendezvousError(f"{_as_flag(name)} is for etcd://, and {scheme}:// takes {known}: leave it out")
    try:
        return RegisterVisitor(records_at(url, config, PATIENCE_S))
    except ValueError as exc:
        raise RendezvousError(str(exc)) from exc


def _as_flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
