"""What becomes of open stores in a child by fork: whatever belongs to the parent is let go of, once, when the child begins.

So no call has to ask in which process it is, and nothing that the child does, its end included, reaches the parent's
connections.  A child closes its copies of them: it would otherwise keep them open when the parent dies, and those at the
other end would not notice.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Held(Protocol):
    """Something that a process holds and that its child by fork must not touch."""

    def forked(self) -> None:
        """In the child, before anything else: let go of it.  A lock may be held by a thread that is not there."""


_held: weakref.WeakSet[Held] = weakref.WeakSet()


def let_go_in_children(held: Held) -> None:
    """From now on, have this let go of in every child."""
    _held.add(held)


def opened_before(what: str, opened_in: int, why: str, instead: str) -> str:
    """What to say in a child of something that its parent has opened."""
    return (
        f"{what} was opened in process {opened_in} and is used in process {os.getpid()}, its child by fork: {why}; "
        f"{instead}, or start the child with 'spawn' or exec"
    )


def _after_fork() -> None:
    for held in list(_held):
        held.forked()


os.register_at_fork(after_in_child=_after_fork)
