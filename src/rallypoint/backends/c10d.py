"""The endpoints `c10d://host:port` and `file:///path`: a c10d store names the server that the nodes elect.

The stores are ours, so that nobody waits for torch to be imported.  On TCP torch's stores speak the same wire format.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from rallypoint.backends.c10d_stores import file_store, tcp_store
from rallypoint.backends.endpoints import path_of, without_scheme
from rallypoint.backends.membership import CHOICES, ELECTED, IS_HOST, MemberBackend, MemberRequest
from rallypoint.backends.options import Option
from rallypoint.client.addresses import own_address
from rallypoint.client.member import Member
from rallypoint.net import DEFAULT_PORT, parse_endpoint, written
from rallypoint.stores.c10d_document import C10dDocument

OPTIONS: tuple[Option[Any], ...] = (*ELECTED, *CHOICES)


def create_tcp_member(request: MemberRequest) -> Member:
    """A membership by a TCP store, which this process serves if the endpoint is an address of this machine."""
    host, port = parse_endpoint(without_scheme(request.endpoint), DEFAULT_PORT)
    timeout, is_host = timedelta(seconds=request.medium_call_s), request.options[IS_HOST]

    def open_document() -> C10dDocument:
        store, served = tcp_store(host, port, timeout, is_host, with_torch=False)
        return C10dDocument(store, request.run_id, hosts_store=served is not None, served=served)

    where = f"c10d://{written(host, port)}"
    return request.by_document(open_document, where, is_host, find_address=lambda: own_address(host, port))


def create_file_member(request: MemberRequest) -> Member:
    """A membership by a file that all nodes of the run share."""
    path = path_of(request.endpoint)

    def open_document() -> C10dDocument:
        return C10dDocument(file_store(path, with_torch=False), request.run_id)

    return request.by_document(open_document, f"file://{path}", find_address=own_address)


C10D = MemberBackend("c10d", (*OPTIONS, IS_HOST), create_tcp_member)
"""A c10d TCP store names the server."""
FILE = MemberBackend("file", OPTIONS, create_file_member)
"""A file names the server."""
