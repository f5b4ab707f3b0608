"""Rallypoint: the meeting point of a distributed job."""

from typing import TYPE_CHECKING, Any

from rallypoint.elastic import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStateError,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
    get_rendezvous_handler,
)

if TYPE_CHECKING:
    from rallypoint.elastic.place import Place, join

__version__ = "0.1.0"

__all__ = [
    "Place",
    "RendezvousClosedError",
    "RendezvousConnectionError",
    "RendezvousError",
    "RendezvousGracefulExitError",
    "RendezvousHandler",
    "RendezvousInfo",
    "RendezvousParameters",
    "RendezvousStateError",
    "RendezvousStoreInfo",
    "RendezvousTimeoutError",
    "__version__",
    "get_rendezvous_handler",
    "join",
]


def __getattr__(name: str) -> Any:
    """What needs an event loop is imported when it is first used, so that importing the package stays quick."""
    if name in ("Place", "join"):
        from rallypoint.elastic import place

        return getattr(place, name)
    raise AttributeError(f"module 'rallypoint' has no attribute {name!r}")
