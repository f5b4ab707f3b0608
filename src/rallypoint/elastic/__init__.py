"""The surface of `torch.distributed.elastic.rendezvous`, without torch: change the import path, keep the code."""

from rallypoint.elastic.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousHandler,
    RendezvousHandlerCreator,
    RendezvousHandlerRegistry,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStateError,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
    rendezvous_handler_registry,
)
from rallypoint.elastic.lazy_names import lazy_names
from rallypoint.elastic.registry import get_rendezvous_handler

__all__ = [
    "RendezvousClosedError",
    "RendezvousConnectionError",
    "RendezvousError",
    "RendezvousGracefulExitError",
    "RendezvousHandler",
    "RendezvousHandlerCreator",
    "RendezvousHandlerRegistry",
    "RendezvousInfo",
    "RendezvousParameters",
    "RendezvousStateError",
    "RendezvousStoreInfo",
    "RendezvousTimeoutError",
    "get_rendezvous_handler",
    "rendezvous_handler_registry",
]

# PyTorch's package has these two as soon as it is imported; here each is imported when it is first used.
__getattr__ = lazy_names(__name__, "dynamic_rendezvous", "utils")
