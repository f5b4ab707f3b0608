"""Runs in etcd, as somebody sees them who takes no part: read them, close them, evict a node."""

from __future__ import annotations

import secrets
import time

from rallypoint.client.identity import mint_id
from rallypoint.core.events import Joined
from rallypoint.core.model import Bounds, Node, Run
from rallypoint.core.node import View
from rallypoint.errors import RendezvousStateError
from rallypoint.etcd import estate
from rallypoint.etcd.adopting import adopt
from rallypoint.etcd.keys import Keys
from rallypoint.etcd.leading import message_of
from rallypoint.etcd.link import EtcdLink
from rallypoint.etcd_client import EtcdClient
from rallypoint.report import RunLine, RunReport, has_finished, line_of, node_to_evict, nodes_of

_LEASE_S = 5


def list_runs(client: EtcdClient, prefix: str) -> list[RunLine]:
    """All runs, by name; one that cannot be read is listed with the reason."""
    return [_line(client, prefix, run_id) for run_id in _run_ids(client, prefix)]


def read_run(client: EtcdClient, prefix: str, run_id: str) -> RunReport | None:
    """One run with its nodes; None where there is none."""
    run = _run(client, prefix, run_id)
    if run is None:
        return None
    return RunReport(line_of(run, time.monotonic()), str(run.bounds), tuple(nodes_of(run)))


def close_run(client: EtcdClient, prefix: str, run_id: str, why: str, patience_s: float) -> bool:
    """Close a run for everybody; False where there is none, or where its leader does not take it in time."""
    keys = Keys(prefix, run_id)
    if client.get(keys.board) is None:
        return False
    node = Node(id=mint_id("somebody"), name="somebody")
    link = EtcdLink(
        client,
        keys,
        run_id,
        View(node=node, bounds=Bounds(1, 1)),
        lease_ttl_s=_LEASE_S,
        prepare=lambda node, _: node,
        reborn=lambda node: node,
    )
    try:
        return link.ask_to_close(why) and link.is_heard(time.monotonic() + patience_s)
    finally:
        link.connect()
        link.close()


def evict(client: EtcdClient, prefix: str, run_id: str, name: str) -> bool:
    """End a node's lease, by its id or name: the others regroup without it, and it is told that it is out.

    The newest where several have the name.  False where there is no such node; `RendezvousError` where it has finished.
    """
    run = _run(client, prefix, run_id)
    node_id = node_to_evict(run, name) if run is not None else None
    keys = Keys(prefix, run_id)
    found = client.get(keys.node(node_id)) if node_id is not None else None
    word = estate.saying_of(keys, found) if found is not None else None
    if found is None or word is None or not found.lease:
        return False
    if not isinstance(message_of(word), Joined):
        # A last word hangs on the lease that all of the run hangs on.
        raise has_finished(run_id, name)
    client.revoke(found.lease)
    return True


def _run_ids(client: EtcdClient, prefix: str) -> list[str]:
    keys = Keys(prefix, "")
    found = (
        keys.run_id_of_board(kv.key) for page in client.pages(keys.runs, prefix=True, keys_only=True) for kv in page.kvs
    )
    return sorted(run_id for run_id in found if run_id is not None)


def _run(client: EtcdClient, prefix: str, run_id: str) -> Run | None:
    """The run as its leader would take it over."""
    found = estate.read_estate(client, Keys(prefix, run_id), run_id)
    if found.board is None and not found.words:
        return None
    return adopt(run_id, found, time.monotonic(), lambda: secrets.token_hex(8)).run


def _line(client: EtcdClient, prefix: str, run_id: str) -> RunLine:
    try:
        run = _run(client, prefix, run_id)
    except RendezvousStateError as exc:
        return RunLine(run_id, "unreadable", 0, 0, str(exc))
    return line_of(run if run is not None else Run(run_id=run_id), time.monotonic())
