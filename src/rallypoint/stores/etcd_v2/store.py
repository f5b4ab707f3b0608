"""A store on etcd's API v2: each key and each entry of a queue is a key of etcd's, read and watched by itself.

Names and values are written as torch's EtcdStore writes them, so that both can share a store.  Queues lie in a
hidden directory beside the values.
"""

from __future__ import annotations

import threading
import time
import weakref
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from rallypoint import forks
from rallypoint.stores.base import DEFAULT_TIMEOUT, Store, decode_key, in_64_bits
from rallypoint.stores.data import read_number, sum_of
from rallypoint.stores.errors import QueueEmptyError, StoreError, StoreTimeoutError
from rallypoint.stores.etcd_v2.encoding import (
    as_file,
    as_name,
    as_names,
    as_value,
    decoded,
    of_file,
    refuse_large,
    shown,
)
from rallypoint.stores.etcd_v2.keys import PAST, Answer, EtcdAwayError, EtcdNode, Keys, mark, step_back, token, unmarked
from rallypoint.stores.etcd_v2.watch import wait_for_event
from rallypoint.waiting import Deadline

_LONGEST_PATH = 3500
"""etcd hangs up on a request whose first 4,096 bytes do not hold all of its address."""

_QUEUES = "_queues"
_CLAIM_TTL_S = 60
_MOST_REMEMBERED, _LONGEST_REMEMBERED = 64, 1024
_HISTORY = 900
"""How many events etcd's history of 1,000 is trusted to reach back."""
_MANY = 16
"""From so many keys on, one look at the whole directory is cheaper than one at each of them."""


class EtcdStoreTimeoutError(StoreTimeoutError, LookupError):
    """Nothing came in time; torch's EtcdStore raises a LookupError then."""


class EtcdStoreValueError(StoreError, ValueError):
    """A value is no number; torch's EtcdStore raises a ValueError then."""


