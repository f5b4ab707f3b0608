"""Where a store on etcd v3 keeps what: the names of its keys, and how a value is written.  Pure.

Everything lies under `<prefix>/~…`, and no part of a prefix begins with a tilde: so no store lies among another's keys,
whatever their names are.  A value and a queue of the same name are neighbours, so that one watch sees both.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from rallypoint.stores.errors import StoreError

_VALUE, _QUEUE, _BEHIND = b"=", b">", b"?"  # neighbours in this order
_PLAIN, _SPLIT = b"=", b"+"


class SplitValue(NamedTuple):
    """A value that is too large for one key: where its parts lie, how many they are, and how long it is."""

    folder: bytes
    parts: int
    size: int


class Queue(NamedTuple):
    """The numbers of a queue's first entry, and of the next one to come.  An empty queue has no key."""

    first: int
    after: int


class KeyLayout:
    """The keys of one store."""

    def __init__(self, prefix: str) -> None:
        stem = prefix.rstrip("/")
        if not stem:
            raise ValueError(f"a store on etcd needs a prefix for its keys, not {prefix!r}")
        if any(part.startswith("~") for part in stem.split("/")):
            raise ValueError(f"no part of a prefix may begin with a tilde, which marks a store's own keys: {prefix!r}")
        self.prefix = stem
        start = stem.encode() + b"/~"
        self.keys = start + b"keys/"
        self._entries, self._parts, self._receipts = start + b"entries/", start + b"parts/", start + b"receipts/"

    def value(self, name: bytes) -> bytes:
        return self.keys + name + _VALUE

    def queue(self, name: bytes) -> bytes:
        """Where it says which entries a queue has."""
        return self.keys + name + _QUEUE

    def behind(self, name: bytes) -> bytes:
        """The end of a range that begins with the value and holds the queue as well; others may lie between them."""
        return self.keys + name + _BEHIND

    def of_value(self, key: bytes) -> bytes | None:
        """The name of a value by its key; None where that is a queue's."""
        return key[len(self.keys) : -1] if key.endswith(_VALUE) else None

    def entries(self, name: bytes) -> bytes:
        """What the keys of a queue's entries begin with."""
        return self._entries + _digest(name) + b"/"

    def entry(self, name: bytes, number: int) -> bytes:
        return self.entries(name) + b"%016x" % number

    def parts(self, key: bytes) -> bytes:
        """What the keys of all parts of what stands at a key begin with."""
        return self._parts + _digest(key) + b"/"

    def receipt(self, token: str) -> bytes:
        """Where it says what was written last by somebody."""
        return self._receipts + token.encode()


def part(folder: bytes, number: int) -> bytes:
    """Where a part of a large value lies."""
    return folder + b"%08x" % number


def written(value: bytes | SplitValue) -> bytes:
    """What etcd holds for a value."""
    if isinstance(value, SplitValue):
        return _SPLIT + b"%d %d " % (value.parts, value.size) + value.folder
    return _PLAIN + value


def read_value(raw: bytes, key: bytes) -> bytes | SplitValue:
    """The value in what etcd holds; StoreError where that is none of ours."""
    if raw.startswith(_PLAIN):
        return raw[1:]
    if raw.startswith(_SPLIT):
        count, _, rest = raw[1:].partition(b" ")
        size, _, folder = rest.partition(b" ")
        if count.isdigit() and size.isdigit() and folder:
            return SplitValue(folder, int(count), int(size))
    raise _strange(raw, key)


def written_queue(queue: Queue) -> bytes:
    """What etcd holds for a queue."""
    return b"%d %d" % queue


def read_queue(raw: bytes, key: bytes) -> Queue:
    """The queue in what etcd holds; StoreError where that is none."""
    first, _, after = raw.partition(b" ")
    if first.isdigit() and after.isdigit() and int(first) < int(after):
        return Queue(int(first), int(after))
    raise _strange(raw, key)


def _strange(raw: bytes, key: bytes) -> StoreError:
    return StoreError(
        f"{key!r} holds {raw[:40]!r}, which no store has written: something else uses this store's prefix"
    )


def _digest(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=16).hexdigest().encode()
