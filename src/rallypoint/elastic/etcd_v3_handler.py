"""The backend `etcd-v3`: a handler on an etcd cluster, where no single host matters."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from rallypoint.client.member import Member
from rallypoint.core.model import Bounds
from rallypoint.core.notices import Placed
from rallypoint.elastic import etcd_v3_client
from rallypoint.elastic.api import RendezvousParameters
from rallypoint.elastic.etcd_v3_client import PREFIX, in_options, open_client
from rallypoint.elastic.member_backend import (
    CHOICES,
    CLOSE_TIMEOUT,
    JOIN_TIMEOUT,
    READ_TIMEOUT,
    TIMES,
    MemberBackend,
    MemberHandler,
    node_from,
    settings_from,
)
from rallypoint.elastic.options import OptionValues, number, seconds
from rallypoint.elastic.round_stores import ETCD, STORE, STORE_OR_ETCD, store_server
from rallypoint.errors import RendezvousConnectionError, RendezvousTimeoutError
from rallypoint.etcd.member import EtcdMember

BACKEND = "etcd-v3"

SHORTEST_TTL_S = 2
"""etcd grants no shorter lease with its usual election time-out of a second."""
CALL_S = 5.0
"""How long one call to etcd is tried at all members together; then what each of them said is known, and it is tried anew."""

LEASE_TTL = number(
    "lease_ttl", 5, "how many seconds a node is waited for that etcd does not hear of", at_least=SHORTEST_TTL_S
)
KEEP_ALIVE_INTERVAL = seconds("keep_alive_interval", None, "PyTorch's name for a third of lease_ttl")
KEEP_ALIVE_ATTEMPTS = number("keep_alive_max_attempt", None, "times keep_alive_interval: the lease_ttl", at_least=1)

_CHOICES = tuple(STORE_OR_ETCD if option is STORE else option for option in CHOICES)
OPTIONS = (*TIMES, LEASE_TTL, KEEP_ALIVE_INTERVAL, KEEP_ALIVE_ATTEMPTS, *etcd_v3_client.OPTIONS, *_CHOICES)

_LEASES = "etcd tells by leases who is there; say how long a silent node is waited for by lease_ttl, in whole seconds"
_UNFIT = {
    "heartbeat_interval": _LEASES,
    "heartbeat_timeout": _LEASES,
    "is_host": "nobody hosts anything here, etcd is there for all; leave it out",
    "protocol": "write https://… or etcds://… as the endpoint for TLS",
}


def create_handler(params: RendezvousParameters) -> MemberHandler:
    """The creator of the backend."""
    return MemberHandler(ETCD_V3, params)


def create_member(params: RendezvousParameters, options: OptionValues, *, under_torch: bool = False) -> Member:
    """A membership as the parameters ask for it; under torch, torch serves the stores unless the options say otherwise."""
    ttl_s = lease_ttl_s(options)
    serve_store = store_server(options[STORE_OR_ETCD], under_torch=under_torch)
    call_s = min(CALL_S, options[READ_TIMEOUT], options[JOIN_TIMEOUT] / 2)
    client = open_client(params.endpoint, options, timeout_s=call_s)
    return _Member(
        client,
        options[PREFIX],
        params.run_id,
        Bounds(params.min_nodes, params.max_nodes),
        settings_from(options, interval_s=ttl_s / 3, timeout_s=ttl_s),
        node_from(params, options),
        lease_ttl_s=ttl_s,
        call_s=options[READ_TIMEOUT],
        close_s=options[CLOSE_TIMEOUT],
        serve_store=serve_store,
        store_in_etcd=options[STORE_OR_ETCD] == ETCD,
    )


def lease_ttl_s(options: OptionValues) -> int:
    """How long a node's lease is; PyTorch's words for keep-alives are taken where ours is not given."""
    ttl_s: int = options[LEASE_TTL]
    if LEASE_TTL in options or not (KEEP_ALIVE_INTERVAL in options or KEEP_ALIVE_ATTEMPTS in options):
        return ttl_s
    asked_s = (options[KEEP_ALIVE_INTERVAL] or ttl_s / 3) * (options[KEEP_ALIVE_ATTEMPTS] or 3)
    return max(math.ceil(asked_s), SHORTEST_TTL_S)


class _Member(EtcdMember):
    """What etcd's client has to say comes in the names that the options have."""

    def join(self, timeout_s: float) -> Placed:
        with _in_options():
            return super().join(timeout_s)

    def close_run(self) -> None:
        with _in_options():
            super().close_run()

    def why_waiting(self) -> str:
        return in_options(super().why_waiting())


@contextmanager
def _in_options() -> Iterator[None]:
    try:
        yield
    except (RendezvousConnectionError, RendezvousTimeoutError) as exc:
        raise type(exc)(in_options(str(exc))) from exc.__cause__


ETCD_V3 = MemberBackend(BACKEND, OPTIONS, create_member, _UNFIT)
"""The backend, for the ways to take part that are not handlers."""
