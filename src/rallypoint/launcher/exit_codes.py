"""How a launcher ends: 0, the first failing worker's own code, or one of these; docs/launcher.md has them as a table."""

from __future__ import annotations

from enum import IntEnum


class LaunchExit(IntEnum):
    """Codes of the launcher's own, where no worker failed."""

    DONE = 0
    USAGE = 2
    JOIN_TIMEOUT = 80
    """The other nodes did not come in time: trying again may help."""
    REFUSED = 81
    """The rendezvous refused this node: trying again does not help."""
    CLOSED = 82
    """Somebody closed the run."""
    PREEMPTED = 83
    """A signal asked this node to go, and it went in order: try again."""
    GAVE_UP = 84
    """A worker could not be ended, or the same failure came again and again: do not try again here."""
    INTERRUPTED = 130
