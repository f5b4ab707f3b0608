"""How often to look, where nothing rings, and how long to step back after a conflict.  Chance comes from the shell."""

from __future__ import annotations

FIRST_POLL_S = 0.005
GROWTH = 1.4
FIRST_STEP_BACK_S = 0.002
LONGEST_STEP_BACK_S = 2.0


class Pace:
    """The pause before the next look: short after something happened, longer while nothing does."""

    def __init__(self, longest_s: float) -> None:
        self.longest_s = longest_s
        self._next_s = FIRST_POLL_S

    def reset(self) -> None:
        """Something happened."""
        self._next_s = FIRST_POLL_S

    def pause_s(self, chance: float, longest_s: float | None = None) -> float:
        """The next pause, with some chance in it, so that many readers do not come at once."""
        limit_s = self.longest_s if longest_s is None else min(self.longest_s, longest_s)
        pause_s = min(self._next_s, limit_s)
        self._next_s = min(self._next_s * GROWTH, self.longest_s)
        return pause_s * (0.75 + chance / 2)


def step_back_s(conflicts: int, write_s: float, chance: float) -> float:
    """How long to step back after so many conflicts in a row, where one write takes `write_s`.

    With each conflict the guess of how many others there are doubles: they share the time of as many writes.
    """
    others = 2.0 ** min(conflicts, 10)
    return chance * min(others * max(write_s, FIRST_STEP_BACK_S), LONGEST_STEP_BACK_S)
