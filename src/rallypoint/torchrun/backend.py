"""The backends under torchrun: a membership of ours, in torch's own types."""

from __future__ import annotations

import os
from typing import Any

from rallypoint.elastic.api import RendezvousParameters
from rallypoint.elastic.member_backend import MemberBackend
from rallypoint.torch_bridge.handler import TorchHandler
from rallypoint.torchrun.rendezvous import AgentRendezvous

# torchrun takes the rank of a node by argument or by this variable, and tells it to no backend but `static`.
NODE_RANK = "PET_NODE_RANK"


def create_handler(backend: MemberBackend, given: Any) -> TorchHandler:
    """A handler of a backend's; takes torch's parameters."""
    params = our_parameters(given)
    if not params.run_id:
        raise ValueError("the run id is empty: give every job a name of its own, by `--rdzv-id`")
    member, join_timeout_s = backend.open(params, under_torch=True)
    return TorchHandler(AgentRendezvous(params.backend, member, join_timeout_s))


def our_parameters(given: Any) -> RendezvousParameters:
    """torch's parameters as ours, with the wanted rank from the environment where it is not among the options."""
    config = dict(given.config)
    wanted = os.environ.get(NODE_RANK, "").strip()
    if wanted:
        config.setdefault("rank", wanted)
    return RendezvousParameters(
        given.backend,
        given.endpoint,
        given.run_id,
        given.min_nodes,
        given.max_nodes,
        given.local_addr,
        **config,
    )
