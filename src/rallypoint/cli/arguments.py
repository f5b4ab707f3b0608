"""Arguments that several commands take: where to ask, which is a server or etcd."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rallypoint.errors import RendezvousError

if TYPE_CHECKING:
    from rallypoint.client.admin import Visitor
    from rallypoint.location.admin import RegisterVisitor

DEFAULT_PORT = 29400

# Spelled out here, so that `--help` need not load what they are for.
_FOR_ETCD = {
    "etcd_prefix": ("TEXT", "where in etcd the keys of all runs lie (default: /rallypoint)"),
    "username": ("NAME", "the name of etcd's user, where it has users"),
    "password_file": ("FILE", "the file with that user's password"),
    "cacert": ("FILE", "the certificates that etcd's own are signed by; implies TLS"),
    "cert": ("FILE", "this client's certificate, where etcd wants one; implies TLS"),
    "key": ("FILE", "the key of that certificate"),
}


def endpoint(text: str) -> tuple[str, int]:
    """Host and port, as argparse wants its types."""
    from rallypoint.elastic.utils import parse_rendezvous_endpoint

    try:
        return parse_rendezvous_endpoint(text, DEFAULT_PORT)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from None


def server_or_etcd(text: str) -> tuple[str, int] | str:
    """Host and port of a server, or etcd's endpoints as they were given."""
    from rallypoint.elastic.utils import is_etcd

    return text.strip() if is_etcd(text) else endpoint(text)


def written(host: str, port: int) -> str:
    """An endpoint as people write it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def declare_endpoint(parser: argparse.ArgumentParser) -> None:
    """Where to ask."""
    parser.add_argument(
        "--endpoint",
        type=server_or_etcd,
        default=("localhost", DEFAULT_PORT),
        metavar="HOST:PORT",
        help=f"where `rallypoint serve` listens (default: localhost:{DEFAULT_PORT}), or etcd://HOST:PORT,HOST:PORT "
        f"(etcds:// with TLS)",
    )
    for_etcd = parser.add_argument_group("where the endpoint is etcd")
    for name, (metavar, help_text) in _FOR_ETCD.items():
        for_etcd.add_argument(f"--{name.replace('_', '-')}", metavar=metavar, help=help_text)


def visit(given: argparse.Namespace) -> Visitor | RegisterVisitor:
    """A connection to the server or the etcd that was named."""
    config = {name: value for name in _FOR_ETCD if (value := getattr(given, name)) is not None}
    if isinstance(given.endpoint, str):
        from rallypoint.cli.etcd_visitor import visit_etcd

        return visit_etcd(given.endpoint, config)
    from rallypoint.client.admin import Visitor

    host, port = given.endpoint
    if config:
        raise RendezvousError(
            f"--{next(iter(config)).replace('_', '-')} is for etcd, and {written(host, port)} would be a server: write the "
            f"endpoint as etcd://{written(host, port)}, or leave the option out"
        )
    return Visitor(host, port)
