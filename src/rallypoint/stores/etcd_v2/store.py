"""A store on etcd's API v2: each key and each entry of a queue is a key of etcd's, read and watched by itself.

Names and values are written as torch's EtcdStore writes them, so that both can share a store.  Queues lie in a
hidden directory beside the values.
"""

from __future__ import annotations

import copy
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

from rallypoint import forks
from rallypoint.stores.base import DEFAULT_TIMEOUT, Store, decode_key, encode_value, in_64_bits
from rallypoint.stores.data import read_number, sum_of, swapped
from rallypoint.stores.errors import QueueEmptyError, StoreError, StoreTimeoutError
from rallypoint.stores.etcd_v2.encoding import (
    as_file,
    as_name,
    as_names,
    as_text,
    decoded,
    mark,
    of_file,
    shown,
    unmarked,
)
from rallypoint.stores.etcd_v2.keys import PAST, Answer, EtcdAwayError, EtcdNode, Keys, step_back
from rallypoint.stores.etcd_v2.watch import wait_for_event
from rallypoint.waiting import Deadline

_LONGEST_PATH = 3500
"""etcd hangs up on a request whose first 4,096 bytes do not hold all of its address."""

_QUEUES = "_queues"
_CLAIM_TTL_S = 60
_HISTORY = 900
"""How many events etcd's history of 1,000 is trusted to reach back."""
_MANY = 16
"""From so many keys on, one look at the whole directory is cheaper than one at each of them."""

T = TypeVar("T")


class EtcdStoreTimeoutError(StoreTimeoutError, LookupError):
    """Nothing came in time; torch's EtcdStore raises a LookupError then."""


class EtcdStoreValueError(StoreError, ValueError):
    """A value is no number; torch's EtcdStore raises a ValueError then."""


