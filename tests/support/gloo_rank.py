"""One rank of a gloo process group on our EtcdStore: endpoint, prefix, rank, world size."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist

from rallypoint.backends.etcd_v2_client import make_client
from rallypoint.elastic.etcd_store import EtcdStore
from rallypoint.net import parse_endpoints


def sum_up(store: Any, rank: int, size: int) -> int:
    """Take part in a process group on a store, in groups within it, and in its barriers: 1 + 2 + … + size."""
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    total = torch.tensor([rank + 1])
    dist.all_reduce(total)
    pair = dist.new_group([0, 1])
    if rank < 2:
        dist.barrier(pair)
    dist.barrier()
    dist.destroy_process_group()
    return int(total)


def main() -> None:
    endpoint, prefix, rank, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    print(sum_up(EtcdStore(make_client(parse_endpoints(endpoint, 2379)), prefix), rank, size), flush=True)


if __name__ == "__main__":
    main()
