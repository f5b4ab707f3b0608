"""`rallypoint.worker()`: a worker's place in the world, from the environment that `rallypoint run` gave it.

Nothing is connected to the rendezvous: a worker that looks at its rank costs nobody anything.  The store is connected when it
is first used.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from rallypoint.net import parse_endpoint
from rallypoint.stores import PrefixStore, TcpStore

__all__ = ["Worker", "worker"]


class Worker:
    """Where this worker stands, in the round that it was started for."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    @property
    def run_id(self) -> str:
        """The name of the run."""
        return self._environment["RALLYPOINT_RUN_ID"]

    @property
    def round(self) -> int:
        """The number of the round; it only grows."""
        return int(self._environment["RALLYPOINT_ROUND"])

    @property
    def fence(self) -> str:
        """A text that names this world and no other: write it beside a checkpoint (rule 9)."""
        return self._environment["RALLYPOINT_FENCE"]

    @property
    def rank(self) -> int:
        """This worker's rank among all workers."""
        return int(self._environment["RANK"])

    @property
    def world_size(self) -> int:
        """How many workers there are."""
        return int(self._environment["WORLD_SIZE"])

    @property
    def local_rank(self) -> int:
        """This worker's rank among those of its node."""
        return int(self._environment["LOCAL_RANK"])

    @property
    def node_rank(self) -> int:
        """The rank of its node."""
        return int(self._environment["GROUP_RANK"])

    def peers(self) -> list[dict[str, Any]]:
        """The nodes of the world in the order of their ranks: rank, name, address, workers."""
        peers: list[dict[str, Any]] = json.loads(Path(self._environment["RALLYPOINT_PEERS"]).read_text())
        return peers

    @cached_property
    def store(self) -> PrefixStore:
        """The round's bootstrap store, shared by all workers of the round and of no other."""
        host, port = parse_endpoint(self._environment["RALLYPOINT_STORE"], 0)
        secret = self._environment.get("RALLYPOINT_STORE_SECRET", "")
        return PrefixStore(f"workers/{self.fence}", TcpStore(host, port, secret=secret))


def worker(environment: Mapping[str, str] = os.environ) -> Worker:
    """This worker's place; RuntimeError where the process was not started by `rallypoint run`."""
    if "RALLYPOINT_FENCE" not in environment:
        raise RuntimeError(
            "this process was not started by `rallypoint run`, so it has no place in a world: start it that way, or use "
            "rallypoint.join"
        )
    return Worker(environment)
