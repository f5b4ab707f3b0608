"""The plug-in: torchrun finds these functions by the entry-point group `torchrun.handlers` and asks each for a creator.

torch loads every plug-in while it starts, and only logs one that fails: so nothing is imported here before a handler is
wanted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def rallypoint() -> Callable[[Any], Any]:
    """The creator of the backend `rallypoint`."""
    return _create


def _create(params: Any) -> Any:
    from rallypoint.torchrun.backend import create_handler

    return create_handler(params)
