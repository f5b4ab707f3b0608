"""How often those who are not named to lead next look whether somebody leads."""

from __future__ import annotations

import time

import pytest

from rallypoint.etcd.keys import Keys
from rallypoint.etcd.succession import Succession
from rallypoint.etcd_client import EtcdClient
from tests.etcd.servers import Cluster
from tests.etcd_v3.harness import PREFIX

LOOKS = 200


@pytest.mark.parametrize(
    ("size", "ttl_s", "between_s"),
    [
        (1, 8, 2.0),
        (100, 8, 2.0),  # all of them look 50 times a second
        (200, 8, 4.0),
        (1000, 8, 20.0),
        (1000, 100, 25.0),
        (1500, 8, 30.0),
        (10_000, 8, 30.0),  # a run may be for many more than have come
        (1, 600, 30.0),
    ],
)
def test_the_more_nodes_there_are_the_later_each_of_them_looks_again_and_not_all_at_once(
    cluster: Cluster, run: str, size: int, ttl_s: int, between_s: float
) -> None:
    waits = []
    with EtcdClient(cluster.endpoints) as client, client.grant(ttl_s) as lease:
        assert lease.ttl_s == ttl_s
        succession = Succession(client, Keys(PREFIX, run), run, lambda: None)
        for _ in range(LOOKS):
            before = time.monotonic()
            succession.looked(lease, size)
            assert before + between_s <= succession.look_at <= time.monotonic() + 2 * between_s
            waits.append(succession.look_at - before)
    assert min(waits) < 1.3 * between_s
    assert max(waits) > 1.7 * between_s
