"""Changes that happen exactly once, though their answers may be lost.

Every change also writes a receipt, in the same transaction and only if that is as it was left by the change before.  So
of all attempts at one change a single one can ever happen, however late it arrives, and the receipt says which.  A value
alone could not tell: another process may have written over it by then.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from rallypoint.etcd_client import EtcdClient, Lease
from rallypoint.etcd_client.messages import Compare, RequestOp
from rallypoint.stores.errors import StoreError
from rallypoint.stores.etcd_v2.keys import step_back
from rallypoint.stores.etcd_v3.key_layout import KeyLayout
from rallypoint.waiting import Deadline

T = TypeVar("T")

_LONGEST_PAUSE_S = 1.0


class StoreOverError(StoreError):
    """The keys of a store are gone, with its lease or by somebody's hand."""


class StoreLease:
    """How long a store lasts: as long as the lease on which its keys hang."""

    def __init__(self, lease: Lease | int | None, prefix: str) -> None:
        self._lease = lease if isinstance(lease, Lease) else None
        self._prefix = prefix
        self.may_end = self._lease is not None  # this process hears of the end while it waits for something else
        self.lease_id = 0 if lease is None else lease if isinstance(lease, int) else lease.id
        self._is_over = False

    def check(self) -> None:
        """`StoreOverError` if it is over."""
        if self._is_over or (self._lease is not None and self._lease.lost.is_set()):
            raise self.over()

    def over(self) -> StoreOverError:
        """It is over, and stays so."""
        self._is_over = True
        return StoreOverError(
            f"the store {self._prefix!r} is over: its keys hung on the lease {self.lease_id:x}, which has expired or was "
            f"revoked; make a new store on a lease that lives"
        )

    def keys_are_gone(self) -> StoreOverError:
        """What this process has written is not there any more."""
        if self.lease_id:
            return self.over()
        return StoreOverError(f"somebody has deleted the keys of the store {self._prefix!r} while it was in use")


@dataclass(frozen=True)
class GuardedWrite(Generic[T]):
    """What is to be written if some conditions hold, and what the change comes to then; without `then`, nothing is written.

    `can_return`: one of the conditions may hold again after it did not, as the absence of a key.
    """

    result: T
    when: tuple[Compare, ...] = ()
    then: tuple[RequestOp, ...] = ()
    can_return: bool = False


class ExactlyOnce:
    """Makes changes.  Each thread has a receipt to itself while it makes one; they are used again afterwards."""

    def __init__(self, client: EtcdClient, names: KeyLayout, store_lease: StoreLease) -> None:
        self._client = client
        self._names = names
        self._store_lease = store_lease
        self._free: list[tuple[bytes, int]] = []  # keys of receipts, and their revisions

    def make(self, plan: Callable[[], GuardedWrite[T]]) -> tuple[T, int]:
        """Plan and write until nobody else has written in between.  What it came to, and at which revision.

        An attempt fails only because another one has succeeded, so one succeeds in the end.
        """
        try:
            receipt, revision = self._free.pop()
        except IndexError:
            receipt, revision = self._names.receipt(secrets.token_hex(12)), 0
        tried: dict[bytes, T] = {}
        is_open = False  # an attempt that was refused may yet happen
        while True:
            try:
                step = plan()
            except BaseException:
                if not tried:
                    self._free.append((receipt, revision))
                raise
            if not step.then and not is_open:
                self._free.append((receipt, revision))
                return step.result, 0
            # Where there is nothing to write, the receipt alone is, so that no earlier attempt can happen after this.
            token, started = secrets.token_hex(12).encode(), time.monotonic()
            tried[token] = step.result
            # A receipt that meets with an error is not used again: nobody knows what becomes of it.
            lease_id = self._store_lease.lease_id
            outcome = self._client.guarded_put(
                receipt, token, mod_revision=revision, when=step.when, then=step.then, lease=lease_id
            )
            if outcome.succeeded or outcome.revision != revision:
                # If it was refused, an earlier attempt, which was refused at one member, has happened at another.
                made = token if outcome.succeeded else outcome.current.value if outcome.current is not None else b""
                if made not in tried:
                    raise self._store_lease.keys_are_gone()
                self._free.append((receipt, outcome.revision))
                return tried[made], outcome.revision
            is_open = is_open or step.can_return
            step_back(len(tried), time.monotonic() - started, Deadline.after(_LONGEST_PAUSE_S))
