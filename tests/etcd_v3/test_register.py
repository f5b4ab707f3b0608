"""The register in etcd v3: leases that the record does not lie on go, and the record's own lease stays."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import Any

import msgspec

from rallypoint.etcd_client import EtcdClient, Lease
from rallypoint.location.registers.etcd_v3 import EtcdV3Register
from rallypoint.messages.types import Bounds
from rallypoint.record import Claim, Record, encode
from tests.support.etcd_node_processes import PREFIX
from tests.support.etcd_servers import Cluster
from tests.support.waiting import until


class GrantingClient(EtcdClient):
    """A client that remembers the leases that were granted to it."""

    granted: list[int]

    def grant(self, *arguments: Any, **options: Any) -> Lease:
        lease = super().grant(*arguments, **options)
        self.granted = [*getattr(self, "granted", []), lease.id]
        return lease


def test_losing_a_second_claim_leaves_the_record_where_it_is(cluster: Cluster, run: str, ends: ExitStack) -> None:
    """Of a register whose first claim was lost too, and which had a lease for a record that it never wrote."""

    def register(client: EtcdClient) -> EtcdV3Register:
        made = EtcdV3Register(client, PREFIX, run, run_ttl_s=600, serves_on=lambda: True)
        return ends.enter_context(closing(made))

    loser_client = GrantingClient(cluster.endpoints)
    winner, loser = register(EtcdClient(cluster.endpoints)), register(loser_client)
    assert winner.read() is None
    assert loser.read() is None
    first = winner.write(claimed(run, "winner", 1), None)
    assert first is not None
    assert loser.write(claimed(run, "loser", 1), None) is None
    found = loser.read()
    assert found is not None
    second = winner.write(claimed(run, "winner", 2), first.token)
    assert second is not None
    assert loser.write(claimed(run, "loser", 2), found.token) is None
    loser.resign()
    observer = ends.enter_context(EtcdClient(cluster.endpoints))
    until(lambda: all(observer.time_to_live(lease).ttl < 0 for lease in loser_client.granted))
    assert len(loser_client.granted) == 2, "one for the claim, one for the record"
    assert winner.read() == second


def claimed(run: str, claim_id: str, epoch: int) -> bytes:
    record = Record(
        run_id=run, incarnation="r1", epoch=epoch, round=0, write_id=f"{claim_id}{epoch}", bounds=Bounds(1, 2)
    )
    claim = Claim(id=claim_id, addresses=("127.0.0.1",), port=29400, rest_s=60.0)
    return encode(msgspec.structs.replace(record, claim=claim))
