"""The backend `rallypoint`: a server at a fixed address, embedded in a node's process or standalone."""

from __future__ import annotations

from typing import Any

from rallypoint.backends.membership import CHOICES, HEARTBEATS, IS_HOST, TIMES, MemberBackend, MemberRequest
from rallypoint.backends.options import Option, text
from rallypoint.client.member import Member
from rallypoint.location.fixed import FixedLocator
from rallypoint.net import DEFAULT_PORT, parse_endpoint
from rallypoint.tls import TlsFiles
from rallypoint.tokens import read_token

TOKEN_FILE = text("token_file", "", "the file with the token that server and nodes share (default: RALLYPOINT_TOKEN)")
CACERT = text("cacert", "", "the certificates by which server and nodes believe each other")
CERT = text("cert", "", "this node's certificate")
KEY = text("key", "", "the key of that certificate")

OPTIONS: tuple[Option[Any], ...] = (*TIMES, *HEARTBEATS, *CHOICES, IS_HOST, TOKEN_FILE, CACERT, CERT, KEY)


def create_member(request: MemberRequest) -> Member:
    """A membership through the server at the endpoint, which this process may serve from now on."""
    host, port = parse_endpoint(request.endpoint, DEFAULT_PORT)
    options = request.options
    tls = TlsFiles(options[CACERT], options[CERT], options[KEY])
    tls.check()
    locator = FixedLocator(
        host, port, request.run_id, is_host=options[IS_HOST], token=read_token(options[TOKEN_FILE]), tls=tls
    )
    return request.member(locator)


RALLYPOINT = MemberBackend("rallypoint", OPTIONS, create_member)
"""A server at a fixed address."""
