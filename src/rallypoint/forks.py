"""What becomes of open connections in a child by fork: the child releases whatever belongs to its parent, once, when it begins.

So nothing that the child does, its end included, reaches the parent's connections.  A child closes its copies of them: it
would otherwise keep them open when the parent dies, and the other end would not notice.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Protocol


class ForkAware(Protocol):
    """Something that a process holds and that its child by fork must not touch."""

    def forked(self) -> None:
        """In the child, before anything else: release it.  A lock may be held by a thread that does not exist there."""


_held: weakref.WeakSet[ForkAware] = weakref.WeakSet()


def release_in_children(held: ForkAware) -> None:
    """From now on, call `held.forked()` in every child."""
    _held.add(held)


def run_in_children(action: Callable[[], None]) -> Callable[[], None]:
    """From now on, run this in every child; usable as a decorator."""
    os.register_at_fork(after_in_child=action)
    return action


class OpenedIn:
    """The process in which something was opened."""

    def __init__(self) -> None:
        self.pid = os.getpid()

    @property
    def is_this_process(self) -> bool:
        """Whether the caller runs in that process, and not in a child by fork."""
        return os.getpid() == self.pid

    def refusal(self, what: str, why: str, instead: str = "") -> str:
        """What to say in a child of something that its parent has opened."""
        advice = f"{instead}, or start" if instead else "start"
        return (
            f"{what} was opened in process {self.pid} and is used in process {os.getpid()}, its child by fork: {why}; "
            f"{advice} the child with 'spawn' or exec"
        )


@run_in_children
def _release_all() -> None:
    for held in list(_held):
        held.forked()
