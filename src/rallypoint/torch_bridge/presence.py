"""What a program that has imported torch gets besides: handlers of torch's class, and events in torch's stream.

torch is never imported for it: a program that has not imported it cannot ask for its classes either.
"""

from __future__ import annotations

import socket
import sys

from rallypoint import events
from rallypoint.torch_bridge.errors import TORCH_API

_EVENTS = "torch.distributed.elastic.events"

_FAILED = ("backend failed", "handler failed", "join failed", "closing failed", "lost")


def share_events() -> None:
    """From now on, where torch is there, its stream gets our events."""
    if _EVENTS in sys.modules:
        events.add_listener(_tell_torch)


def greet(handler_class: type) -> None:
    """A handler is made: where torch is there, its class counts as one of torch's, and torch hears of events."""
    share_events()
    # It is not there yet while torch is just being imported.
    theirs = getattr(sys.modules.get(TORCH_API), "RendezvousHandler", None)
    if theirs is not None and not issubclass(handler_class, theirs):
        theirs.register(handler_class)


def _tell_torch(event: events.Event) -> None:
    """Put an event into torch's stream, which goes nowhere unless the program has set it up."""
    theirs = sys.modules[_EVENTS]
    state = "FAILED" if event.kind in _FAILED else "SUCCEEDED" if event.kind == "closed" else "RUNNING"
    theirs.construct_and_record_rdzv_event(
        run_id=event.run_id,
        message=event.why,
        node_state=theirs.NodeState[state],
        name=f"rallypoint.{event.kind}",
        hostname=socket.gethostname(),  # left to itself, torch asks the name service, which may take its time
        rank=event.details.get("rank"),
    )
