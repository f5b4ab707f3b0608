"""The backend `etcd-v3`: a server that the nodes elect through an etcd cluster, so that no single host matters."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from rallypoint.client.addresses import address_among
from rallypoint.client.background import run_in_thread
from rallypoint.client.member import Member
from rallypoint.client.round_store import RoundStore
from rallypoint.core.model import Bounds
from rallypoint.core.notices import Placed
from rallypoint.elastic import etcd_v3_client
from rallypoint.elastic.api import RendezvousParameters
from rallypoint.elastic.etcd_v3_client import PREFIX, in_options, open_client
from rallypoint.elastic.member_backend import (
    CHOICES,
    CLOSE_TIMEOUT,
    HEARTBEATS,
    READ_TIMEOUT,
    SERVER_PORT,
    TIMES,
    MemberBackend,
    MemberHandler,
    medium_call_s,
    node_from,
    settings_from,
)
from rallypoint.elastic.options import Option, OptionValues, number
from rallypoint.elastic.rallypoint_handler import IS_HOST
from rallypoint.elastic.round_stores import ETCD, STORE, STORE_OR_ETCD, store_server
from rallypoint.errors import RendezvousConnectionError, RendezvousTimeoutError
from rallypoint.etcd_client import EtcdClient
from rallypoint.location.driver import Driver
from rallypoint.location.elected import ElectedLocator
from rallypoint.location.etcd_v3_round_store import EtcdV3RoundStore
from rallypoint.location.member import LocatedMember
from rallypoint.location.registers.etcd_v3 import EtcdV3Register
from rallypoint.location.registers.etcd_v3_keys import RecordKeys

BACKEND = "etcd-v3"

SHORTEST_TTL_S = 2
"""etcd grants no shorter lease with its usual election time-out of a second."""
LONGEST_TTL_S = 120
SHORTEST_RUN_TTL_S = 60
"""How long a record lives at least after its last server."""

LEASE_TTL = number(
    "lease_ttl", 5, "after how many seconds a server is replaced that etcd does not hear of", at_least=SHORTEST_TTL_S
)

_CHOICES = tuple(STORE_OR_ETCD if option is STORE else option for option in CHOICES)
OPTIONS: tuple[Option[Any], ...] = (
    *TIMES,
    *HEARTBEATS,
    LEASE_TTL,
    SERVER_PORT,
    IS_HOST,
    *etcd_v3_client.OPTIONS,
    *_CHOICES,
)

_UNFIT = {"protocol": "write https://… or etcds://… as the endpoint for TLS"}


def create_handler(params: RendezvousParameters) -> MemberHandler:
    """The creator of the backend."""
    return MemberHandler(ETCD_V3, params)


def create_member(
    params: RendezvousParameters, options: OptionValues, *, under_torch: bool = False, trains: bool = False
) -> Member:
    """A membership as the parameters ask for it; under torch, torch serves the stores unless the options say otherwise."""
    ttl_s = options[LEASE_TTL]
    if ttl_s > LONGEST_TTL_S:
        raise ValueError(
            f"lease_ttl is {ttl_s} s: a dead server would not be replaced for so long; give at most {LONGEST_TTL_S}"
        )
    settings = settings_from(options)
    serve_store = store_server(options[STORE_OR_ETCD], under_torch=under_torch)
    client = open_client(params.endpoint, options, timeout_s=medium_call_s(options))
    prefix, run_id = options[PREFIX], params.run_id
    address = params.local_addr or run_in_thread(lambda: address_among(client.endpoints))
    run_ttl_s = max(math.ceil(2 * settings.outage_grace_s), SHORTEST_RUN_TTL_S)

    def open_register(serves_on: Callable[[], bool]) -> EtcdV3Register:
        return EtcdV3Register(client.twin(), prefix, run_id, run_ttl_s=run_ttl_s, serves_on=serves_on)

    def start() -> Driver:
        return Driver(
            run_id,
            open_register,
            address=address,
            ports=options[SERVER_PORT],
            rest_s=ttl_s,
            heartbeat_timeout_s=settings.heartbeat_timeout_s,
            is_host=options[IS_HOST],
            trains=trains,
        )

    where = f"etcd://{','.join(client.endpoints)}{prefix}"
    return _Member(
        client,
        RecordKeys(prefix, run_id),
        ElectedLocator((client.endpoints, prefix, run_id, address, _shared(options)), where, start),
        run_id,
        Bounds(params.min_nodes, params.max_nodes),
        settings,
        node_from(params.local_addr, options),
        call_s=options[READ_TIMEOUT],
        close_s=options[CLOSE_TIMEOUT],
        serve_store=serve_store,
        store_in_etcd=options[STORE_OR_ETCD] == ETCD,
    )


def _shared(options: OptionValues) -> tuple[object, ...]:
    """What the nodes of one process must agree on to share an election."""
    shared: tuple[Option[Any], ...] = (LEASE_TTL, SERVER_PORT, IS_HOST, *etcd_v3_client.OPTIONS)
    return tuple(options[option] for option in shared)


class _Member(LocatedMember):
    """The client is the member's own.  What etcd's client has to say comes in the names that the options have."""

    def __init__(
        self, client: EtcdClient, keys: RecordKeys, *arguments: Any, store_in_etcd: bool, **options: Any
    ) -> None:
        self._client = client
        self._keys = keys
        self.serves_store = not store_in_etcd
        super().__init__(*arguments, **options)

    def join(self, timeout_s: float) -> Placed:
        with _in_options():
            return super().join(timeout_s)

    def close_run(self) -> None:
        with _in_options():
            super().close_run()

    def why_waiting(self) -> str:
        return in_options(super().why_waiting())

    def _make_store(self, placed: Placed, listener: socket.socket | None) -> RoundStore:
        if self.serves_store:
            return super()._make_store(placed, listener)
        if listener is not None:
            listener.close()
        return EtcdV3RoundStore(self._client, self._keys, self, placed, timedelta(seconds=300))

    def _let_go(self, deadline: float) -> bool:
        in_time = super()._let_go(deadline)
        self._client.close()
        return in_time


@contextmanager
def _in_options() -> Iterator[None]:
    try:
        yield
    except (RendezvousConnectionError, RendezvousTimeoutError) as exc:
        raise type(exc)(in_options(str(exc))) from exc.__cause__


ETCD_V3 = MemberBackend(BACKEND, OPTIONS, create_member, _UNFIT)
"""The backend, for the ways to take part that are not handlers."""
