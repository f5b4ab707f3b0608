"""Administration of runs that a register names (rule 17j): their servers are asked, by the secrets in their records.

Where no server answers, `status` and `runs` tell what the record says.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from rallypoint.client.admin_client import ANSWER_TIMEOUT_S, UNANSWERED, AdminClient, NotDoneError
from rallypoint.errors import RendezvousConnectionError, RendezvousStateError
from rallypoint.location import record_report
from rallypoint.protocol import CLOSED, PAGE_SIZE, UNKNOWN_RUN, Runs, Status
from rallypoint.record import Claim, Record, decode

LISTING_S = 1.0
"""How long one server of many is waited for."""
ASKED_AT_ONCE = 32
SHORTEST_CONNECT_S = 0.5

T = TypeVar("T")


class Records(Protocol):
    """The records of all runs in a register.  Several threads may read at a time; a RendezvousError says what is wrong."""

    where: str
    """The register, in words that fit behind "at"."""

    def names(self) -> list[str]:
        """The ids of the runs that have a record."""

    def read(self, run_id: str) -> bytes | None:
        """A run's record; None where it has none."""

    def close(self) -> None:
        """Nothing more is read."""


class RegisterAdminClient:
    """Asks and administers as `AdminClient` does, and finds the server of each run in a register."""

    def __init__(self, records: Records) -> None:
        self.where, self._records = records.where, records

    def __enter__(self) -> RegisterAdminClient:
        return self

    def __exit__(self, *error: object) -> None:
        self._records.close()

    def runs(self) -> Runs:
        """Which runs there are."""
        names = sorted(self._records.names())
        lines = tuple(status.run for status in self._statuses(names) if status.run is not None)
        gone = min(len(names), PAGE_SIZE) - len(lines)
        return Runs(0, len(names) - gone, lines)

    def statuses(self) -> list[Status]:
        """Where every run stands, of the first by name."""
        return self._statuses(sorted(self._records.names()))

    def status(self, run_id: str) -> Status:
        """Where a run stands."""
        return self._status(run_id, ANSWER_TIMEOUT_S)

    def close_run(self, run_id: str, why: str = "") -> None:
        """Close a run for everybody."""
        self._change(run_id, lambda admin: admin.close_run(run_id, why), "closed")

    def evict(self, run_id: str, node: str, for_s: float | None = None, why: str = "") -> str:
        """Give a node up, by its name or id, and keep it out for so long (None: the server decides); what was done."""
        return self._change(run_id, lambda admin: admin.evict(run_id, node, for_s, why), f"without {node!r}")

    def lift(self, run_id: str, node: str) -> str:
        """Let a node in again that was evicted, by its name or id; what was done."""
        return self._change(run_id, lambda admin: admin.lift(run_id, node), f"open to {node!r}")

    def _statuses(self, names: list[str]) -> list[Status]:
        with ThreadPoolExecutor(ASKED_AT_ONCE, "rallypoint-status") as pool:
            found = pool.map(self._status_if_any, names[:PAGE_SIZE])
            return [status for status in found if status is not None]

    def _status_if_any(self, run_id: str) -> Status | None:
        """Where a run stands; None where its record was deleted meanwhile."""
        try:
            return self._status(run_id, LISTING_S)
        except NotDoneError:
            return None

    def _status(self, run_id: str, timeout_s: float) -> Status:
        try:
            return self._ask(run_id, lambda admin: admin.status(run_id), timeout_s)
        except _NoServerError as exc:
            return record_report.status_of(exc.record, str(exc))
        except RendezvousStateError as exc:
            return record_report.unreadable(run_id, str(exc))

    def _change(self, run_id: str, ask: Callable[[AdminClient], T], changed: str) -> T:
        def ask_once(admin: AdminClient) -> T:
            # It is not asked for again where the answer is lost: that might change the run twice.
            try:
                return ask(admin)
            except RendezvousConnectionError as exc:
                raise NotDoneError(
                    f"it is not known whether run {run_id!r} is {changed}: {exc}; see what `rallypoint status` says, and "
                    f"ask again if need be",
                    UNANSWERED,
                ) from exc

        try:
            return self._ask(run_id, ask_once, ANSWER_TIMEOUT_S)
        except _NoServerError as exc:
            closing = exc.record.closing
            advice = (
                f"its record says that it closed as {closing.ending.value}: {closing.why}"
                if closing is not None
                else "if nodes of this run are left, one of them takes over within seconds: ask again then; if none is "
                "left, there is nothing to change"
            )
            reason = UNANSWERED if closing is None else CLOSED
            raise NotDoneError(f"nothing was done to run {run_id!r} at {self.where}: {exc}; {advice}", reason) from exc
        except RendezvousStateError as exc:
            raise NotDoneError(f"nothing was done to run {run_id!r} at {self.where}: {exc}") from exc

    def _ask(self, run_id: str, ask: Callable[[AdminClient], T], timeout_s: float, record: Record | None = None) -> T:
        """Ask the server of a run; where it does not answer, the one that a second reading names instead."""
        first = record or self._read(run_id)
        try:
            return _ask_server(first.claim, ask, timeout_s)
        except RendezvousConnectionError as exc:
            now = record or self._read(run_id)
            if _server_in(first.claim) == _server_in(now.claim):
                raise _NoServerError(now, exc) from exc
        return self._ask(run_id, ask, timeout_s, now)

    def _read(self, run_id: str) -> Record:
        data = self._records.read(run_id)
        if data is None:
            raise NotDoneError(f"there is no run {run_id!r} at {self.where}", UNKNOWN_RUN)
        return decode(data)


class _NoServerError(Exception):
    """No server answered: the record as it is, and why."""

    def __init__(self, record: Record, why: RendezvousConnectionError) -> None:
        super().__init__(str(why))
        self.record = record


def _ask_server(claim: Claim | None, ask: Callable[[AdminClient], T], timeout_s: float) -> T:
    """Ask a server, at the first of its addresses that leads to it."""
    if claim is None:
        raise RendezvousConnectionError("no process serves this run")
    connect_s = max(timeout_s / len(claim.addresses), SHORTEST_CONNECT_S)

    def connect(address: str) -> AdminClient | str:
        try:
            return AdminClient(address, claim.port, timeout_s, claim.secret, connect_s=connect_s)
        except RendezvousConnectionError as exc:
            return str(exc)

    errors: list[str] = []
    for answer in map(connect, claim.addresses):
        if isinstance(answer, AdminClient):
            with answer:
                return ask(answer)
        errors.append(answer)
    raise RendezvousConnectionError(f"no server answers: {'; '.join(errors)}")


def _server_in(claim: Claim | None) -> object:
    """What tells whether two claims lead to the same server."""
    return claim and (claim.id, claim.addresses, claim.port, claim.secret)
