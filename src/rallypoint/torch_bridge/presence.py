"""What a program that has imported torch gets besides: errors and handlers of torch's classes, events in torch's stream.

torch is never imported for it: who has not imported it cannot ask for its classes either.
"""

from __future__ import annotations

import functools
import socket
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from rallypoint import events
from rallypoint.errors import RendezvousError

P = ParamSpec("P")
T = TypeVar("T")

_RENDEZVOUS = "torch.distributed.elastic.rendezvous.api"
_EVENTS = "torch.distributed.elastic.events"

_FAILED = ("backend failed", "handler failed", "join failed", "closing failed", "lost")
_SUCCEEDED = ("closed",)
_greeted: set[type] = set()


def in_torch_words_too(function: Callable[P, T]) -> Callable[P, T]:
    """Let the errors of a function be torch's as well as ours."""

    @functools.wraps(function)
    def speak(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except RendezvousError as exc:
            if _RENDEZVOUS not in sys.modules:
                raise
            from rallypoint.torch_bridge.errors import in_torch_words, is_torchs

            if is_torchs(exc):
                raise
            # The same error with another class: it has the same cause, and no other one.
            raise in_torch_words(exc).with_traceback(exc.__traceback__) from exc.__cause__

    return speak


def greet(handler_class: type) -> None:
    """A handler is made: where torch is there, its class counts as one of torch's, and torch hears of events."""
    if _EVENTS in sys.modules:
        events.add_listener(_tell_torch)
    # It is not there yet while torch is just being imported.
    theirs = getattr(sys.modules.get(_RENDEZVOUS), "RendezvousHandler", None)
    if theirs is not None and handler_class not in _greeted:
        _greeted.add(handler_class)
        if not issubclass(handler_class, theirs):
            theirs.register(handler_class)


def _tell_torch(event: events.Event) -> None:
    """Put an event into torch's stream, which goes nowhere unless the program has set it up."""
    theirs = sys.modules.get(_EVENTS)
    if theirs is None:
        return
    states = theirs.NodeState
    state = states.FAILED if event.kind in _FAILED else states.SUCCEEDED if event.kind in _SUCCEEDED else states.RUNNING
    theirs.construct_and_record_rdzv_event(
        run_id=event.run_id,
        message=event.why,
        node_state=state,
        name=f"rallypoint.{event.kind}",
        hostname=socket.gethostname(),  # left to itself, torch asks the name service, which may take its time
        rank=event.details.get("rank"),
    )
