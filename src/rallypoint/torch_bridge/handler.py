"""A handler of torch's own kind around a rendezvous of ours: torch's types go out, torch's errors are raised.

torch's launcher calls `shutdown()` without saying why; the exception that is under way in that moment tells (rule 8).
"""

from __future__ import annotations

import enum
import logging
import os
import sys
from typing import Protocol

from torch.distributed import DistStoreError
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from rallypoint.errors import RendezvousGracefulExitError
from rallypoint.torch_bridge.errors import torch_words
from rallypoint.torch_bridge.round_store import LEFT_BARRIER, REGROUPED, RoundStore, World

log = logging.getLogger("rallypoint.torchrun")

# torch's own switch: the workers then have a store of their own, served by one of them.
OWN_STORES = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"


class Departure(enum.Enum):
    """Why an agent goes."""

    FINISHED = "its workers are done"
    GAVE_UP = "its workers failed, and it has no restarts left"
    STOPPED = "it was stopped"


class Round(World, Protocol):
    """A place in a sealed world."""

    host: str
    port: int

    def release(self, key: str, value: bytes) -> None:
        """Set a key of the round's for those who wait for it, if that is still possible; does not wait."""


class Rendezvous(Protocol):
    """What the handler stands for, whichever server there is."""

    backend: str
    run_id: str
    serves_store: bool
    """Whether rank 0's agent serves the stores of the rounds by address and port."""

    def next_round(self) -> Round:
        """Wait for a place in the next world."""

    def is_closed(self) -> bool:
        """Whether the run is known to be closed."""

    def close(self) -> None:
        """Close the run for everybody."""

    def waiting(self) -> int:
        """Rule 6b: from memory, at once."""

    def leave(self, departure: Departure, why: str) -> bool:
        """Leave for good; whether all who depend on this process have gone."""


class TorchHandler(RendezvousHandler):  # type: ignore[misc]  # torch's types are not looked at
    """A node's membership in a run, as torch's agent takes it."""

    def __init__(self, rendezvous: Rendezvous) -> None:
        self._rendezvous = rendezvous
        self._round: Round | None = None
        # Whoever launches from within an `except` block has that exception about, and means nothing by it.
        self._about = sys.exc_info()[1]

    @property
    def use_agent_store(self) -> bool:
        """The workers use the store that rank 0's agent serves: its port was bound before anybody was told of it."""
        return self._rendezvous.serves_store and os.environ.get(OWN_STORES) != "1"

    def get_backend(self) -> str:
        """The backend's name."""
        return self._rendezvous.backend

    def get_run_id(self) -> str:
        """The run's name."""
        return self._rendezvous.run_id

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for a place in the next world; a spare that is not needed ends the process, with success."""
        self._let_go()
        while True:
            place = self._next_round()
            log.info("run %r: rank %s of %s", self.get_run_id(), place.rank, place.size)
            store = RoundStore(place)
            try:
                info = RendezvousInfo(store, place.rank, place.size, self._bootstrap(place, store))
            except DistStoreError:
                if not place.is_over():
                    raise
            else:
                self._round = place
                return info

    def _next_round(self) -> Round:
        try:
            with torch_words():
                return self._rendezvous.next_round()
        except RendezvousGracefulExitError as exc:
            # torch's launcher fails on its own error for this.
            log.info("%s", exc)
            raise SystemExit(0) from exc

    def _let_go(self) -> None:
        """The last round is over for this node: those who wait for it in the exit barrier need not."""
        if self._round is not None:
            if self._round.is_over():
                log.warning("run %r: joining again: %s", self.get_run_id(), self._round.why())
            self._round.release(LEFT_BARRIER, REGROUPED)
        self._round = None

    def is_closed(self) -> bool:
        """Whether the run is known to be closed."""
        return self._rendezvous.is_closed()

    def set_closed(self) -> None:
        """Close the run for everybody."""
        with torch_words():
            self._rendezvous.close()

    def num_nodes_waiting(self) -> int:
        """Above 0 when the agent is to join again; answered from memory, whether or not the server is there."""
        return self._rendezvous.waiting()

    def shutdown(self) -> bool:
        """Leave, for the reason that the exception under way gives; the run goes on without this node (rule 8)."""
        exc = sys.exc_info()[1]
        departure, why = _departure(None if exc is self._about else exc)
        with torch_words():
            return self._rendezvous.leave(departure, why)

    def _bootstrap(self, place: Round, store: RoundStore) -> RendezvousStoreInfo:
        if self.use_agent_store:
            return RendezvousStoreInfo(place.host, place.port)
        return RendezvousStoreInfo.build(place.rank, store, place.host)


def _departure(exc: BaseException | None) -> tuple[Departure, str]:
    if exc is None:
        return Departure.FINISHED, ""
    if isinstance(exc, ChildFailedError):
        return Departure.GAVE_UP, f"its workers failed, and it has no restarts left: {_first_failure(exc)}"
    return Departure.STOPPED, f"{type(exc).__name__}: {exc}"


def _first_failure(exc: ChildFailedError) -> str:
    rank, failure = exc.get_first_failure()
    return f"exit code {failure.exitcode} of local rank {failure.local_rank}, global rank {rank}"
