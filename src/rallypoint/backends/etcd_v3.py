"""The backend `etcd-v3`: a server that the nodes elect through an etcd cluster, so that no single host matters."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from rallypoint.backends import etcd_v3_client, membership
from rallypoint.backends.etcd_v3_client import PREFIX, open_client
from rallypoint.backends.membership import ETCD, IS_HOST, SERVER_PORT, STORE, MemberBackend, MemberRequest
from rallypoint.backends.options import Option, number
from rallypoint.client.addresses import address_among
from rallypoint.client.member import Member
from rallypoint.client.round_store import RoundStore
from rallypoint.etcd_client import EtcdClient
from rallypoint.location.etcd_v3_round_store import EtcdV3RoundStore
from rallypoint.location.member import LocatedMember
from rallypoint.location.registers.etcd_v3 import EtcdV3Register
from rallypoint.location.registers.etcd_v3_keys import RecordKeys
from rallypoint.messages.notices import Placed

SHORTEST_TTL_S = 2
"""etcd grants no shorter lease with its usual election time-out of a second."""
LONGEST_TTL_S = 120
SHORTEST_RUN_TTL_S = 60
"""How long a record lives at least after its last server."""

LEASE_TTL = number(
    "lease_ttl", 5, "after how many seconds a server is replaced that etcd does not hear of", at_least=SHORTEST_TTL_S
)

_CHOICES = tuple(membership.STORE_OR_ETCD if option is STORE else option for option in membership.CHOICES)
_SERVING = (LEASE_TTL, SERVER_PORT, IS_HOST)
OPTIONS: tuple[Option[Any], ...] = (
    *membership.TIMES,
    *membership.HEARTBEATS,
    *_SERVING,
    *etcd_v3_client.OPTIONS,
    *_CHOICES,
)

_SHARED: tuple[Option[Any], ...] = (LEASE_TTL, IS_HOST, *etcd_v3_client.OPTIONS)
"""What the nodes of one process must agree on to share an election."""
_UNFIT = {"protocol": "write https://… or etcds://… as the endpoint for TLS"}


def create_member(request: MemberRequest) -> Member:
    """A membership through the server that etcd names."""
    options, run_id = request.options, request.run_id
    ttl_s = options[LEASE_TTL]
    if ttl_s > LONGEST_TTL_S:
        raise ValueError(
            f"lease_ttl is {ttl_s} s: a dead server would not be replaced for so long; give at most {LONGEST_TTL_S}"
        )
    client = open_client(request.endpoint, options, timeout_s=request.medium_call_s)
    prefix = options[PREFIX]
    run_ttl_s = max(math.ceil(2 * request.settings.outage_grace_s), SHORTEST_RUN_TTL_S)

    def open_register(serves_on: Callable[[], bool]) -> EtcdV3Register:
        return EtcdV3Register(client.twin(), prefix, run_id, run_ttl_s=run_ttl_s, serves_on=serves_on)

    locator = request.elected(
        open_register,
        f"etcd://{','.join(client.endpoints)}{prefix}",
        *(options[option] for option in _SHARED),
        find_address=lambda: address_among(client.endpoints),
        rest_s=ttl_s,
        is_host=options[IS_HOST],
    )
    keys, serves_store = RecordKeys(prefix, run_id), options[STORE] != ETCD
    return request.member(locator, _Member, client=client, keys=keys, serves_store=serves_store)


class _Member(LocatedMember):
    """The client is the member's own."""

    def __init__(
        self, *arguments: Any, client: EtcdClient, keys: RecordKeys, serves_store: bool, **options: Any
    ) -> None:
        self._client, self._keys, self.serves_store = client, keys, serves_store
        super().__init__(*arguments, **options)

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


ETCD_V3 = MemberBackend("etcd-v3", OPTIONS, create_member, _UNFIT)
"""A key in etcd names the server."""
