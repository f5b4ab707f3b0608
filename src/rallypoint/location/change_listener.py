"""Hearing of changes of a register, on a thread of its own and one wait at a time, while somebody wants to hear."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from rallypoint.location.call_queue import CallQueue
from rallypoint.location.register import Register, Token

log = logging.getLogger("rallypoint.server")

LISTEN_S = 30.0
"""For how long one call listens for changes."""
LISTEN_AGAIN_S = 1.0


class ChangeListener:
    """Waits for changes of a register; `ended` is called on the loop when a wait has ended, with a token of what is there.

    The token is None where nothing was heard: the time passed, or the register cannot be reached.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, register: Register, ended: Callable[[Token | None], None]
    ) -> None:
        self._loop = loop
        self._register = register
        self._ended = ended
        self._calls: CallQueue | None = None
        self._is_waiting = self._is_closed = False

    def listen(self, token: Token | None) -> None:
        """Wait for a change since this token, unless a wait is under way."""
        if self._is_waiting or self._is_closed:
            return
        if self._calls is None:
            self._calls = CallQueue(self._loop, "rallypoint-watch")
        self._is_waiting = True
        register = self._register
        self._calls.call(lambda: register.wait(token, LISTEN_S), self._waited)

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
