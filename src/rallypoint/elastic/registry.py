"""Which backends there are: ours, loaded when first used, and those of other packages, looked for when a name is new.

Another package brings a backend by an entry point in the group `torchrun.handlers`, as it does for PyTorch: named like
the backend, it points to a function without arguments that returns the creator.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pkgutil import resolve_name
from typing import TYPE_CHECKING

import msgspec

from rallypoint.elastic.api import (
    Offers,
    RendezvousHandler,
    RendezvousHandlerCreator,
    RendezvousParameters,
    rendezvous_handler_registry,
)
from rallypoint.elastic.lazy_names import lazy_names
from rallypoint.torch_bridge.errors import in_torch_words_too

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["get_rendezvous_handler"]

handler_registry = rendezvous_handler_registry

__getattr__ = lazy_names(__name__, "create_handler")

log = logging.getLogger(__name__)

PLUG_IN_GROUP = "torchrun.handlers"

_FOR_TORCH = "rallypoint.torchrun:"

_OURS = {
    "c10d": "rallypoint.elastic.c10d_rendezvous_backend:create_handler",
    "etcd": "rallypoint.elastic.etcd_rendezvous:create_rdzv_handler",
    "etcd-v2": "rallypoint.elastic.etcd_rendezvous_backend:create_handler",
    "etcd-v3": "rallypoint.elastic.member_handler:create_etcd_v3_handler",
    "static": "rallypoint.elastic.static_tcp_rendezvous:create_rdzv_handler",
    "rallypoint": "rallypoint.elastic.member_handler:create_rallypoint_handler",
}


@in_torch_words_too
def get_rendezvous_handler(params: RendezvousParameters) -> RendezvousHandler:
    """The handler for the run that `params` describe, made by the backend that they name."""
    return rendezvous_handler_registry.create_handler(params)


class _LateCreator(msgspec.Struct, frozen=True):
    """Creates handlers by "module:function", imported when the first one is wanted."""

    target: str

    def __call__(self, params: RendezvousParameters) -> RendezvousHandler:
        creator: RendezvousHandlerCreator = resolve_name(self.target)
        return creator(params)


def installed_handlers() -> Offers:
    """What other packages offer, by name; nothing of theirs is imported before it is asked for."""
    from importlib import metadata  # slow to import, and seldom needed

    try:
        entries = metadata.entry_points(group=PLUG_IN_GROUP)
    except Exception:
        log.warning(
            "Backends of other packages are left out: the list of what is installed cannot be read.", exc_info=True
        )
        return {}
    offers: dict[str, Callable[[], RendezvousHandlerCreator]] = {}
    for entry in entries:
        if entry.name in _OURS and entry.value.startswith(_FOR_TORCH):
            continue  # it makes torch's handlers, for torch's registry; ours of the same name is registered here
        # Of two packages that bring the same name, the one found first on the path counts, as for modules.
        offers.setdefault(entry.name, partial(_load, entry))
    return offers


def _load(entry: EntryPoint) -> RendezvousHandlerCreator:
    """What creates the handlers of another package; ValueError says why it cannot be loaded."""
    try:
        creator: RendezvousHandlerCreator = entry.load()()
        if not callable(creator):
            raise TypeError(f"{entry.value} returned {creator!r}, which cannot be called to create a handler")
    except (Exception, SystemExit) as exc:
        package = entry.dist.name if entry.dist else "unknown"
        raise ValueError(
            f"The backend {entry.name!r} is not registered: the package {package} brings it as {entry.value}, but "
            f"loading that failed with {type(exc).__name__}: {exc}. Repair, update or remove the package, or use "
            f"another backend."
        ) from exc
    return creator


for _backend, _target in _OURS.items():
    rendezvous_handler_registry.register(_backend, _LateCreator(_target))
