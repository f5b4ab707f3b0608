"""One rank of a gloo process group on our EtcdStore: endpoint, prefix, rank, world size."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

from rallypoint.elastic.etcd_store import EtcdStore
from rallypoint.elastic.etcd_v2_client import make_client, parse_endpoints


def main() -> None:
    endpoint, prefix, rank, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    store = EtcdStore(make_client(parse_endpoints(endpoint)), prefix)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    total = torch.tensor([rank + 1])
    dist.all_reduce(total)
    pair = dist.new_group([0, 1])
    if rank < 2:
        dist.barrier(pair)
    dist.barrier()
    print(int(total), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
