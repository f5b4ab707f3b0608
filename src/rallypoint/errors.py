"""The errors of a rendezvous: one small family, each with a sentence that says what to do."""

from __future__ import annotations

__all__ = [
    "RendezvousClosedError",
    "RendezvousConnectionError",
    "RendezvousError",
    "RendezvousGracefulExitError",
    "RendezvousStateError",
    "RendezvousTimeoutError",
]


class RendezvousError(Exception):
    """Anything that can go wrong with a rendezvous; catch this to catch them all."""


class RendezvousClosedError(RendezvousError):
    """The run is closed: nobody can join it any more."""


class RendezvousTimeoutError(RendezvousError):
    """The join deadline passed; the message says which nodes were here and what was awaited."""


class RendezvousConnectionError(RendezvousError):
    """The server of the run cannot be reached; the message says what was tried."""


class RendezvousStateError(RendezvousError):
    """A state or message is damaged, truncated, too large, or written by a newer version."""


class RendezvousGracefulExitError(RendezvousError):
    """A spare was never needed and its run closed well: end with success."""
