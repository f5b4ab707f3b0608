"""How tests wait for what no event tells of: they look until it is so."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

PATIENCE_S = 40.0
"""How long something may take on a machine that is very busy; a test that passes never waits for so long."""


def until(is_so: Callable[[], object], what: str = "what the test waits for", within_s: float = PATIENCE_S) -> float:
    """Wait for something to come about; how long it took."""
    began = time.monotonic()
    pause = threading.Event()
    while not is_so():
        assert time.monotonic() < began + within_s, f"it did not come about within {within_s} s: {what}"
        pause.wait(0.01)
    return time.monotonic() - began
