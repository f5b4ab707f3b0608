"""The records of runs in etcd v3, for administrators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rallypoint.backends.etcd_v3_client import OPTIONS, PREFIX, open_client
from rallypoint.backends.options import read_options
from rallypoint.client.admin_client import NotDoneError
from rallypoint.errors import RendezvousConnectionError
from rallypoint.etcd_client import EtcdClient, EtcdError
from rallypoint.location.registers.etcd_v3_keys import RecordKeys


class EtcdRecords:
    """The records of all runs under a prefix."""

    def __init__(self, client: EtcdClient, prefix: str) -> None:
        self.where = f"etcd://{','.join(client.endpoints)}{prefix}"
        self._client, self._prefix = client, prefix

    def names(self) -> list[str]:
        """The ids of the runs that have a record."""
        keys = RecordKeys(self._prefix, "")
        with _in_words():
            pages = self._client.pages(keys.runs, prefix=True, keys_only=True)
            found = [keys.run_id_of(kv.key) for page in pages for kv in page.kvs]
        return [run_id for run_id in found if run_id is not None]

    def read(self, run_id: str) -> bytes | None:
        """A run's record; None where it has none.  A NotDoneError where there is a run of version 0.1."""
        keys = RecordKeys(self._prefix, run_id)
        with _in_words():
            found = self._client.get(keys.record)
            is_old = found is None and any(self._client.get(key) for key in (keys.old_leader, keys.old_board))
        if is_old:
            raise NotDoneError(
                f"run {run_id!r} at {self.where} has keys of Rallypoint 0.1 and no record: nodes of that release use it, "
                f"and no other release can serve or administer it; run the same release everywhere, or wait until the keys "
                f"expire with their leases"
            )
        return found.value if found is not None else None

    def close(self) -> None:
        """Nothing more is read."""
        self._client.close()


def open_records(endpoint: str, config: Mapping[str, object], timeout_s: float) -> EtcdRecords:
    """The records in the cluster at an endpoint; ValueError for what cannot be read, or without grpcio."""
    options = read_options("etcd-v3", config, OPTIONS)
    return EtcdRecords(open_client(endpoint, options, timeout_s=timeout_s), options[PREFIX])


@contextmanager
def _in_words() -> Iterator[None]:
    try:
        yield
    except EtcdError as exc:
        raise RendezvousConnectionError(str(exc)) from exc
