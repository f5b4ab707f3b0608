"""Nothing of a run stays for ever in etcd: what its nodes wrote expires once the last of them has gone."""

from __future__ import annotations

import json
import secrets
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.request import urlopen

import pytest

from rallypoint.elastic.api import RendezvousParameters
from rallypoint.elastic.legacy_etcd import protocol
from rallypoint.elastic.registry import get_rendezvous_handler
from tests.support.etcd_servers import Cluster, running, wait_until

ROOTS = {"etcd-v2": "/torch/elastic", "etcd": "/torchelastic/p2p"}
TWO_HOURS_S = 7200


def expiring(node: dict[str, Any], within_s: float | None = None) -> dict[str, float | None]:
    """Every key below a directory, and after how many seconds it expires, by itself or with a directory above it."""
    times = [time for time in (node.get("ttl"), within_s) if time is not None]
    left_s = min(times, default=None)
    if not node.get("dir"):
        return {node["key"]: left_s}
    return {key: time for child in node.get("nodes", ()) for key, time in expiring(child, left_s).items()}


@pytest.mark.parametrize("backend", ROOTS)
def test_everything_that_a_run_has_written_expires(backend: str) -> None:
    with running("3.5") as cluster:
        params = RendezvousParameters(backend, cluster.endpoint, "run", 3, 3, local_addr="127.0.0.1")
        handlers = [get_rendezvous_handler(params) for _ in range(3)]
        with ThreadPoolExecutor(3) as pool:
            infos = list(pool.map(lambda handler: handler.next_rendezvous(), handlers))
            infos[0].store.set("key", "value")
            assert infos[1].store.add("n", 1) == 1
            url = f"http://{cluster.endpoint}/v2/keys{ROOTS[backend]}?recursive=true"
            with urlopen(url, timeout=30) as page:
                times = expiring(json.load(page)["node"])
            assert times
            assert all(time is not None and time <= TWO_HOURS_S for time in times.values()), times
            assert all(pool.map(lambda handler: handler.shutdown(), handlers))


def test_the_directory_of_a_run_lives_for_as_long_as_somebody_takes_part(
    one_etcd: Cluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "RUN_TTL_S", 2)
    handler = get_rendezvous_handler(
        RendezvousParameters("etcd", one_etcd.endpoint, name, 1, 1, local_addr="127.0.0.1")
    )
    assert handler.next_rendezvous().world_size == 1
    client, bystander = one_etcd.client(), f"/bystander/{secrets.token_hex(12)}"
    client.write(bystander, "", ttl=4)
    wait_until(lambda: bystander not in client)
    assert f"{ROOTS['etcd']}/run_{name}" in client
    assert handler.shutdown()
    wait_until(lambda: f"{ROOTS['etcd']}/run_{name}" not in client)
