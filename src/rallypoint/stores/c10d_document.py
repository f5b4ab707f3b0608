"""The document of a run under one key of a c10d store, torch's or ours, over TCP or in a file, as PyTorch writes it."""

from __future__ import annotations

import socket
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rallypoint.errors import RendezvousConnectionError
from rallypoint.stores import FileStore, TcpStore
from rallypoint.stores.documents import C10D_NOTHING as NOTHING
from rallypoint.stores.documents import C10D_PREFIX as PREFIX
from rallypoint.stores.documents import decode_document
from rallypoint.stores.errors import StoreError

FAILURES = (StoreError, RuntimeError, OSError, LookupError, ValueError)
"""What the stores of ours and of torch raise when they cannot be reached."""

PROBE_S = 2.0


class C10dDocument:
    """The document under one key of a store; its token is the value itself.

    `served` is the store by which this process serves it to the others; `hosts_store` says whether it does, and so stays
    until they have left: None where no node does, or it is not known.  A store that `reconnects` gets a connection of its own,
    and a new one after a failure.
    """

    def __init__(
        self,
        store: Any,
        run_id: str,
        *,
        hosts_store: bool | None = None,
        served: Any = None,
        reconnects: bool | None = None,
    ) -> None:
        self.hosts_store = hosts_store
        self.served = served
        self._given = store
        self._reconnects = isinstance(innermost(store), TcpStore) if reconnects is None else reconnects
        # A connection of its own: a thread that waits for a key occupies the other one.
        self._store = store.clone() if self._reconnects else store
        self._key = f"{PREFIX}{run_id}"
        self._put_place_holder()

    def get_state(self) -> tuple[bytes, Any] | None:
        """The document and its token, or None."""
        # Changes nothing; and unlike `get`, it does not wait where the store was emptied.
        return self._decode(self._swap(NOTHING, NOTHING))

    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, Any, bool] | None:
        """Write if the token is still that of what is there, or, without one, if nothing is."""
        if token and not isinstance(token, bytes):
            there = self.get_state()
            return None if there is None else (*there, False)
        expected, desired = token or NOTHING, b64encode(state)
        if expected == desired and self.get_state() is None:
            return None  # a store says the same of a key that is missing as of one that has this very value
        stored = self._swap(expected, desired)
        if stored == NOTHING != desired and not token:
            # Not even the place-holder is there: the store was emptied.
            self._put_place_holder()
            stored = self._swap(expected, desired)
        if stored == desired:
            return state, desired, True
        if stored == expected:
            # Nothing is there at all: a store answers so when a key that should have a value has none.
            return None
        there = self._decode(stored)
        return None if there is None else (*there, False)

    def renewed(self, store: Any) -> Any:
        """The store that this was made with, over a new connection if its server was restarted; any other one as it is."""
        if store is not self._given or not self._reconnects:
            return store
        try:
            store.num_keys()
        except FAILURES:
            with suppress(*FAILURES):  # a server that is away is told of to whoever uses the store
                _check_listening(store)
                self._given = store.clone()
        return self._given

    def close(self) -> None:
        """Let go of the store; its server, where this process has that, ends with the last that uses it."""
        for store in (self._store, self._given):
            if isinstance(store, (TcpStore, FileStore)) and store is not self.served:
                store.close()
        self._store = self._given = self.served = None

    def _put_place_holder(self) -> None:
        """Put the place-holder there if nothing is, as PyTorch does; a store that cannot be used says so by that."""
        self._call(lambda store: store.compare_set(self._key, "", NOTHING.decode()))

    def _swap(self, expected: bytes, desired: bytes) -> bytes:
        return self._call(lambda store: store.compare_set(self._key, expected.decode(), desired.decode()))

    def _decode(self, stored: bytes) -> tuple[bytes, Any] | None:
        return None if stored == NOTHING else (decode_document(stored, self._key), stored)

    def _call(self, action: Callable[[Any], bytes | str]) -> bytes:
        try:
            if self._store is None:
                _check_listening(self._given)
                self._store = self._given.clone()
            value = action(self._store)
        except FAILURES as exc:
            if self._reconnects:
                self._store = None  # a connection that failed is made anew for the next call
            raise RendezvousConnectionError(
                f"the store of the run cannot be used: {str(exc) or type(exc).__name__}"
            ) from exc
        return value.encode() if isinstance(value, str) else bytes(value)


def innermost(store: Any) -> Any:
    """The store that prefixes are put before."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return store


def _check_listening(store: Any) -> None:
    """See that a server listens where the store was: torch's client would try to connect for a minute."""
    inner = innermost(store)
    socket.create_connection((inner.host, inner.port), PROBE_S).close()
