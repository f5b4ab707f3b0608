"""Whether a crash may be followed by another start: by its cause, within a window, as long as there is progress.  Pure."""

from __future__ import annotations

from collections import deque

import msgspec

__all__ = ["Decision", "RestartPolicy"]


class Decision(msgspec.Struct, frozen=True):
    """Whether to start again, and why or why not."""

    restart: bool
    why: str


class RestartPolicy:
    """Counts crashes of this node's workers; the loss of a peer, a newcomer or a preemption is no crash."""

    def __init__(self, max_restarts: int, window_s: float | None, no_progress: int) -> None:
        self._max, self._window_s, self._no_progress = max_restarts, window_s, no_progress
        self._crashes: deque[float] = deque()
        self._last, self._alike = "", 0

    def crashed(self, signature: str, now: float) -> Decision:
        """A worker crashed; `signature` is what it died of, and where."""
        if self._window_s is not None:
            while self._crashes and self._crashes[0] < now - self._window_s:
                self._crashes.popleft()
        if (row := self.failed(signature)) is not None:
            return row
        if len(self._crashes) >= self._max:
            within = "" if self._window_s is None else f" within {self._window_s:g} s"
            return Decision(False, f"all {self._max} restarts are used up{within}")
        self._crashes.append(now)
        return Decision(True, f"restart {len(self._crashes)} of {self._max}")

    def failed(self, signature: str) -> Decision | None:
        """A worker failed, on whatever node; what to do if it is the same failure again and again, None if it is not."""
        self._alike = self._alike + 1 if signature == self._last else 1
        self._last = signature
        if self._no_progress and self._alike >= self._no_progress:
            return Decision(False, f"the same failure came {self._alike} times in a row: {signature}")
        return None

    def progressed(self) -> None:
        """A round ended without a failure: the next one is not in a row with the last."""
        self._last, self._alike = "", 0
