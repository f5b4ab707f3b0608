"""The backends under torchrun: a membership of ours, in torch's own types."""

from __future__ import annotations

import os
from typing import Any

from rallypoint.backends.membership import MemberBackend
from rallypoint.torchrun.handler import TorchHandler

# torchrun takes the rank of a node by argument or by this variable, and tells it to no backend but `static`.
NODE_RANK = "PET_NODE_RANK"


def create_handler(backend: MemberBackend, given: Any) -> TorchHandler:
    """A handler of a backend's; takes torch's parameters."""
    if not given.run_id:
        raise ValueError("the run id is empty: give every job a name of its own, by `--rdzv-id`")
    bounds = given.min_nodes, given.max_nodes
    member, join_timeout_s = backend.open(
        given.endpoint, given.run_id, *bounds, given.local_addr, options_of(given), under_torch=True
    )
    return TorchHandler(given.backend, member, join_timeout_s)


def options_of(given: Any) -> dict[str, Any]:
    """The options among torch's parameters, with the wanted rank from the environment where they have none."""
    config = dict(given.config)
    wanted = os.environ.get(NODE_RANK, "").strip()
    if wanted:
        config.setdefault("rank", wanted)
    return config
