"""One rank of a gloo process group on the store on etcd v3: endpoints, prefix, rank, world size."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

from rallypoint.etcd_client import EtcdClient
from rallypoint.stores import EtcdV3Store
from rallypoint.torch_bridge.etcd_v3_store import EtcdV3StoreForTorch


def main() -> None:
    endpoints, prefix, rank, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    with EtcdClient(endpoints) as client:
        store = EtcdV3StoreForTorch(EtcdV3Store(client, prefix))
        dist.init_process_group("gloo", store=dist.PrefixStore("job", store), rank=rank, world_size=size)
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
