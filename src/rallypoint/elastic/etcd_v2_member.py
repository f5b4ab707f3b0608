"""A node's membership in a run whose server is found by etcd's API v2: `etcd-v2://a:2379,b:2379`."""

from __future__ import annotations

from typing import Any

from rallypoint.client.addresses import address_among
from rallypoint.client.background import run_in_thread
from rallypoint.client.member import Member
from rallypoint.elastic.api import RendezvousParameters
from rallypoint.elastic.backend_member import member_from
from rallypoint.elastic.documents import ETCD_V2_FOLDER
from rallypoint.elastic.endpoints import without_scheme
from rallypoint.elastic.etcd_rendezvous_backend import (
    CA_CERT,
    SSL_CERT,
    SSL_CERT_KEY,
    EtcdRendezvousBackend,
)
from rallypoint.elastic.etcd_v2_client import PROTOCOL, connect, make_client, parse_endpoints
from rallypoint.elastic.member_backend import CHOICES, HEARTBEATS, SERVER_PORT, TIMES, MemberBackend, medium_call_s
from rallypoint.elastic.options import Option, OptionValues
from rallypoint.elastic.utils import written

CONNECTION: tuple[Option[Any], ...] = (PROTOCOL, SSL_CERT, SSL_CERT_KEY, CA_CERT)
OPTIONS: tuple[Option[Any], ...] = (*TIMES, *HEARTBEATS, SERVER_PORT, *CONNECTION, *CHOICES)


def create_member(
    params: RendezvousParameters, options: OptionValues, *, under_torch: bool = False, trains: bool = False
) -> Member:
    """A membership by one key of etcd's."""
    members = parse_endpoints(without_scheme(params.endpoint))
    endpoints = [written(*member) for member in members]
    timeout_s = medium_call_s(options)

    def open_backend() -> EtcdRendezvousBackend:
        client = client_with(options, members, timeout_s)
        connect(client, timeout_s, f"etcd at {','.join(endpoints)}")
        return EtcdRendezvousBackend(client, params.run_id, ETCD_V2_FOLDER)

    return member_from(
        params,
        options,
        open_backend,
        where=f"etcd-v2://{','.join(endpoints)}",
        key=tuple(options[option] for option in CONNECTION),
        address=params.local_addr or run_in_thread(lambda: address_among(endpoints)),
        under_torch=under_torch,
        trains=trains,
    )


def client_with(options: OptionValues, members: list[tuple[str, int]], timeout_s: float) -> Any:
    """A client of etcd's API v2, as the options ask for it."""
    return make_client(
        members,
        protocol=options[PROTOCOL],
        read_timeout_s=timeout_s,
        cert=options[SSL_CERT],
        key=options[SSL_CERT_KEY],
        ca=options[CA_CERT],
    )


ETCD_V2 = MemberBackend("etcd-v2", OPTIONS, create_member)
"""A key in etcd, by its API v2, names the server."""