class EtcdV2Store(Store):
    """The keys under one directory.

    With `ttl_s`, keys expire when so much time has passed after the last process that wrote or read them has gone: as
    long as it is there, it prolongs them.
    """

    def __init__(self, client: Any, prefix: str, timeout: timedelta | None = None, *, ttl_s: int | None = None) -> None:
        self._client = client
        self._keys = Keys.of(client)
        self._prefix = "/" + prefix.strip("/")
        self._ttl_s = ttl_s
        self._used = _Used(self._keys, ttl_s) if ttl_s is not None else None
        self._written: dict[str, str] = {}
        self._lock = threading.Lock()
        forks.release_in_children(self)
        self.set_timeout(DEFAULT_TIMEOUT if timeout is None else timeout)

    # Values -----------------------------------------------------------------------------------------------------------

    def set(self, key: str | bytes, value: bytes | str) -> None:
        path = self._path(key)
        self._keys.write(path, b64encode(as_value(value)).decode(), self._request_deadline(), ttl_s=self._ttl_s)
        self._use(path)

    def get(self, key: str | bytes) -> bytes:
        return self._await_values([as_name(key)], f"get {shown(key)}")[0]

    def multi_get(self, keys: Sequence[str | bytes]) -> list[bytes]:
        names = as_names(keys)
        return self._await_values(names, f"get {shown(*names)}")

    def multi_set(self, keys: Sequence[str | bytes], values: Sequence[bytes | str]) -> None:
        names = as_names(keys)
        if len(names) != len(values):
            raise ValueError(f"{len(names)} keys do not go with {len(values)} values")
        for name, value in zip(names, list(map(as_value, values)), strict=True):
            self.set(name, value)

    @property
    def client(self) -> Any:
        """The client of python-etcd that it was made with."""
        return self._client

    @property
    def prefix(self) -> str:
        """The directory of its keys, with a slash at the end."""
        return f"{self._prefix}/"

    def add(self, key: str | bytes, num: int) -> int:
        in_64_bits(num)
        name = as_name(key)
        total = 0

        def plus(present: bytes | None) -> bytes | None:
            nonlocal total
            try:
                total = sum_of(name, present, num)
            except StoreError as exc:
                raise EtcdStoreValueError(str(exc)) from None
            text = b"%d" % total
            return None if text == present else text

        self._edit(name, plus)
        return total

    def append(self, key: str | bytes, value: bytes | str) -> None:
        more = as_value(value)
        self._edit(as_name(key), lambda present: (present or b"") + more)

    def compare_set(self, key: str | bytes, expected: bytes | str, desired: bytes | str) -> bytes:
        wanted, new = as_value(expected), as_value(desired)

        there = [wanted]

        def edit(present: bytes | None) -> bytes | None:
            there[0] = wanted if present is None else present
            return new if present == wanted or (present is None and not wanted) else None

        written = self._edit(as_name(key), edit, first=wanted)
        return there[0] if written is None else written

    def delete_key(self, key: str | bytes) -> bool:
        path, deadline = self._path(key), self._request_deadline()
        while True:
            node = self._keys.read(path, deadline).node
            if node is None or node.is_directory:
                return False
            if self._keys.delete(path, deadline, index=node.modified):
                return True

    def num_keys(self) -> int:
        return len(self._listing(self._request_deadline()))

    def list_keys(self) -> list[str]:
        return [decode_key(name) for name in self._listing(self._request_deadline())]

    def check(self, keys: Sequence[str | bytes]) -> bool:
        return not self._missing(as_names(keys), self._request_deadline())[0]

    # Waiting ----------------------------------------------------------------------------------------------------------

    def wait(
        self,
        keys: Sequence[str | bytes],
        timeout: timedelta | None = None,
        *,
        override_timeout: timedelta | None = None,
    ) -> None:
        names = as_names(keys)
        asked = f"wait for {shown(*names)}"
        deadline = self._deadline(override_timeout if timeout is None else timeout)
        missing, index = self._missing(names, self._look(deadline))
        since = dict.fromkeys(missing, index)
        while missing:
            name = missing[0]
            event = self._next(self._places(name), since[name], deadline, asked, missing)
            if event is None or event.node is None:
                missing, now = self._missing(missing, self._look(deadline))
                # What came and went meanwhile is in etcd's history, as far as that reaches back.
                since = {name: now if now - since[name] > _HISTORY else since[name] for name in missing}
            elif event.action in PAST:
                since[name] = event.node.modified
            else:
                missing = missing[1:]

    def queue_push(self, key: str | bytes, value: bytes | str) -> None:
        path = f"{self._queue(as_name(key))}/{token()}"
        self._keys.swap(path, b64encode(as_value(value)).decode(), self._request_deadline(), ttl_s=self._ttl_s)
        self._use(path)

    def queue_pop(self, key: str | bytes, block: bool = True) -> bytes:
        name = as_name(key)
        queue, deadline = self._queue(name), self._deadline()
        asked = f"pop from the queue {shown(key)}"
        while True:
            entries, since = self._entries(queue, self._look(deadline))
            for entry in entries:
                value = self._claim(entry)
                if value is not None:
                    return value
            if entries:
                continue
            if not block:
                raise QueueEmptyError(f"the queue {shown(key)} is empty")
            self._next([(queue, True)], since, deadline, asked, [])

    def queue_len(self, key: str | bytes) -> int:
        return len(self._entries(self._queue(as_name(key)), self._request_deadline())[0])

    def barrier(self, key: str | bytes, world_size: int, timeout: timedelta | None = None) -> None:
        in_64_bits(world_size)
        name, deadline = as_name(key), self._deadline(timeout)
        path, asked = self._path(name), f"barrier {shown(key)} of {world_size}"
        count = self.add(name, 1)
        while count < world_size:
            answer = self._keys.read(path, self._look(deadline))
            count = read_number(decoded(answer.node.value, path)) or 0 if answer.node is not None else 0
            if count < world_size:
                self._next([(path, False)], answer.at, deadline, asked, [])

    # The rest ---------------------------------------------------------------------------------------------------------

    @property
    def host(self) -> str:
        """The host of the member that is asked first: by the way to it, a node knows its own address."""
        return urlsplit(self._keys.member).hostname or "localhost"

    @property
    def port(self) -> int:
        """The port of that member."""
        return urlsplit(self._keys.member).port or 2379

    def clone(self) -> EtcdV2Store:
        other = EtcdV2Store(self._client, self._prefix, self._timeout)
        other._ttl_s, other._used = self._ttl_s, self._used
        return other

    def forked(self) -> None:
        """In a forked child: it goes on over connections of its own."""
        self._lock = threading.Lock()

    # Inside -----------------------------------------------------------------------------------------------------------

    def _path(self, key: str | bytes) -> str:
        path = f"{self._prefix}/{as_file(as_name(key))}"
        if len(path) > _LONGEST_PATH:
            raise StoreError(
                f"the key {shown(key)[:40]}... is too long for etcd: with its directory it makes {len(path):,} letters, "
                f"and {_LONGEST_PATH:,} are the most"
            )
        return path

    def _queue(self, name: bytes) -> str:
        return f"{self._prefix}/{_QUEUES}/{as_file(name)}"

    def _places(self, name: bytes) -> list[tuple[str, bool]]:
        return [(self._path(name), False), (self._queue(name), True)]

    def _request_deadline(self) -> Deadline:
        return Deadline.after(self._keys.request_timeout_s)

    def _look(self, deadline: Deadline) -> Deadline:
        """For a look in the course of a wait: it is made even when the time is over, and then waits for nobody."""
        return Deadline.after(max(deadline.left_s(), min(self._keys.request_timeout_s, 1.0)))

    def _use(self, *paths: str) -> None:
        if self._used is not None:
            self._used.add(paths)

    def _edit(
        self, name: bytes, edit: Callable[[bytes | None], bytes | None], *, first: bytes | None = None
    ) -> bytes | None:
        """Read, change and write a value, until nobody else has written in between; None where it is to stay.

        Where `first` is the only value that would be changed, it is not read if it is nothing, or what this store wrote
        last: then the write alone tells whether it is so.
        """
        path, deadline = self._path(name), self._request_deadline()
        raw, index = self._supposed(path, first) or self._raw(path, deadline)
        conflicts = 0
        while True:
            new = edit(None if raw is None else decoded(raw, path))
            if new is None:
                return None
            refuse_large(new)
            text = b64encode(new).decode() + mark()
            started = time.monotonic()
            if raw:
                swapped = self._keys.swap(path, text, deadline, before=raw, ttl_s=self._ttl_s)
            else:  # nothing, or an empty value, which etcd cannot compare with
                swapped = self._keys.swap(path, text, deadline, index=index, ttl_s=self._ttl_s)
            if swapped.done:
                self._use(path)
                if first is not None:
                    self._remember(path, text)
                return new
            conflicts += 1
            step_back(conflicts, time.monotonic() - started, deadline)
            raw, index = self._raw(path, deadline)  # what stood in the way may be old by now

    def _supposed(self, path: str, value: bytes | None) -> tuple[str | None, int | None] | None:
        """How etcd would hold this value of a key, where that is known without asking."""
        if value is None:
            return None
        raw = self._written.get(path)
        if raw is not None:
            return (raw, None) if decoded(raw, path) == value else None
        return None if value else (None, None)

    def _remember(self, path: str, raw: str) -> None:
        """What this store wrote last, of the keys that it wrote last, where that is short: signs of life are."""
        with self._lock:
            self._written.pop(path, None)
            if len(raw) <= _LONGEST_REMEMBERED:
                self._written[path] = raw
            if len(self._written) > _MOST_REMEMBERED:
                del self._written[next(iter(self._written))]

    def _raw(self, path: str, deadline: Deadline) -> tuple[str | None, int | None]:
        node = self._keys.read(path, deadline).node
        return (None, None) if node is None or node.is_directory else (node.value, node.modified)

    def _await_values(self, names: list[bytes], asked: str) -> list[bytes]:
        deadline = self._deadline()
        while True:
            values, since = self._values(names, self._look(deadline))
            missing = [name for name in names if name not in values]
            if not missing:
                return [values[name] for name in names]
            self._next(self._places(missing[0]), since, deadline, asked, missing)

    def _values(self, names: Iterable[bytes], deadline: Deadline) -> tuple[dict[bytes, bytes], int]:
        """The values that are there, those of queues empty, and an index before which nothing was overlooked."""
        wanted = list(dict.fromkeys(names))
        found: dict[bytes, bytes] = {}
        since = -1
        if len(wanted) > _MANY:
            answer = self._keys.read(self._prefix, deadline)
            since = answer.at
            nodes = {node.key.rpartition("/")[2]: node for node in (answer.node.nodes if answer.node else ())}
            for name in wanted:
                node = nodes.get(as_file(name))
                if node is not None and not node.is_directory:
                    found[name] = decoded(node.value, node.key)
        else:
            for name in wanted:
                answer = self._keys.read(self._path(name), deadline)
                since = answer.at if since < 0 else min(since, answer.at)
                if answer.node is not None and not answer.node.is_directory:
                    found[name] = decoded(answer.node.value, answer.node.key)
        self._use(*(self._path(name) for name in found))
        for name in wanted:
            if name not in found and self._entries(self._queue(name), deadline)[0]:
                found[name] = b""
        return found, max(since, 0)

    def _missing(self, names: list[bytes], deadline: Deadline) -> tuple[list[bytes], int]:
        values, since = self._values(names, deadline)
        return [name for name in dict.fromkeys(names) if name not in values], since

    def _listing(self, deadline: Deadline) -> list[bytes]:
        answer = self._keys.read(self._prefix, deadline)
        nodes = answer.node.nodes if answer.node is not None else ()
        return [of_file(node.key.rpartition("/")[2]) for node in nodes if not node.is_directory]

    def _entries(self, queue: str, deadline: Deadline) -> tuple[list[EtcdNode], int]:
        """What stands in a queue, the oldest first; what somebody has taken already is passed over."""
        answer = self._keys.read(queue, deadline)
        nodes = answer.node.nodes if answer.node is not None else ()
        free = [node for node in nodes if unmarked(node.value) == node.value]
        return sorted(free, key=lambda node: node.created), answer.at

    def _claim(self, entry: EtcdNode) -> bytes | None:
        """Take an entry: by a mark first, which tells after a lost answer who has it."""
        deadline = self._request_deadline()
        if not self._keys.swap(
            entry.key, entry.value + mark(), deadline, index=entry.modified, ttl_s=_CLAIM_TTL_S
        ).done:
            return None
        self._keys.delete(entry.key, deadline)
        return decoded(entry.value, entry.key)

    def _next(
        self, places: list[tuple[str, bool]], since: int, deadline: Deadline, asked: str, missing: list[bytes]
    ) -> Answer | None:
        left_s = deadline.left_s()
        if left_s <= 0:
            left = f"; still missing: {shown(*missing)}" if missing else ""
            raise EtcdStoreTimeoutError(f"{asked}: not within {deadline.timeout_s:g} s{left}")
        return wait_for_event(self._keys, places, since, left_s)


