"""PyTorch's interface on a node's membership: what is the same whichever kind of membership it is."""

from __future__ import annotations

import sys
from typing import Protocol

from rallypoint.core.model import Reason
from rallypoint.elastic.api import RendezvousHandler
from rallypoint.torch_bridge import presence


class Membership(Protocol):
    """A node's membership in a run, as far as every handler needs it."""

    run_id: str

    def is_closed_now(self) -> bool:
        """Whether the run is closed; the server is asked where it answers."""

    def close_run(self) -> None:
        """Close the run for everybody."""

    def waiting(self) -> int:
        """Rule 6b: from memory, at once."""


class HandlerOnMembership(RendezvousHandler):
    """A handler that asks its membership; how it joins and leaves is left to each kind."""

    _member: Membership

    @presence.in_torch_words_too
    def is_closed(self) -> bool:
        """Whether the run is closed, as the server says now; from memory where it cannot be reached."""
        return self._member.is_closed_now()

    @presence.in_torch_words_too
    def set_closed(self) -> None:
        """Close the run for everybody."""
        self._member.close_run()

    @presence.in_torch_words_too
    def num_nodes_waiting(self) -> int:
        """Rule 6b: from memory, at once."""
        return self._member.waiting()

    def get_run_id(self) -> str:
        """The run's name."""
        return self._member.run_id


def reason_to_leave() -> Reason:
    """With an exception under way a node withdraws, otherwise it has finished (rule 8)."""
    return Reason.FINISHED if sys.exc_info()[0] is None else Reason.WITHDREW
