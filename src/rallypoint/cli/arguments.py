"""Arguments that several commands take."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rallypoint.server.visitor import Visitor

DEFAULT_PORT = 29400


def endpoint(text: str) -> tuple[str, int]:
    """Host and port, as argparse wants its types."""
    from rallypoint.elastic.utils import parse_rendezvous_endpoint

    try:
        return parse_rendezvous_endpoint(text, DEFAULT_PORT)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from None


def written(host: str, port: int) -> str:
    """An endpoint as people write it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def declare_endpoint(parser: argparse.ArgumentParser) -> None:
    """Where the server is that is asked."""
    parser.add_argument(
        "--endpoint",
        type=endpoint,
        default=("localhost", DEFAULT_PORT),
        metavar="HOST:PORT",
        help=f"where `rallypoint serve` listens (default: localhost:{DEFAULT_PORT})",
    )


def visit(given: argparse.Namespace) -> Visitor:
    """A connection to the server that was named."""
    from rallypoint.server.visitor import Visitor

    host, port = given.endpoint
    return Visitor(host, port)