class _Used:
    """Prolongs the keys that this process has used, from a thread that ends with the last store that needs it."""

    def __init__(self, keys: Keys, ttl_s: int) -> None:
        self._keys, self._ttl_s = keys, ttl_s
        self._start()
        forks.release_in_children(self)

    def add(self, paths: Iterable[str]) -> None:
        """These are in use."""
        if self._is_parents:
            self._start()
        with self._lock:
            self._paths.update(paths)

    def forked(self) -> None:
        """In a forked child: the parent prolongs what it has used, and the child what it will use."""
        self._is_parents = True

    def _start(self) -> None:
        self._is_parents = False
        self._paths: set[str] = set()
        self._lock = threading.Lock()
        ended = threading.Event()
        thread = threading.Thread(
            target=_prolong,
            args=(self._keys, self._ttl_s, self._paths, self._lock, ended),
            name="etcd-keys",
            daemon=True,
        )
        weakref.finalize(self, ended.set).atexit = False
        thread.start()


def _prolong(keys: Keys, ttl_s: int, paths: set[str], lock: threading.Lock, ended: threading.Event) -> None:
    while not ended.wait(ttl_s / 2):
        with lock:
            present = list(paths)
        for path in present:
            try:
                alive = keys.prolong(path, ttl_s, Deadline.after(keys.request_timeout_s))
            except EtcdAwayError:
                break  # the next time
            except StoreError:
                alive = False
            if not alive:
                with lock:
                    paths.discard(path)
