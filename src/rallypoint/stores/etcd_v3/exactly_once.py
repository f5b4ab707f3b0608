"""Changes that happen exactly once, though their answers may be lost.

Every change also writes a receipt, in the same transaction and only if that is as it was left by the change before.  So
of all attempts at one change a single one can ever happen, however late it arrives, and the receipt says which.  A value
alone could not tell: another process may have written over it by then.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, TypeVar

from rallypoint.etcd_client import EtcdClient, Lease
from rallypoint.etcd_client.messages import Compare, RequestOp
from rallypoint.stores.errors import StoreError
from rallypoint.stores.etcd_v2.keys import step_back
from rallypoint.stores.etcd_v3.key_layout import KeyLayout
from rallypoint.waiting import Deadline

T = TypeVar("T")

_LONGEST_PAUSE = timedelta(seconds=1)


class StoreOverError(StoreError):
    """The keys of a store are gone, with its lease or by somebody's hand."""


class StoreLease:
    """How long a store lasts: as long as the lease on which its keys hang."""

    def __init__(self, lease: Lease | int | None, prefix: str) -> None:
        self._lease = lease if isinstance(lease, Lease) else None
        self._prefix = prefix
        self.lease_id = 0 if lease is None else lease if isinstance(lease, int) else lease.id
        self._is_over = False

    @property
    def may_end(self) -> bool:
        """Whether this process hears of the end while it waits for something else."""
        return self._lease is not None

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
    """What is to be written if some conditions hold, and what the change comes to then.

    `can_return`: one of the conditions may hold again after it did not, as the absence of a key.
    """

    result: T
    when: tuple[Compare, ...]
    then: tuple[RequestOp, ...]
    can_return: bool = False


@dataclass(frozen=True)
class NoWrite(Generic[T]):
    """There is nothing to be written."""

    result: T


@dataclass
class _Receipt:
    """A key that one change at a time writes to, and its revision."""

    key: bytes
    revision: int = 0


class ExactlyOnce:
    """Makes changes.  Each thread has a receipt to itself while it makes one; they are used again afterwards."""

    def __init__(self, client: EtcdClient, names: KeyLayout, store_lease: StoreLease) -> None:
        self._client = client
        self._names = names
        self._store_lease = store_lease
        self._free: deque[_Receipt] = deque()

    def make(self, plan: Callable[[], GuardedWrite[T] | NoWrite[T]]) -> tuple[T, int]:
        """Plan and write until nobody else has written in between.  What it came to, and at which revision.

        Whoever loses does so to somebody who has won: there is no end to this but success.
        """
        try:
            receipt = self._free.pop()
        except IndexError:
            receipt = _Receipt(self._names.receipt(secrets.token_hex(12)))
        tried: dict[bytes, T] = {}
        is_open = False  # an attempt that was refused may yet happen
        while True:
            try:
                step = plan()
            except BaseException:
                if not tried:
                    self._free.append(receipt)
                raise
            if isinstance(step, NoWrite):
                if not is_open:
                    self._free.append(receipt)
                    return step.result, 0
                step = GuardedWrite(
                    step.result, (), ()
                )  # the receipt alone, so that no earlier attempt can happen after this
            token = secrets.token_hex(12).encode()
            tried[token] = step.result
            started = time.monotonic()
            # A receipt that meets with an error is not used again: nobody knows what becomes of it.
            outcome = self._client.guarded_put(
                receipt.key,
                token,
                mod_revision=receipt.revision,
                when=step.when,
                then=step.then,
                lease=self._store_lease.lease_id,
            )
            if outcome.succeeded:
                receipt.revision = outcome.revision
                self._free.append(receipt)
                return step.result, outcome.revision
            if outcome.revision != receipt.revision:
                if outcome.current is None or outcome.current.value not in tried:
                    raise self._store_lease.keys_are_gone()
                # An earlier attempt, which was refused at one member, has happened at another.
                receipt.revision = outcome.revision
                self._free.append(receipt)
                return tried[outcome.current.value], outcome.revision
            is_open = is_open or step.can_return
            step_back(len(tried), time.monotonic() - started, Deadline.of(_LONGEST_PAUSE))
