"""The calls of a register block, so they are made on daemon threads; the answers come on the event loop."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rallypoint.location.register import Register, Token

log = logging.getLogger("rallypoint.server")

LISTEN_S = 30.0
"""For how long one call listens for changes."""
LISTEN_AGAIN_S = 1.0

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


class ChangeListener:
    """Waits for changes of a register, on a thread of its own and one wait at a time.

    `ended` is called on the loop when a wait has ended, with a token of what is there.  The token is None where nothing was
    heard: the time passed, or the register cannot be reached.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, register: Register, ended: Callable[[Token | None], None]
    ) -> None:
        self._loop, self._register, self._ended = loop, register, ended
        self._calls: CallQueue | None = None
        self._is_waiting = self._is_closed = False

    def listen(self, token: Token | None) -> None:
        """Wait for a change since this token, unless a wait is under way."""
        if self._is_waiting or self._is_closed:
            return
        if self._calls is None:
            self._calls = CallQueue(self._loop, "rallypoint-watch")
        self._is_waiting = True
        self._calls.call(lambda: self._register.wait(token, LISTEN_S), self._waited)

    def stop(self) -> None:
        """Nobody wants to hear of changes now."""
        if self._is_waiting:
            self._register.stop_waiting()

    def close(self) -> None:
        """End for good."""
        self._is_closed = True
        self._register.stop_waiting()
        if self._calls is not None:
            self._calls.close()

    def _waited(self, token: Token | None, problem: Exception | None) -> None:
        if self._is_closed:
            return
        if problem is not None:
            log.debug("changes of the register are not heard: %s", problem)
            self._loop.call_later(LISTEN_AGAIN_S, self._waited, None, None)
            return
        self._is_waiting = False
        self._ended(token)
