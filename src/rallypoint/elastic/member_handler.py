"""PyTorch's interface on a node's membership, and the creators of our own backends `rallypoint` and `etcd-v3`."""

from __future__ import annotations

import sys
from typing import Any

from rallypoint.backends.endpoints import backend_at
from rallypoint.backends.membership import MemberBackend
from rallypoint.client.member import Member
from rallypoint.elastic.api import RendezvousHandler, RendezvousInfo, RendezvousParameters, RendezvousStoreInfo
from rallypoint.messages.notices import Placed
from rallypoint.messages.types import Reason
from rallypoint.torch_bridge import presence
from rallypoint.torch_bridge.errors import in_torch_words_too


class HandlerOnMembership(RendezvousHandler):
    """A handler that asks its membership; how it joins is left to each kind."""

    _member: Member

    @in_torch_words_too
    def is_closed(self) -> bool:
        """Whether the run is closed, as the server says now; from memory where it cannot be reached."""
        return self._member.is_closed_now()

    @in_torch_words_too
    def set_closed(self) -> None:
        self._member.close_run()

    @in_torch_words_too
    def num_nodes_waiting(self) -> int:
        """Rule 6b: from memory, at once."""
        return self._member.waiting()

    def get_run_id(self) -> str:
        return self._member.run_id

    @in_torch_words_too
    def shutdown(self) -> bool:
        """Leave: with an exception under way the node withdraws, otherwise it has finished (rule 8)."""
        return self._member.leave(Reason.FINISHED if sys.exc_info()[0] is None else Reason.WITHDREW)

    def _info(self, placed: Placed, store: Any = None) -> RendezvousInfo:
        """A place, with this store for the workers or the round's own."""
        round_store = self._member.store(placed)
        info = RendezvousStoreInfo(round_store.host, round_store.port)
        return RendezvousInfo(round_store if store is None else store, placed.rank, placed.size, info)


class MemberHandler(HandlerOnMembership):
    """A node's membership in a run, as PyTorch's interface has it."""

    def __init__(self, backend: MemberBackend, params: RendezvousParameters) -> None:
        self._backend = params.backend
        self._member, self._join_timeout_s = backend.open(
            params.endpoint, params.run_id, params.min_nodes, params.max_nodes, params.local_addr, params.config
        )
        presence.greet(type(self))

    def get_backend(self) -> str:
        return self._backend

    @property
    def use_agent_store(self) -> bool:
        """Whether the workers may use the store that rank 0 serves; where nobody serves one, they start their own there."""
        return self._member.serves_store

    @in_torch_words_too
    def next_rendezvous(self) -> RendezvousInfo:
        return self._info(self._member.join(self._join_timeout_s))


def create_rallypoint_handler(params: RendezvousParameters) -> MemberHandler:
    """The creator of the backend `rallypoint`; the endpoint may be any that `rallypoint.join` takes."""
    return MemberHandler(backend_at(params.endpoint), params)


def create_etcd_v3_handler(params: RendezvousParameters) -> MemberHandler:
    """The creator of the backend `etcd-v3`."""
    from rallypoint.backends.etcd_v3 import ETCD_V3

    return MemberHandler(ETCD_V3, params)
