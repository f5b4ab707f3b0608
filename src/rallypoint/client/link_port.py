"""What a membership asks of the hosting below it: a link to the run's authority, whatever that is.

A link has threads of its own.  It keeps the node's view up to date and wakes whoever waits for it to change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from rallypoint.core.model import Node, Reason
from rallypoint.core.node import View
from rallypoint.core.notices import Placed
from rallypoint.protocol import Peer

Prepare = Callable[[Node, Callable[[], str]], Node]
"""Completes a node before it joins, given how to learn the address by which this machine reaches the authority.

Raises RendezvousError where the node cannot take part as it is; a link makes that its `refusal`.
"""


class Link(Protocol):
    """One node's link to the authority of one run.  Methods may be called from any thread."""

    @property
    def view(self) -> View:
        """What the node knows at the moment."""

    @property
    def trouble(self) -> str:
        """Why the authority cannot be reached, or could not be when it was tried last; half a sentence."""

    @property
    def refusal(self) -> str | None:
        """Why there is no use in trying again; None while there is hope.  A new `join` tries anew."""

    @property
    def is_connected(self) -> bool:
        """Whether the authority hears this node at the moment, as far as is known."""

    def join(self, timeout_s: float) -> None:
        """Ask for a place in the next world, connecting first; returns at once, the view tells what became of it.

        A node that was fenced asks under a new identity (rule 9).  One that cannot join any more asks for nothing.
        """

    def leave(self, reason: Reason, why: str = "") -> None:
        """Leave for good; returns at once.  The link stays until `close`."""

    def connect(self) -> None:
        """Connect without joining; returns at once."""

    def ask_to_close(self) -> bool:
        """Ask the authority to close the run; False where that cannot even be tried.  `is_heard` tells the rest."""

    def is_heard(self, deadline: float) -> bool:
        """Wait until the authority has heard all that was said up to now; False where it does not in time."""

    def peers(self, placed: Placed, timeout_s: float) -> Iterator[Peer]:
        """The members of a world in the order of their ranks; each page of them may take so long."""

    def wait(self, until: Callable[[View], bool], deadline: float | None = None) -> bool:
        """Wait until the view is as wanted; False where the deadline passes first.

        Whatever the properties above tell wakes it, too: `until` may look at them.
        """

    def where(self) -> str:
        """The authority's address, as it stands in sentences."""

    def check(self) -> None:
        """Raise RendezvousError in a forked child, where the link does not exist."""

    def close(self) -> None:
        """End the link."""


def differs(before: View, after: View) -> bool:
    """Whether somebody may wait for this change; a new sentence alone wakes nobody."""
    if after is before:
        return False
    return (after.state, after.waiting, after.out_since) != (before.state, before.waiting, before.out_since) or (
        after.world is not before.world
    )
