"""The backend `rallypoint`: a handler on the embedded or a standalone server."""

from __future__ import annotations

from typing import Any

from rallypoint.client.member import Member
from rallypoint.core.model import Bounds
from rallypoint.elastic.api import RendezvousParameters
from rallypoint.elastic.endpoints import DEFAULT_PORT, backend_at
from rallypoint.elastic.member_backend import (
    CHOICES,
    CLOSE_TIMEOUT,
    HEARTBEATS,
    READ_TIMEOUT,
    TIMES,
    MemberBackend,
    MemberHandler,
    node_from,
    settings_from,
)
from rallypoint.elastic.options import Option, OptionValues, flag
from rallypoint.elastic.round_stores import STORE, store_server
from rallypoint.elastic.utils import parse_rendezvous_endpoint
from rallypoint.location.fixed import FixedLocator
from rallypoint.location.member import LocatedMember

BACKEND = "rallypoint"

IS_HOST = flag("is_host", None, "whether this process serves the endpoint")

OPTIONS: tuple[Option[Any], ...] = (*TIMES, *HEARTBEATS, *CHOICES, IS_HOST)


def create_handler(params: RendezvousParameters) -> MemberHandler:
    """The creator of the backend; the endpoint may be any that `rallypoint.join` takes."""
    return MemberHandler(backend_at(params.endpoint), params)


def create_member(
    params: RendezvousParameters, options: OptionValues, *, under_torch: bool = False, trains: bool = False
) -> Member:
    """A membership as the parameters ask for it; under torch, torch serves the stores unless the options say otherwise."""
    host, port = parse_rendezvous_endpoint(params.endpoint, DEFAULT_PORT)
    bounds, settings, node = (
        Bounds(params.min_nodes, params.max_nodes),
        settings_from(options),
        node_from(params.local_addr, options),
    )
    return LocatedMember(
        # Last, because it may serve from now on: nobody would end that if something else were wrong.
        FixedLocator(host, port, params.run_id, is_host=options[IS_HOST]),
        params.run_id,
        bounds,
        settings,
        node,
        call_s=options[READ_TIMEOUT],
        close_s=options[CLOSE_TIMEOUT],
        serve_store=store_server(options[STORE], under_torch=under_torch),
    )


RALLYPOINT = MemberBackend(BACKEND, OPTIONS, create_member)
"""The backend, for the ways to take part that are not handlers."""
