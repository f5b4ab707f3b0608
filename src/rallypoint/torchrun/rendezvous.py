"""A membership as torch's agent uses it: rounds with their stores, and reasons for leaving that torch does not give."""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

from rallypoint.client.member import Member
from rallypoint.core.model import Reason
from rallypoint.core.node import State
from rallypoint.core.notices import Placed
from rallypoint.stores import PrefixStore
from rallypoint.stores.errors import StoreError
from rallypoint.torch_bridge.handler import Departure

log = logging.getLogger("rallypoint.torchrun")

# How long a wait may take before somebody wonders why.
_PATIENCE_S = 2.0

_REASONS = {
    Departure.FINISHED: Reason.FINISHED,
    Departure.GAVE_UP: Reason.GAVE_UP,
    Departure.STOPPED: Reason.WITHDREW,
}

# torch's launcher does not say goodbye when the agent is stopped by a signal, and a process that ends is in a hurry.
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
        atexit.register(_withdraw, weakref.ref(member))

    def next_round(self) -> AgentRound:
        """Wait for a place in the next world."""
        with _telling_why(self._member):
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

    def __init__(self, member: Member, placed: Placed) -> None:
        self._member = member
        self._placed = placed
        self._store = member.store(placed)
        self.rank, self.size = placed.rank, placed.size
        self.host, self.port = self._store.host, self._store.port
        self.is_superseded = False
        self._closing: list[Callable[[], None]] = []
        self._watched = threading.Lock()
        threading.Thread(target=self._watch, name="rallypoint-round", daemon=True).start()

    def connect(self, timeout: timedelta) -> PrefixStore:
        """The round's keys; the connection ends with the world, so that nobody waits on it any longer."""
        try:
            store, close = self._store.connect(timeout)
        except StoreError as exc:
            raise TimeoutError(str(exc)) from exc
        with self._watched:
            self._closing.append(close)
        if self.is_over():
            close()
        return store

    def is_over(self, wait_s: float = 0.0) -> bool:
        """Whether the world is over; waits for the news for so long."""
        return self._member.wait_until_over(self._placed, wait_s)

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

    def _watch(self) -> None:
        self._member.wait_until_over(self._placed)
        with self._watched:
            for close in self._closing:
                close()


@contextmanager
def _telling_why(member: Member) -> Iterator[None]:
    """While somebody waits for long, say what is awaited, each time that it is something else (rule 11)."""
    done = threading.Event()

    def tell() -> None:
        told = ""
        while not done.wait(_PATIENCE_S):
            why = member.why_waiting()
            if why and why != told:
                told = why
                log.warning("run %r: waiting: %s", member.run_id, why)

    threading.Thread(target=tell, name="rallypoint-waiting", daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _withdraw(member: weakref.ref[Member]) -> None:
    left = member()
    if left is not None:
        with suppress(Exception):
            left.leave(Reason.WITHDREW, "its process was stopped", patience_s=_HURRY.total_seconds())
