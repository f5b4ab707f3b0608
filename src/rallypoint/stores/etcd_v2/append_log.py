"""A roll on etcd's API v2, that many sign at once: each entry is a key of its own, and etcd's own order numbers them.

A counter would do as well, but is written by one at a time: of those who try, one succeeds with each write of etcd's.
"""

from __future__ import annotations

from base64 import b64encode
from datetime import timedelta
from zlib import crc32

from rallypoint.stores.base import Term
from rallypoint.stores.etcd_v2.encoding import as_file, as_value, decoded
from rallypoint.stores.etcd_v2.keys import Keys, token

_ENTRY_TTL_S = 600
"""Nobody deletes entries one by one: who wants to know them looks long before."""


_DIRECTORIES = 256
"""A directory of its own for each roll would stay when its entries are gone; so rolls share some."""


class EtcdRoll:
    """The entries of one name, in one of the directories under `place`."""

    def __init__(self, keys: Keys, place: str, name: bytes) -> None:
        self._keys = keys
        self._directory = f"{place}/{crc32(name) % _DIRECTORIES:02x}"
        self._start = f"{self._directory}/{as_file(name)}."

    def sign(self, entry: bytes) -> int:
        """Add an entry; its number, above those of all that were there before."""
        text = b64encode(as_value(entry)).decode()
        return self._keys.swap(f"{self._start}{token()}", text, self._patience(), ttl_s=_ENTRY_TTL_S).modified

    def after(self, number: int) -> list[tuple[int, bytes]]:
        """The entries with a higher number, in order: once one of them is seen, none can come before it."""
        node = self._keys.read(self._directory, self._patience()).node
        entries = (entry for entry in (node.nodes if node is not None else ()) if entry.key.startswith(self._start))
        return sorted((entry.created, decoded(entry.value, entry.key)) for entry in entries if entry.created > number)

    def _patience(self) -> Term:
        return Term.of(timedelta(seconds=self._keys.patience_s))
