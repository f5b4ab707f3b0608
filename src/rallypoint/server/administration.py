"""What an administrator asks for, as an event of the run."""

from __future__ import annotations

from rallypoint.core.events import CloseAsked, Lost
from rallypoint.errors import RendezvousError
from rallypoint.protocol import AskClose, AskEvict
from rallypoint.report import node_to_evict
from rallypoint.server.runs import Hosted


def event_of(ask: AskClose | AskEvict, hosted: Hosted | None) -> CloseAsked | Lost:
    """The event; a RendezvousError says why there is none."""
    if hosted is None:
        raise RendezvousError(f"there is no run {ask.run_id!r}")
    if isinstance(ask, AskClose):
        return CloseAsked(by="an administrator", why=ask.why or "an administrator closed it")
    node_id = node_to_evict(hosted.run, ask.node)
    if node_id is None:
        raise RendezvousError(f"there is no node {ask.node!r} in run {ask.run_id!r}")
    return Lost(node_id, "an administrator evicted it")
