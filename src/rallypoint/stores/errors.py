"""What can go wrong with a store.  A wait that ends without its key is a `TimeoutError`; all else is a `StoreError`."""

from __future__ import annotations


class StoreError(Exception):
    """The store refused the request, or cannot be reached any more; the message says which store and what was asked."""


class QueueEmptyError(StoreError):
    """A pop that was told not to wait found nothing in the queue."""


class StoreConnectionError(StoreError):
    """The connection to the store's server is lost, was closed here, or leads to something that is no store server."""


class StoreForkError(StoreError):
    """The store was opened before a fork and used after it, in the child."""


class RoundOverError(StoreError):
    """The store belongs to a round that is over for this node; the message says why.  Join again for the next store."""


class StoreTimeoutError(TimeoutError):
    """Nothing came in time; the message says what was awaited, where, and for how long.

    It is no `StoreError`: the store is well and goes on working, unless the message says otherwise.
    """