class EtcdV2Store(Store):
    """The keys under one directory; it is made by the parameters of torch's EtcdStore.

    With `ttl_s`, keys expire when so much time has passed after the last process that wrote or read them has gone: as
    long as it is there, it prolongs them.
    """

    def __init__(
        self, etcd_client: Any, etcd_store_prefix: str, timeout: timedelta | None = None, *, ttl_s: int | None = None
    ) -> None:
        self._client = etcd_client
        self._keys = Keys.of(etcd_client)
        self._prefix = "/" + etcd_store_prefix.strip("/")
        self._ttl_s = ttl_s
        self._used = _Used(self._keys, ttl_s) if ttl_s is not None else None
        self.set_timeout(DEFAULT_TIMEOUT if timeout is None else timeout)

    @property
    def client(self) -> Any:
        """The client of python-etcd that it was made with."""
        return self._client

    @property
    def prefix(self) -> str:
        """The directory of its keys, with a slash at the end."""
        return f"{self._prefix}/"

    @property
    def host(self) -> str:
        """The host of the member that is asked first: by the way to it, a node knows its own address."""
        return urlsplit(self._keys.member).hostname or "localhost"

    @property
    def port(self) -> int:
        """The port of that member."""
        return urlsplit(self._keys.member).port or 2379

    def clone(self) -> EtcdV2Store:
        return copy.copy(self)

    # Values -----------------------------------------------------------------------------------------------------------

    def set(self, key: str | bytes, value: bytes | str) -> None:
        self.multi_set([key], [value])

    def multi_set(self, keys: Sequence[str | bytes], values: Sequence[bytes | str]) -> None:
        names = as_names(keys)
        if len(names) != len(values):
            raise ValueError(f"{len(names)} keys do not go with {len(values)} values")
        for path, text in list(zip(map(self._path, names), map(as_text, values), strict=True)):
            self._keys.write(path, text, self._request_deadline(), ttl_s=self._ttl_s)
            self._use(path)

    def get(self, key: str | bytes) -> bytes:
        return self.multi_get([key])[0]

    def multi_get(self, keys: Sequence[str | bytes]) -> list[bytes]:
        names, deadline = as_names(keys), self._deadline()
        while True:
            values, since = self._values(names, self._look(deadline))
            missing = [name for name in names if name not in values]
            if not missing:
                return [values[name] for name in names]
            self._next(self._places(missing[0]), since, deadline, f"get {shown(*names)}", missing)

    def add(self, key: str | bytes, num: int) -> int:
        in_64_bits(num)
        name = as_name(key)

        def decide(present: bytes | None) -> tuple[int, bytes | None]:
            try:
                total = sum_of(name, present, num)
            except StoreError as exc:
                raise EtcdStoreValueError(str(exc)) from None
            text = b"%d" % total
            return total, None if text == present else text

        return self._edit(name, decide)

    def append(self, key: str | bytes, value: bytes | str) -> None:
        more = encode_value(value)
        self._edit(key, lambda present: (None, (present or b"") + more))

    def compare_set(self, key: str | bytes, expected: bytes | str, desired: bytes | str) -> bytes:
        wanted, new = encode_value(expected), encode_value(desired)
        return self._edit(key, lambda present: swapped(present, wanted, new))

    def delete_key(self, key: str | bytes) -> bool:
        path, deadline = self._path(key), self._request_deadline()
        while True:
            node = self._keys.read(path, deadline).node
            if node is None or node.is_directory:
                return False
            if self._keys.delete(path, deadline, index=node.modified):
                return True

    def list_keys(self) -> list[str]:
        nodes = self._keys.read(self._prefix, self._request_deadline()).nodes
        return [decode_key(of_file(node.key)) for node in nodes if not node.is_directory]

    def check(self, keys: Sequence[str | bytes]) -> bool:
        names = as_names(keys)
        return set(names) == set(self._values(names, self._request_deadline())[0])

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
        values, index = self._values(names, self._look(deadline))
        since = {name: index for name in names if name not in values}  # those that are missing
        while since:
            name = next(iter(since))
            event = self._next(self._places(name), since[name], deadline, asked, list(since))
            if event is None or event.node is None:
                values, now = self._values(since, self._look(deadline))
                # What came and went meanwhile is in etcd's history, as far as that reaches back.
                since = {name: now if now - at > _HISTORY else at for name, at in since.items() if name not in values}
            elif event.action in PAST:
                since[name] = event.node.modified
            else:
                del since[name]

    def queue_push(self, key: str | bytes, value: bytes | str) -> None:
        path = f"{self._queue(as_name(key))}/{secrets.token_hex(12)}"
        self._keys.swap(path, as_text(value), self._request_deadline(), ttl_s=self._ttl_s)
        self._use(path)

    def queue_pop(self, key: str | bytes, block: bool = True) -> bytes:
        name = as_name(key)
        queue, deadline = self._queue(name), self._deadline()
        asked = f"pop from the queue {shown(key)}"
        while True:
            entries, since = self._entries(queue, self._look(deadline))
            for entry in entries:
                if (value := self._claim(entry)) is not None:
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

    def _edit(self, key: str | bytes, decide: Callable[[bytes | None], tuple[T, bytes | None]]) -> T:
        """Read a value and write what `decide` makes of it, until nobody else has written in between; None: it stays."""
        path, deadline, conflicts = self._path(key), self._request_deadline(), 0
        while True:
            node = self._keys.read(path, deadline).node
            if node is not None and node.is_directory:
                node = None
            result, new = decide(None if node is None else decoded(node.value, path))
            if new is None:
                return result
            text, index, started = as_text(new) + mark(), None if node is None else node.modified, time.monotonic()
            if self._keys.swap(path, text, deadline, index=index, ttl_s=self._ttl_s).done:
                self._use(path)
                return result
            conflicts += 1
            step_back(conflicts, time.monotonic() - started, deadline)

    def _values(self, names: Iterable[bytes], deadline: Deadline) -> tuple[dict[bytes, bytes], int]:
        """The values that are there, those of queues empty, and an index before which nothing was overlooked."""
        wanted = {name: as_file(name) for name in names}
        if len(wanted) > _MANY:
            answers = [self._keys.read(self._prefix, deadline)]
            nodes = list(answers[0].nodes)
        else:
            answers = [self._keys.read(self._path(name), deadline) for name in wanted]
            nodes = [answer.node for answer in answers if answer.node is not None]
        there = {node.key.rpartition("/")[2]: node for node in nodes if not node.is_directory}
        found = {name: decoded(there[file].value, there[file].key) for name, file in wanted.items() if file in there}
        self._use(*map(self._path, found))
        queues = [name for name in wanted if name not in found and self._entries(self._queue(name), deadline)[0]]
        return found | dict.fromkeys(queues, b""), min((answer.at for answer in answers), default=0)

    def _entries(self, queue: str, deadline: Deadline) -> tuple[list[EtcdNode], int]:
        """What stands in a queue, the oldest first; what somebody has taken already is passed over."""
        answer = self._keys.read(queue, deadline)
        free = [node for node in answer.nodes if unmarked(node.value) == node.value]
        return sorted(free, key=lambda node: node.created), answer.at

    def _claim(self, entry: EtcdNode) -> bytes | None:
        """Take an entry: by a mark first, which tells after a lost answer who has it."""
        marked, deadline = entry.value + mark(), self._request_deadline()
        if not self._keys.swap(entry.key, marked, deadline, index=entry.modified, ttl_s=_CLAIM_TTL_S).done:
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

    def add(self, paths: Iterable[str]) -> None:
        if (
            not self._started_in.is_this_process
        ):  # the parent prolongs what it has used, and this child what it will use
            self._start()
        self._paths.update(paths)

    def _start(self) -> None:
        self._started_in, self._paths, ended = forks.OpenedIn(), set[str](), threading.Event()
        prolong = partial(_prolong, self._keys, self._ttl_s, self._paths, ended)
        weakref.finalize(self, ended.set).atexit = False
        threading.Thread(target=prolong, name="etcd-keys", daemon=True).start()


def _prolong(keys: Keys, ttl_s: int, paths: set[str], ended: threading.Event) -> None:
    while not ended.wait(ttl_s / 2):
        for path in list(paths):
            try:
                alive = keys.prolong(path, ttl_s, Deadline.after(keys.request_timeout_s))
            except EtcdAwayError:
                break  # the next time
            except StoreError:
                alive = False
            if not alive:
                paths.discard(path)
