"""A handler of torch's own kind around a rendezvous of ours: torch's types go out, torch's errors are raised.

torch's launcher calls `shutdown()` without saying why; the exception that is under way in that moment tells (rule 8).
"""

from __future__ import annotations

import logging
import sys

from rallypoint.client.member import Member
from rallypoint.client.wait_reports import LogReporter, reported
from rallypoint.elastic.member_handler import HandlerOnMembership
from rallypoint.errors import RendezvousGracefulExitError
from rallypoint.messages.types import Reason
from rallypoint.torch_bridge import agent_types
from rallypoint.torch_bridge.agent_types import ChildFailedError, DistStoreError, RendezvousInfo, RendezvousStoreInfo
from rallypoint.torch_bridge.errors import in_torch_words_too
from rallypoint.torch_bridge.stores_c10d import shares_store
from rallypoint.torchrun.round_store import HURRY, AgentRound, AgentStore

log = logging.getLogger("rallypoint.torchrun")


class TorchHandler(HandlerOnMembership, agent_types.RendezvousHandler):  # type: ignore[misc]  # torch's is unknown
    """A node's membership in a run, as torch's agent takes it."""

    def __init__(self, backend: str, member: Member, join_timeout_s: float) -> None:
        self._backend, self._member, self._join_timeout_s = backend, member, join_timeout_s
        self._round: AgentRound | None = None
        # An exception that is being handled while a program launches has nothing to do with the run.
        self._about = sys.exc_info()[1]

    @property
    def use_agent_store(self) -> bool:
        """The workers use the store that rank 0's agent serves: its port was bound before anybody was told of it."""
        return self._member.serves_store and shares_store()

    def get_backend(self) -> str:
        return self._backend

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for a place in the next world; a spare that is not needed ends the process, with success."""
        self._let_go()
        while True:
            place = self._next_round()
            log.info("run %r: rank %s of %s", self.get_run_id(), place.rank, place.size)
            store = AgentStore(place)
            try:
                info = RendezvousInfo(store, place.rank, place.size, self._bootstrap(place, store))
            except DistStoreError:
                if not place.is_over():
                    raise
            else:
                self._round = place
                return info

    @in_torch_words_too
    def _next_round(self) -> AgentRound:
        try:
            with reported(self._member, LogReporter(log, logging.WARNING)):
                return AgentRound(self._member, self._member.join(self._join_timeout_s))
        except RendezvousGracefulExitError as exc:
            # torch's launcher fails on its own error for this.
            log.info("%s", exc)
            raise SystemExit(0) from exc

    def _let_go(self) -> None:
        """The last round is over for this node: nodes in its exit barrier need not wait."""
        if self._round is not None:
            if self._round.is_over():
                log.warning("run %r: joining again: %s", self.get_run_id(), self._round.why())
            self._round.release()
        self._round = None

    @in_torch_words_too
    def shutdown(self) -> bool:
        """Leave, for the reason that the exception under way gives; the host of the store stays while it is needed (rule 8)."""
        exc = sys.exc_info()[1]
        reason, why = _departure(None if exc is self._about else exc)
        in_a_hurry = self._round is not None and self._round.is_superseded
        return self._member.leave(reason, why, timeout_s=HURRY.total_seconds() if in_a_hurry else None)

    def _bootstrap(self, place: AgentRound, store: AgentStore) -> RendezvousStoreInfo:
        if self.use_agent_store:
            return RendezvousStoreInfo(place.host, place.port)
        return RendezvousStoreInfo.build(place.rank, store, place.host)


def _departure(exc: BaseException | None) -> tuple[Reason, str]:
    if exc is None:
        return Reason.FINISHED, ""
    if isinstance(exc, ChildFailedError):
        return Reason.GAVE_UP, f"its workers failed, and it has no restarts left: {_first_failure(exc)}"
    return Reason.WITHDREW, f"{type(exc).__name__}: {exc}"


def _first_failure(exc: ChildFailedError) -> str:
    rank, failure = exc.get_first_failure()
    return f"exit code {failure.exitcode} of local rank {failure.local_rank}, global rank {rank}"
