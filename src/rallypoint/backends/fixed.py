"""The backend `rallypoint`: a server at a fixed address, embedded in a node's process or standalone."""

from __future__ import annotations

from typing import Any

from rallypoint.backends.endpoints import DEFAULT_PORT
from rallypoint.backends.membership import CHOICES, HEARTBEATS, IS_HOST, TIMES, MemberBackend, MemberRequest
from rallypoint.backends.options import Option
from rallypoint.client.member import Member
from rallypoint.location.fixed import FixedLocator
from rallypoint.net import parse_endpoint

OPTIONS: tuple[Option[Any], ...] = (*TIMES, *HEARTBEATS, *CHOICES, IS_HOST)


def create_member(request: MemberRequest) -> Member:
    """A membership through the server at the endpoint, which this process may serve from now on."""
    host, port = parse_endpoint(request.endpoint, DEFAULT_PORT)
    return request.member(FixedLocator(host, port, request.run_id, is_host=request.options[IS_HOST]))


RALLYPOINT = MemberBackend("rallypoint", OPTIONS, create_member)
"""A server at a fixed address."""
