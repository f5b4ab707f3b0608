"""Rallypoint: the meeting point of a distributed job."""

# The type checker's own name for this; the module `typing` alone would be a third of the time that this import takes.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from rallypoint.api import Place, join
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
    from rallypoint.worker_place import Worker, worker

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
    "Worker",
    "__version__",
    "get_rendezvous_handler",
    "join",
    "worker",
]
_MODULES = {"Place": "api", "join": "api", "Worker": "worker_place", "worker": "worker_place"}
"""Where a public name is; all others are in `elastic`."""


def __getattr__(name: str) -> object:
    """A public name is imported when it is first used: a program that only mentions the package does not wait for it."""
    if name not in __all__:
        raise AttributeError(f"module 'rallypoint' has no attribute {name!r}")
    from importlib import import_module

    module = import_module(f"rallypoint.{_MODULES.get(name, 'elastic')}")
    globals()[name] = found = getattr(module, name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
