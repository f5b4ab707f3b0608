"""The endpoint `etcd-v2://a:2379,b:2379`: a key in etcd, by its API v2, names the server that the nodes elect."""

from __future__ import annotations

from typing import Any

from rallypoint.backends.endpoints import without_scheme
from rallypoint.backends.etcd_v2_client import CONNECTION, DEFAULT_PORT, client_with, connect, python_etcd
from rallypoint.backends.membership import CHOICES, ELECTED, MemberBackend, MemberRequest
from rallypoint.backends.options import Option
from rallypoint.client.addresses import address_among
from rallypoint.client.member import Member
from rallypoint.net import parse_endpoints, written
from rallypoint.stores.documents import ETCD_V2_FOLDER
from rallypoint.stores.etcd_v2_document import EtcdV2Document

OPTIONS: tuple[Option[Any], ...] = (*ELECTED, *CONNECTION, *CHOICES)


def create_member(request: MemberRequest) -> Member:
    """A membership by one key of etcd's."""
    # In this thread: Python forgets that Ctrl-C ended the main thread when another one imports something large meanwhile,
    # and the process would end with status 1 and not by the signal.
    python_etcd()
    members = parse_endpoints(without_scheme(request.endpoint), DEFAULT_PORT)
    endpoints = [written(*member) for member in members]
    timeout_s = request.medium_call_s

    def open_document() -> EtcdV2Document:
        client = client_with(request.options, members, timeout_s)
        connect(client, timeout_s, f"etcd at {','.join(endpoints)}")
        return EtcdV2Document(client, request.run_id, ETCD_V2_FOLDER)

    where, shared = f"etcd-v2://{','.join(endpoints)}", [request.options[option] for option in CONNECTION]
    return request.by_document(open_document, where, *shared, find_address=lambda: address_among(endpoints))


ETCD_V2 = MemberBackend("etcd-v2", OPTIONS, create_member)
"""A key in etcd, by its API v2, names the server."""
