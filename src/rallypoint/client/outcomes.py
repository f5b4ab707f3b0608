"""What a join has led to, and what is said of it (rule 11): the same for every kind of membership."""

from __future__ import annotations

from rallypoint.client.view import State, View
from rallypoint.errors import RendezvousClosedError, RendezvousError, RendezvousGracefulExitError
from rallypoint.messages.notices import Placed
from rallypoint.messages.types import Ending

_PLACED = (State.HOLDS, State.BROKEN)
"""A world may be over before the thread that waits for it has looked: it is a place all the same, and joins again."""

_OVER = (State.CLOSED, State.REFUSED, State.FENCED)


def has_led_to_something(view: View, before: Placed | None) -> bool:
    """Whether a join has; `before` is the world that the node was in when it asked."""
    return view.world is not before if view.state in _PLACED else view.state in _OVER


def place_in(view: View) -> Placed | None:
    """The world that a join has led to."""
    return view.world if view.state in _PLACED else None


def check_open(run_id: str, view: View) -> None:
    """Raise what a run has to say that takes nobody in."""
    if view.state is State.CLOSED:
        if view.stood_by and view.ending is Ending.SUCCEEDED:
            raise RendezvousGracefulExitError(f"run {run_id!r} ended well, and this spare was not needed")
        raise RendezvousClosedError(f"run {run_id!r} is closed as {view.ending.value}: {view.why}")
    if view.state is State.REFUSED:
        raise RendezvousError(f"run {run_id!r} cannot be joined: {view.why}")


def left_before(run_id: str) -> RendezvousError:
    """For who is asked to join and has left for good."""
    return RendezvousError(f"run {run_id!r} was left by this node: a new handler can join it again")


def is_in(view: View, placed: Placed) -> bool:
    """Whether a node is a member of this world, as far as it knows."""
    world = view.world
    return world is not None and world.seal_id == placed.seal_id and view.state in (State.HOLDS, State.FINISHED)


def why_over(run_id: str, view: View, placed: Placed) -> str:
    """Why a world is no longer this node's, and what to do about it."""
    if view.state is State.CLOSED:
        return f"run {run_id!r} is closed as {view.ending.value}: {view.why}"
    if view.world is not None and view.world.seal_id != placed.seal_id:
        return f"this node is in round {view.world.round} by now, which has a store of its own"
    if view.state in (State.BROKEN, State.FENCED):
        return f"{view.why}; join again"
    if view.state in (State.WAITING, State.SPARE):
        return "this node waits for the next round"
    return "this node has left the run"
