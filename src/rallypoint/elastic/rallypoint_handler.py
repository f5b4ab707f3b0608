"""The backend `rallypoint`: a handler on the embedded or a standalone server."""

from __future__ import annotations

from typing import Any

from rallypoint.client.member import Member
from rallypoint.core.model import Bounds, Settings
from rallypoint.elastic import member_backend
from rallypoint.elastic.api import RendezvousParameters
from rallypoint.elastic.member_backend import (
    CHOICES,
    CLOSE_TIMEOUT,
    READ_TIMEOUT,
    TIMES,
    MemberBackend,
    MemberHandler,
    node_from,
)
from rallypoint.elastic.options import Option, OptionValues, flag, number, seconds
from rallypoint.elastic.round_stores import STORE, store_server
from rallypoint.elastic.utils import parse_rendezvous_endpoint
from rallypoint.location.fixed import FixedLocator
from rallypoint.location.member import LocatedMember

DEFAULT_PORT = 29400
BACKEND = "rallypoint"

HEARTBEAT_INTERVAL = seconds("heartbeat_interval", 1.0, "how often a node says that it is there")
HEARTBEAT_TIMEOUT = seconds("heartbeat_timeout", 5.0, "how long a silent node is waited for")
KEEP_ALIVE_INTERVAL = seconds("keep_alive_interval", None, "PyTorch's name for heartbeat_interval")
KEEP_ALIVE_ATTEMPTS = number(
    "keep_alive_max_attempt", None, "times keep_alive_interval: the heartbeat_timeout", at_least=1
)
IS_HOST = flag("is_host", None, "whether this process serves the endpoint")

HEARTBEATS: tuple[Option[Any], ...] = (HEARTBEAT_INTERVAL, HEARTBEAT_TIMEOUT, KEEP_ALIVE_INTERVAL, KEEP_ALIVE_ATTEMPTS)
OPTIONS: tuple[Option[Any], ...] = (*TIMES, *HEARTBEATS, *CHOICES, IS_HOST)


def create_handler(params: RendezvousParameters) -> MemberHandler:
    """The creator of the backend."""
    return MemberHandler(RALLYPOINT, params)


def create_member(
    params: RendezvousParameters, options: OptionValues, *, under_torch: bool = False, trains: bool = False
) -> Member:
    """A membership as the parameters ask for it; under torch, torch serves the stores unless the options say otherwise."""
    host, port = parse_rendezvous_endpoint(params.endpoint, DEFAULT_PORT)
    return LocatedMember(
        FixedLocator(host, port, params.run_id, is_host=options[IS_HOST]),
        params.run_id,
        Bounds(params.min_nodes, params.max_nodes),
        settings_from(options),
        node_from(params, options),
        call_s=options[READ_TIMEOUT],
        close_s=options[CLOSE_TIMEOUT],
        serve_store=store_server(options[STORE], under_torch=under_torch),
    )


def settings_from(options: OptionValues) -> Settings:
    """The run's settings; PyTorch's words for heartbeats are taken where ours are not given."""
    interval, timeout = options[HEARTBEAT_INTERVAL], options[HEARTBEAT_TIMEOUT]
    if HEARTBEAT_INTERVAL not in options:
        interval = options[KEEP_ALIVE_INTERVAL] or interval
    if HEARTBEAT_TIMEOUT not in options and (KEEP_ALIVE_INTERVAL in options or KEEP_ALIVE_ATTEMPTS in options):
        timeout = interval * (options[KEEP_ALIVE_ATTEMPTS] or 3)
    if timeout <= interval:
        raise ValueError(
            f"heartbeat_timeout is {timeout:g} s and heartbeat_interval {interval:g} s: a node would be lost between two "
            f"beats; make the time-out at least three times the interval"
        )
    return member_backend.settings_from(options, interval_s=interval, timeout_s=timeout)


RALLYPOINT = MemberBackend(BACKEND, OPTIONS, create_member)
"""The backend, for the ways to take part that are not handlers."""
