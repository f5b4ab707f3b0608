"""A virtual network: every message may be delayed, lost, overtaken or delivered twice; links can be cut."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Network:
    """Loss, duplication and delay of messages.  Delays are independent, so that a message can overtake another."""

    chance: random.Random
    delay_s: tuple[float, float] = (0.001, 0.001)
    loss: float = 0.0
    twice: float = 0.0
    cut: set[str] = field(default_factory=set)
    """Nodes that neither hear the server nor are heard."""
    deaf: set[str] = field(default_factory=set)
    """Nodes that are heard but do not hear."""

    def deliveries(self, node: str, *, to_node: bool) -> Iterator[float]:
        """The delays with which copies of one message arrive; none if it is lost."""
        if node in self.cut or (to_node and node in self.deaf):
            return
        if self.loss and self.chance.random() < self.loss:
            return
        yield self.delay()
        if self.twice and self.chance.random() < self.twice:
            yield self.delay() * 3

    def delay(self) -> float:
        """How long one message takes."""
        low, high = self.delay_s
        return low if low == high else self.chance.uniform(low, high)

    def calm(self) -> None:
        """No more faults: short delays, nothing lost, nothing cut."""
        self.delay_s, self.loss, self.twice = (0.001, 0.001), 0.0, 0.0
        self.cut.clear()
        self.deaf.clear()

    @property
    def reliable(self) -> bool:
        """Whether nothing is lost, cut or late at the moment."""
        return not self.loss and not self.cut and not self.deaf and self.delay_s[1] < 0.5
