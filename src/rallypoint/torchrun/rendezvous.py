"""A membership as torch's agent uses it: rounds with their stores, and reasons for leaving that torch does not give."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from datetime import timedelta

from rallypoint.client.member import Member
from rallypoint.client.round_store import VERDICT_S
from rallypoint.client.view import State
from rallypoint.client.wait_reports import LogReporter, reported
from rallypoint.messages.notices import Placed
from rallypoint.messages.types import Reason
from rallypoint.stores import PrefixStore
from rallypoint.stores.errors import StoreError
from rallypoint.torch_bridge.handler import Departure

log = logging.getLogger("rallypoint.torchrun")

_REASONS = {
    Departure.FINISHED: Reason.FINISHED,
    Departure.GAVE_UP: Reason.GAVE_UP,
    Departure.STOPPED: Reason.WITHDREW,
}

# How long the goodbye of a node may take whose world has gone on without it.
_HURRY = timedelta(seconds=1)


class AgentRendezvous:
    """One agent's membership in a run."""

    def __init__(self, backend: str, member: Member, join_timeout_s: float) -> None:
        self.backend = backend
        self.run_id = member.run_id
        self.serves_store = member.serves_store
        self._member = member
        self._join_timeout_s = join_timeout_s
        self._round: AgentRound | None = None

    def next_round(self) -> AgentRound:
        """Wait for a place in the next world."""
        with reported(self._member, LogReporter(log, logging.WARNING)):
            placed = self._member.join(self._join_timeout_s)
        self._round = AgentRound(self._member, placed)
        return self._round

    def is_closed(self) -> bool:
        """Whether the run is known to be closed."""
        return self._member.is_closed()

    def close(self) -> None:
        """Close the run for everybody."""
        self._member.close_run()

    def waiting(self) -> int:
        """Rule 6b: from memory, at once."""
        return self._member.waiting()

    def leave(self, departure: Departure, why: str) -> bool:
        """Leave for good; the host of the store stays for those who need it (rule 8)."""
        hurry = self._round is not None and self._round.is_superseded
        return self._member.leave(_REASONS[departure], why, patience_s=_HURRY.total_seconds() if hurry else None)


class AgentRound:
    """A place in a sealed world, and its store."""

    failures: tuple[type[Exception], ...] = (StoreError,)
    verdict_s = VERDICT_S

    def __init__(self, member: Member, placed: Placed) -> None:
        self._member = member
        self._placed = placed
        self._store = member.store(placed)
        self.rank, self.size = placed.rank, placed.size
        self.host, self.port = self._store.host, self._store.port
        self.is_superseded = False

    def connect(self, timeout: timedelta) -> PrefixStore:
        """The round's keys; the connection ends with the world, so that nobody waits on it any longer."""
        return self._store.open(timeout)

    def is_over(self, wait_s: float = 0.0) -> bool:
        """Whether the world is over; waits for the news for so long."""
        return self._store.is_over(wait_s)

    def closed(self) -> str | None:
        """Why the run is closed; None while it is not."""
        view = self._member.view
        if view.state is not State.CLOSED:
            return None
        return f"run {self._member.run_id!r} is closed as {view.ending.value}: {view.why}"

    def finished(self) -> None:
        """This node's workers are done."""
        self._member.finish()

    def release(self, key: str, value: bytes) -> None:
        """Set a key of the round's for those who wait for it, if its host is still there; does not wait."""

        def set_key() -> None:
            with suppress(TimeoutError, StoreError):
                store, close = self._store.connect(_HURRY)
                store.set(key, value)
                store.check([key])  # an answer: it was heard
                close()

        threading.Thread(target=set_key, name="rallypoint-release", daemon=True).start()

    def superseded(self) -> None:
        """The others have regrouped: nobody needs this round's store any more."""
        self.is_superseded = True

    def why(self) -> str:
        """Why the world is over."""
        return self.closed() or self._member.view.why or "this node has left it"
