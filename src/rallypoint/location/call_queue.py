"""Blocking calls, one after another, on a daemon thread of their own; the answers come on the event loop."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

Answered = Callable[[Any, Exception | None], None]
"""Takes what a call returned, or the error that it raised."""


class CallQueue:
    """Makes calls in the order in which they are given.  A process that ends does not wait for the one under way."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._orders: queue.SimpleQueue[tuple[Callable[[], Any], Answered] | None] = queue.SimpleQueue()
        with suppress(RuntimeError):  # Python ends, and starts no thread any more
            threading.Thread(target=self._run, name=name, daemon=True).start()

    def call(self, act: Callable[[], Any], answered: Answered) -> None:
        """Make a call; the answer is given on the loop."""
        self._orders.put((act, answered))

    def close(self) -> None:
        """End the thread, once it has made the calls that were given before."""
        self._orders.put(None)

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            act, answered = order
            result: Any = None
            problem: Exception | None = None
            try:
                result = act()
            except Exception as exc:  # noqa: BLE001  # whatever it is, it belongs to the one that asked
                problem = exc
            self._loop.call_soon_threadsafe(answered, result, problem)
