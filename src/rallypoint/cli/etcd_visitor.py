"""A visitor of runs that live in etcd: the same questions as to a server, answered from what lies there."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

from rallypoint.client.admin import PATIENCE_S, NotDoneError
from rallypoint.elastic.etcd_v3_client import OPTIONS, PREFIX, in_rendezvous_words, open_client
from rallypoint.elastic.options import read_options
from rallypoint.errors import RendezvousError
from rallypoint.etcd import inspect
from rallypoint.protocol import PAGE_SIZE, Runs, Status


class EtcdVisitor:
    """A client of etcd that belongs to no node.  Each answer may take `PATIENCE_S`."""

    def __init__(self, endpoint: str, config: Mapping[str, object]) -> None:
        try:
            options = read_options("etcd-v3", config, OPTIONS)
            self._client = open_client(endpoint, options, timeout_s=PATIENCE_S)
        except ValueError as exc:
            raise RendezvousError(str(exc)) from exc
        self._prefix: str = options[PREFIX]
        self.where = f"etcd://{','.join(self._client.endpoints)}{self._prefix}"

    def __enter__(self) -> EtcdVisitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._client.close()

    def runs(self) -> Runs:
        """Which runs there are."""
        with in_rendezvous_words():
            lines = inspect.list_runs(self._client, self._prefix)
        return Runs(0, len(lines), tuple(lines[:PAGE_SIZE]))

    def status(self, run_id: str) -> Status:
        """Where a run stands."""
        with in_rendezvous_words():
            report = inspect.read_run(self._client, self._prefix, run_id)
        if report is None:
            raise NotDoneError(f"there is no run {run_id!r} at {self.where}")
        return Status(0, report.run, report.bounds, report.nodes[:PAGE_SIZE])

    def close_run(self, run_id: str, why: str = "") -> None:
        """Close a run for everybody."""
        with in_rendezvous_words():
            closed = inspect.close_run(self._client, self._prefix, run_id, why, PATIENCE_S)
        if not closed:
            self.status(run_id)  # it may be that there is none
            raise NotDoneError(
                f"none of the nodes of run {run_id!r} at {self.where} closed it within {PATIENCE_S:.0f} s: the one that "
                f"leads it may have died just now, or none is left; ask again in a moment"
            )

    def evict(self, run_id: str, node: str) -> None:
        """Give a node up, by its name or id."""
        self.status(run_id)
        with in_rendezvous_words():
            evicted = inspect.evict(self._client, self._prefix, run_id, node)
        if not evicted:
            raise NotDoneError(f"there is no node {node!r} in run {run_id!r} at {self.where}")
