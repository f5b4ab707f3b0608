"""A node's membership in a run whose server is found by a c10d store: `c10d://host:port` and `file:///path`.

The stores are ours, so that nobody waits for torch to be imported.  On TCP torch's stores speak the same wire format.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from rallypoint.client.addresses import own_address
from rallypoint.client.background import run_in_thread
from rallypoint.client.member import Member
from rallypoint.elastic.api import RendezvousParameters
from rallypoint.elastic.backend_member import member_from
from rallypoint.elastic.c10d_rendezvous_backend import (
    IS_HOST,
    C10dRendezvousBackend,
    file_store,
    hosted_backend,
    tcp_store,
)
from rallypoint.elastic.endpoints import DEFAULT_PORT, path_of, without_scheme
from rallypoint.elastic.member_backend import CHOICES, HEARTBEATS, SERVER_PORT, TIMES, MemberBackend, medium_call_s
from rallypoint.elastic.options import Option, OptionValues
from rallypoint.elastic.utils import parse_rendezvous_endpoint, written

OPTIONS: tuple[Option[Any], ...] = (*TIMES, *HEARTBEATS, SERVER_PORT, *CHOICES)


def create_tcp_member(
    params: RendezvousParameters, options: OptionValues, *, under_torch: bool = False, trains: bool = False
) -> Member:
    """A membership by a TCP store, which this process serves if the endpoint is an address of this machine."""
    host, port = parse_rendezvous_endpoint(without_scheme(params.endpoint), DEFAULT_PORT)
    timeout, is_host = timedelta(seconds=medium_call_s(options)), options[IS_HOST]

    def open_backend() -> C10dRendezvousBackend:
        opened = tcp_store(host, port, timeout, is_host, with_torch=False)
        return hosted_backend(opened.store, opened.served, params.run_id)

    return member_from(
        params,
        options,
        open_backend,
        where=f"c10d://{written(host, port)}",
        key=(is_host,),
        address=params.local_addr or run_in_thread(lambda: own_address(host, port)),
        under_torch=under_torch,
        trains=trains,
    )


def create_file_member(
    params: RendezvousParameters, options: OptionValues, *, under_torch: bool = False, trains: bool = False
) -> Member:
    """A membership by a file that all nodes of the run share."""
    path = path_of(params.endpoint)
    return member_from(
        params,
        options,
        lambda: C10dRendezvousBackend(file_store(path, with_torch=False), params.run_id),
        where=f"file://{path}",
        address=params.local_addr or own_address(),
        under_torch=under_torch,
        trains=trains,
    )


C10D = MemberBackend("c10d", (*OPTIONS, IS_HOST), create_tcp_member)
"""A c10d TCP store names the server."""
FILE = MemberBackend("file", OPTIONS, create_file_member)
"""A file names the server."""
