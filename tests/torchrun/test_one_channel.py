"""Sixteen handlers of torch's in one process, with their stores in etcd, have one connection to etcd between them."""

from __future__ import annotations

import select
import subprocess
import sys
from collections import Counter

import pytest

from tests.etcd.servers import shared
from tests.torchrun.harness import ROOT, connections
from tests.waiting import until

HANDLERS = 16

PROGRAM = """
import sys
from concurrent.futures import ThreadPoolExecutor
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

endpoint, count = sys.argv[1], int(sys.argv[2])
options = dict(store="etcd", join_timeout=40, close_timeout=10, lease_ttl=3, etcd_prefix=sys.argv[3])
pool = ThreadPoolExecutor(count)

def meet(rounds):
    handlers = [
        get_rendezvous_handler(RendezvousParameters("etcd-v3", endpoint, "run", count, count, node_name=f"n{n}", **options))
        for n in range(count)
    ]
    for number in range(rounds):
        infos = list(pool.map(lambda one: one.next_rendezvous(), handlers))
        assert sorted(info.rank for info in infos) == list(range(count))
        stores = [info.store for info in infos]
        list(pool.map(lambda n: stores[n].set(str(n), f"{number}"), range(count)))
        read = list(pool.map(lambda n: stores[n].get(str((n + 1) % count)), range(count)))
        assert read == [str(number).encode()] * count
    return handlers

handlers = meet(3)
print("met", flush=True)
sys.stdin.readline()
assert [handler.num_nodes_waiting() for handler in handlers] == [0] * count
list(pool.map(lambda one: one.shutdown(), handlers))
print("left", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("version", ["3.5", pytest.param("3.4", marks=pytest.mark.soak)])
def test_handlers_of_one_process_share_one_channel(version: str) -> None:
    cluster = shared(version, 3)
    ports = [member.port for member in cluster.members]
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, cluster.endpoints, str(HANDLERS), f"/{version}"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    most = Counter[int]()

    def look() -> int:
        """How many connections to etcd it has; and the most that it ever had to each member."""
        now = Counter(port for port in connections(process.pid) if port in ports)
        most.update({port: count - most[port] for port, count in now.items() if count > most[port]})
        return now.total()

    try:
        until(look, "it is connected")
        reader = process.stdout
        while not _says(reader.fileno()):
            look()
        assert reader.readline() == "met\n"
        assert look() == 1, "whatever the number of handlers"
        process.stdin.write("\n")
        process.stdin.flush()
        assert reader.readline() == "left\n"
        assert max(most.values()) == 1, "one connection to a member at any time"
        process.stdin.write("\n")
    finally:
        process.kill()
        process.communicate()


def _says(descriptor: int) -> bool:
    """Whether there is something to read."""
    return bool(select.select([descriptor], [], [], 0.02)[0])
