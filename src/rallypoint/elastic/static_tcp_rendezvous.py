"""PyTorch's `static` backend: ranks are given, nobody is awaited but the store; there is one world, and it never changes."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

from rallypoint.backends.c10d_stores import serve_tcp_store, use_tcp_store
from rallypoint.backends.options import number, read_options, seconds
from rallypoint.elastic.api import RendezvousHandler, RendezvousInfo, RendezvousParameters, RendezvousStoreInfo
from rallypoint.elastic.lazy_names import lazy_names
from rallypoint.elastic.utils import _failures_recorded, _part_of, parse_rendezvous_endpoint
from rallypoint.errors import RendezvousConnectionError
from rallypoint.stores.errors import StoreError
from rallypoint.torch_bridge import presence, stores_c10d
from rallypoint.torch_bridge.errors import in_torch_words_too

__all__ = ["StaticTCPRendezvous", "create_rdzv_handler"]

__getattr__ = lazy_names(__name__, "PrefixStore", "Store", "TCPStore")

logger = logging.getLogger("rallypoint")

BACKEND = "static"
DEFAULT_TIMEOUT_S = 600.0

RANK = number("rank", None, "this node's rank", at_least=0)
TIMEOUT = seconds("timeout", DEFAULT_TIMEOUT_S, "how long the others are waited for")
OPTIONS = (RANK, TIMEOUT)


class StaticTCPRendezvous(RendezvousHandler):
    """A node whose rank is given: rank 0 serves the store at the endpoint, the others connect to it."""

    def __init__(
        self, master_addr: str, master_port: int, rank: int, world_size: int, run_id: str, timeout: float
    ) -> None:
        presence.greet(type(self))
        self.master_addr, self.master_port = master_addr, master_port
        self.rank, self.world_size, self.run_id = rank, world_size, run_id
        self.timeout = timedelta(seconds=timeout)
        self._store: Any = None

    def get_backend(self) -> str:
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """The workers use the store that rank 0 serves."""
        return True

    @in_torch_words_too
    def next_rendezvous(self) -> RendezvousInfo:
        """This node's place, which is as it was given; waits for the store only."""
        if self._store is None:
            with _failures_recorded("join failed", self.run_id, BACKEND):
                self._store = self._open()
        info = RendezvousStoreInfo(self.master_addr, self.master_port)
        return RendezvousInfo(_part_of(self._store, self.run_id), self.rank, self.world_size, info)

    def is_closed(self) -> bool:
        """Never: there is nothing to close."""
        return False

    def set_closed(self) -> None:
        """Nothing: there is nothing to close."""

    def num_nodes_waiting(self) -> int:
        """Nobody ever does: ranks are given."""
        return 0

    def get_run_id(self) -> str:
        return self.run_id

    def shutdown(self) -> bool:
        """Nothing is held but the store, which others may still need."""
        return True

    def _open(self) -> Any:
        host, port, timeout = self.master_addr, self.master_port, self.timeout
        if self.rank != 0:
            return use_tcp_store(host, port, timeout, with_torch=stores_c10d.has_torch())
        try:
            return serve_tcp_store(host, port, timeout, with_torch=stores_c10d.has_torch())
        except (StoreError, RuntimeError, OSError) as exc:
            raise RendezvousConnectionError(
                f"rank 0 cannot serve the store on {host}:{port}: {exc}; is that an address of this machine, and the "
                f"port free?"
            ) from exc


@in_torch_words_too
def create_rdzv_handler(params: RendezvousParameters) -> StaticTCPRendezvous:
    """The creator of the backend `static`: wants `rank` among the options and host:port as the endpoint."""
    if params.config.get("rank") is None:
        raise ValueError("The option 'rank' is missing: each node of a static run says which one it is (--node-rank).")
    options = read_options(BACKEND, params.config, OPTIONS, lenient=True)
    endpoint = (params.endpoint or "").strip()
    if not endpoint:
        raise ValueError(
            "The endpoint is missing: a static run needs rank 0's host:port (--master-addr, --master-port)."
        )
    host, port = parse_rendezvous_endpoint(endpoint, -1)
    if port == -1:
        raise ValueError(f"The endpoint {endpoint!r} has no port: write host:port (--master-port).")
    rank = options[RANK]
    assert rank is not None, "it is there, or it was refused above"
    if rank >= params.max_nodes:
        raise ValueError(
            f"The option 'rank' is {rank}, but of {params.max_nodes} nodes the last is {params.max_nodes - 1}."
        )
    return StaticTCPRendezvous(host, port, rank, params.max_nodes, params.run_id, options[TIMEOUT])
