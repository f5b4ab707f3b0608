"""Which ranks of a world the nodes of this process have: they go when the process goes (rules 14, 17f)."""

from __future__ import annotations

from collections.abc import Sequence

from rallypoint.client.session import Session
from rallypoint.client.view import State

_OUT = (State.CLOSED, State.REFUSED, State.FENCED)


def ranks_of_process(sessions: Sequence[Session]) -> tuple[str, tuple[int, ...]]:
    """The seal id of the newest world that nodes of this process are in, and their ranks in it."""
    worlds = [session.view.world for session in sessions if session.view.state not in _OUT]
    known = [world for world in worlds if world is not None]
    if not known:
        return "", ()
    seal_id = max(known, key=lambda world: world.round).seal_id
    return seal_id, tuple(sorted({world.rank for world in known if world.seal_id == seal_id}))
