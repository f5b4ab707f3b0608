"""A register in etcd v3: the record is one key, guarded by its mod_revision.

The record lies on the lease of the run, which outlives outages and which the server renews.  A key on the server's own
lease, named by the epoch, takes the place of the beat, so that nothing is written while nothing changes.  Both are written
in one transaction; the claim lives as long as its key does.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress

from rallypoint.errors import RendezvousConnectionError, RendezvousStateError
from rallypoint.etcd_client import (
    EtcdAuthError,
    EtcdClient,
    EtcdError,
    EtcdHopelessError,
    EtcdLeaseLostError,
    EtcdRefusedError,
    Lease,
    Watch,
    delete_op,
    put_op,
)
from rallypoint.location.register import Entry, Register, RegisterRefusedError
from rallypoint.location.registers.etcd_v3_keys import RecordKeys
from rallypoint.record import Record, decode

log = logging.getLogger(__name__)


class EtcdV3Register(Register):
    """One run's record.  The client is the register's own, and is closed with it.

    `run_ttl_s` is how long a record lives that no server renews.  `serves_on` says whether the loop of the server has run
    lately: its lease is renewed only while it has (rule 17e).
    """

    is_hosted_here = None

    def __init__(
        self, client: EtcdClient, prefix: str, run_id: str, *, run_ttl_s: int, serves_on: Callable[[], bool]
    ) -> None:
        self._client, self._keys = client, RecordKeys(prefix, run_id)
        self._run_ttl_s, self._serves_on = run_ttl_s, serves_on
        self._lease: Lease | None = None
        """That of this process's claim, and the epochs whose keys are on it."""
        self._epochs: set[int] = set()
        self._run_lease: Lease | None = None
        self._is_run_lease_unused = False
        """Whether it was granted for a record that was not written: then it goes with the claim that failed."""
        self._revision = 0
        """That of the last answer: what is written later is heard by a watch from there on."""
        self._shown: int | None = None
        """The token of the record as the last answer showed it, 0 where it showed none; None before the first answer."""
        self._found_lease = 0
        """The lease that the record was last seen on."""
        self._has_told_of_old_keys = False
        self._watch: Watch | None = None
        self._watching = threading.Lock()
        client.warm_up()

    def read(self) -> Entry | None:
        """The record, and whether the key of its claim is there."""
        keys = self._keys
        with _in_words():
            # One range has all of it.  A transaction, even one that only reads, is refused while etcd's quota is exceeded.
            found = self._client.range(keys.claims, end=keys.record + "\0")
        self._revision = found.revision
        there = {kv.key: kv for kv in found.kvs}
        record = there.get(keys.record.encode())
        if record is None:
            self._found_lease = self._shown = 0
            self._look_for_old_keys(there)
            return None
        self._found_lease, self._shown = record.lease, record.mod_revision
        lives = _claim_key(keys, record.value) in there
        return Entry(record.value, record.mod_revision, lives)

    def _look_for_old_keys(self, there: Collection[bytes]) -> None:
        """Say so where version 0.1 has used this run id; RendezvousStateError where its nodes use it still."""
        keys = self._keys
        if keys.old_leader.encode() in there or any(key.startswith(keys.old_nodes.encode()) for key in there):
            raise RendezvousStateError(
                f"keys of Rallypoint 0.1 lie under {keys.run}, and nodes of it use that run: end that job, or use another "
                f"run id; its keys expire within seconds after its nodes have ended"
            )
        if keys.old_board.encode() in there and not self._has_told_of_old_keys:
            self._has_told_of_old_keys = True
            log.warning(
                "keys of Rallypoint 0.1 lie under %s, and no node of it is there: they are not used, and expire",
                keys.run,
            )

    def write(self, value: bytes, token: int | None) -> Entry | None:
        """Write the record, and with a new epoch the key of its claim."""
        record = decode(value)
        with _in_words():
            try:
                return self._write(value, record, token)
            except EtcdLeaseLostError:
                # One of the leases is gone: it is had anew, and what expired with it is written again.
                found = self._found_lease
                self._drop_leases()
                self._found_lease = found
                return self._write(value, record, token)

    def wait(self, token: int | None, timeout_s: float) -> int | None:
        deadline = time.monotonic() + timeout_s
        if self._shown not in (None, token or 0):
            return self._revision  # an answer has shown the change already, and no watch tells of it once more
        try:
            watch = self._open_watch()
            while (left_s := deadline - time.monotonic()) > 0:
                heard = watch.get(left_s)
                if heard is None:
                    return None
                if token is None or heard.revision > token:
                    return heard.revision
        except EtcdError as exc:
            if self._close_watch():
                raise RendezvousConnectionError(str(exc)) from exc
        return None

    def stop_waiting(self) -> None:
        self._close_watch()

    def resign(self) -> None:
        """End the lease of the claim; the record stays, on a lease that nobody here renews."""
        self._drop_leases()

    def close(self) -> None:
        self._close_watch()
        self._drop_leases()
        self._client.close()

    def _write(self, value: bytes, record: Record, token: int | None) -> Entry | None:
        run_lease, lease, then = self._keep_run_lease(), self._lease, []
        if record.claim is None:
            then = [delete_op(self._keys.claim(epoch)) for epoch in self._epochs]
        elif record.epoch not in self._epochs or lease is None or lease.lost.is_set():
            if lease is None or lease.lost.is_set():
                self._epochs.clear()
                lease = self._lease = self._client.grant(round(record.claim.rest_s), renew_while=self._serves_on)
            then = [delete_op(self._keys.claim(epoch)) for epoch in self._epochs - {record.epoch}]
            then.append(put_op(self._keys.claim(record.epoch), record.claim.id, lease=lease.id))
        wrote = self._client.guarded_put(
            self._keys.record, value, mod_revision=token or 0, then=then, lease=run_lease.id
        )
        if not wrote.succeeded:
            return None
        self._revision, self._found_lease = max(self._revision, wrote.revision), run_lease.id
        self._shown = wrote.revision
        self._is_run_lease_unused = False
        self._epochs = {record.epoch} if record.claim is not None else set()
        return Entry(value, wrote.revision, record.claim is not None)

    def _keep_run_lease(self) -> Lease:
        """The lease that the record lies on, which this process renews while it serves."""
        held = self._run_lease
        if held is not None and not held.lost.is_set() and self._found_lease in (0, held.id):
            return held
        self._let_go_of_run_lease()
        if self._found_lease:
            with suppress(EtcdLeaseLostError):
                self._run_lease = self._client.adopt(self._found_lease)
                return self._run_lease
        self._run_lease, self._is_run_lease_unused = self._client.grant(self._run_ttl_s), True
        return self._run_lease

    def _drop_leases(self) -> None:
        lease, self._lease = self._lease, None
        self._found_lease = 0
        self._epochs.clear()
        self._let_go_of_run_lease()
        if lease is not None:
            lease.revoke(wait=False)

    def _let_go_of_run_lease(self) -> None:
        """Renew it no longer.  Only a lease that no record lies on is revoked: the record goes with its lease."""
        lease, self._run_lease = self._run_lease, None
        is_unused, self._is_run_lease_unused = self._is_run_lease_unused, False
        if lease is not None and is_unused:
            lease.revoke(wait=False)
        elif lease is not None:
            lease.release()

    def _open_watch(self) -> Watch:
        with self._watching:
            if self._watch is None:
                after = self._revision + 1
                self._watch = self._client.watch(self._keys.claims, end=self._keys.record + "\0", revision=after)
            return self._watch

    def _close_watch(self) -> bool:
        """Close the watch; whether there was one."""
        with self._watching:
            watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()
        return watch is not None


def _claim_key(keys: RecordKeys, value: bytes) -> bytes:
    """The key of the claim that a record has; what cannot be read has none."""
    try:
        return keys.claim(decode(value).epoch).encode()
    except RendezvousStateError:
        return b""


@contextmanager
def _in_words() -> Iterator[None]:
    """What goes wrong with etcd becomes an error of the rendezvous."""
    try:
        yield
    except (EtcdAuthError, EtcdHopelessError, EtcdRefusedError) as exc:
        raise RegisterRefusedError(str(exc)) from exc
    except EtcdError as exc:
        raise RendezvousConnectionError(str(exc)) from exc
