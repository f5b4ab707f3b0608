"""The plug-in: torchrun finds these functions by the entry-point group `torchrun.handlers` and asks each for a creator.

torch loads every plug-in while it starts, and only logs one that fails: so nothing is imported here before a handler is
wanted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def rallypoint() -> Callable[[Any], Any]:
    """The creator of the backend `rallypoint`; the endpoint may be any that `rallypoint.join` takes."""

    def create(params: Any) -> Any:
        from rallypoint.backends.endpoints import backend_at
        from rallypoint.torchrun.backend import create_handler

        return create_handler(backend_at(params.endpoint), params)

    return create


def etcd_v3() -> Callable[[Any], Any]:
    """The creator of the backend `etcd-v3`."""

    def create(params: Any) -> Any:
        from rallypoint.backends.etcd_v3 import ETCD_V3
        from rallypoint.torchrun.backend import create_handler

        return create_handler(ETCD_V3, params)

    return create
