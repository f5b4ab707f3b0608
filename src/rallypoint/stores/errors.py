"""What can go wrong with a store.  A wait that ends without its key is a `TimeoutError`; all else is a `StoreError`."""

from __future__ import annotations

__all__ = ["QueueEmptyError", "StoreError", "StoreTimeoutError"]


class StoreError(Exception):
    """The store refused the request, or cannot be reached any more; the message says which store and what was asked."""


class QueueEmptyError(StoreError):
    """A pop that was told not to wait found nothing in the queue."""


class StoreTimeoutError(TimeoutError):
    """Nothing came in time; the message says what was awaited, where, and for how long.

    It is no `StoreError`: the store is well and goes on working, unless the message says otherwise.
    """
