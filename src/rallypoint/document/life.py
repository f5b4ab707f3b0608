"""Signs of life: one node's own beats, and what it makes of the others'.

A sign is a counter that changes with each beat; who is silent is judged on the reader's own clock (see `silence`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rallypoint.core.model import Run, Settings
from rallypoint.document import silence as silences
from rallypoint.document.line import is_here, turn_s
from rallypoint.document.silence import Silence, is_evicted

OFTEN = 0.25
FEW = 16
"""The signs of a few are read four times an interval, so that silence is known to begin when it does; of many seldomer."""
EARLY = 0.75
"""With the next beat a look must be due again, although looking took time: or silence would never count."""


class SignsOfLife:
    """What one node has said of itself, and heard of the others, that way."""

    def __init__(self) -> None:
        self.sign = ""
        self.count = 0
        self.beat_at = 0.0
        self.is_evicted = False
        self._beating = False
        self._silence = Silence()
        self._given_up: dict[str, float] = {}

    def forget_others(self) -> None:
        """Nothing that was seen so far counts: after an outage, or where signs are now given elsewhere."""
        self._silence = Silence()
        self._given_up = {}
        self._beating = False

    # One's own ----------------------------------------------------------------------------------------------------

    def next_sign(self, time: float) -> str:
        """The next sign: a counter, and what time it is on the document's clock."""
        return f"{self.count + 1}:{time:.3f}"

    def beat(self, sign: str, now: float, interval_s: float) -> None:
        """A beat beside the document got through, and this stands there now: perhaps that the node was given up."""
        self.is_evicted = is_evicted(sign)
        self._beating = not self.is_evicted
        self.count += 1
        self.sign = sign
        self.beat_at = now + interval_s

    def wrote(self, count: int, now: float, interval_s: float) -> None:
        """A beat in the document stands."""
        self.count = count
        self._beating = True
        self.beat_at = now + interval_s

    # The others' --------------------------------------------------------------------------------------------------

    def must_look(self, now: float, settings: Settings) -> bool:
        """Whether the others' signs are to be read again."""
        looked = self._silence.looked
        return looked is None or now >= looked + self._pause_s(settings)

    def look_in_s(self, now: float, settings: Settings, *, beside: bool) -> float:
        """How long until they are to be read again.

        Those of many are read with one's own beat, and cost no turn more; those in the document are read with it, and
        it must be looked at only when somebody's time is up.
        """
        looked, interval_s = self._silence.looked, settings.heartbeat_interval_s
        if looked is None:
            return 0.0 if beside else interval_s
        pause_s = self._pause_s(settings) if beside else self._patience_s(settings)
        return looked + (interval_s if beside and pause_s >= EARLY * interval_s else pause_s) - now

    def look(
        self, signs: Mapping[str, str], now: float, settings: Settings, run: Run, me: str, *, beside: bool
    ) -> dict[str, str]:
        """Everybody's signs were read: who is to be given up, with the sign that did not change.

        In the document nothing but an edit gives a node up, and this node makes it when it is its turn.
        """
        interval_s = settings.heartbeat_interval_s
        beating = not is_here(run, me) or (self._beating and now <= self.beat_at + interval_s)
        self._silence = silences.look(self._silence, signs, now, interval_s, beating=beating)
        silent = silences.silent(self._silence, settings.heartbeat_timeout_s)
        self._given_up = {node_id: at for node_id, at in self._given_up.items() if node_id in silent}
        for node_id, sign in silent.items():
            if is_evicted(sign) or not beside:
                self._given_up.setdefault(node_id, now + turn_s(run, me))
        return {node_id: sign for node_id, sign in silent.items() if node_id not in self._given_up}

    def gave_up(self, node_id: str, now: float) -> None:
        """A silent node was given up beside the document by this one."""
        self._given_up[node_id] = now

    def losses(self, run: Run, me: str) -> list[str]:
        """Who of those who are here was given up: what the document is to be told; this node itself by others."""
        gone = [node_id for node_id in self._given_up if is_here(run, node_id)]
        return [*gone, me] if self.is_evicted and is_here(run, me) else gone

    def losses_at(self) -> Iterator[float]:
        """When it is this node's turn to tell."""
        yield from self._given_up.values()

    @property
    def anyone_spoke(self) -> bool:
        """Whether any of the others has been heard."""
        return silences.anyone_spoke(self._silence)

    @property
    def longest_silence_s(self) -> float:
        """For how long the most silent of the others has been silent."""
        return max((one.silent_s for one in self._silence.watched.values()), default=0.0)

    def _pause_s(self, settings: Settings) -> float:
        crowd = max(len(self._silence.watched) / FEW, 1.0)
        return min(settings.heartbeat_interval_s * min(OFTEN * crowd, EARLY), self._patience_s(settings))

    def _patience_s(self, settings: Settings) -> float:
        return silences.patience_s(self._silence, settings.heartbeat_timeout_s)
