"""The document of a run under one key of etcd, by its API v2, as PyTorch writes it; its token is the index of the last change."""

from __future__ import annotations

import random
import time
from base64 import b64encode
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from rallypoint.errors import RendezvousConnectionError
from rallypoint.stores.documents import decode_document
from rallypoint.stores.errors import StoreError
from rallypoint.stores.etcd_v2.keys import Keys
from rallypoint.waiting import Deadline

DEFAULT_TTL_S = 7200

T = TypeVar("T")


class EtcdV2Document:
    """The document under one key; `client` is one of python-etcd.

    The key lives for `ttl` seconds after it was last written or read by a live node, so that a run that everybody has
    left is forgotten.
    """

    def __init__(self, client: Any, run_id: str, key_prefix: str | None = None, ttl: int | None = None) -> None:
        self._keys = Keys.of(client)
        self._path = "/" + f"{key_prefix or ''}/{run_id}".lstrip("/")
        self._ttl_s = DEFAULT_TTL_S if not ttl or ttl < 0 else ttl
        self._prolong_at = self._next_prolonging()

    def get_state(self) -> tuple[bytes, Any] | None:
        """The document and its token, or None."""
        read = partial(self._keys.read, self._path)
        node = self._call(read).node
        if node is not None and time.monotonic() >= self._prolong_at:
            self._prolong_at = self._next_prolonging()
            self._call(partial(self._keys.prolong, self._path, self._ttl_s))
            node = self._call(read).node
        if node is None:
            return None
        return decode_document(node.value.encode(errors="replace"), self._path), node.modified

    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, Any, bool] | None:
        """Write if the token is still that of what is there, or, without one, if nothing is.

        A token is whatever `int()` takes; anything else fits nothing.  RendezvousConnectionError for a token where nothing
        is there at all.
        """
        try:
            index = int(token) if token else None
        except (TypeError, ValueError, OverflowError):
            there = self.get_state()
            return None if there is None else (*there, False)
        text = b64encode(state).decode()
        swap = partial(self._keys.swap, self._path, text, index=index or None, ttl_s=self._ttl_s)
        swapped = self._call(swap)
        if swapped.done:
            self._prolong_at = self._next_prolonging()
            return state, swapped.modified, True
        there = self.get_state()
        if there is None and index:
            raise RendezvousConnectionError(
                f"the document of the run cannot be changed: it is not at {self._path} any more, because it has expired or "
                f"was deleted"
            )
        return None if there is None else (*there, False)

    def _call(self, ask: Callable[[Deadline], T]) -> T:
        try:
            return ask(Deadline.after(self._keys.request_timeout_s))
        except StoreError as exc:
            raise RendezvousConnectionError(f"the document of the run cannot be used: {exc}") from exc

    def _next_prolonging(self) -> float:
        # Not everybody at once.
        return time.monotonic() + self._ttl_s * random.uniform(0.2, 0.4)
