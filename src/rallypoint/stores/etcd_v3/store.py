"""A store on etcd v3: each value and each entry of a queue is a key of etcd's; waiting is a watch, a change a transaction.

Two handles in one process share its one connection to etcd.  What each call asks of etcd is here; how a change happens
exactly once, how a large value is kept and what the keys are called is in the modules beside this one.
"""

from __future__ import annotations

import copy
import itertools
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TypeVar

from rallypoint.etcd_client import EtcdClient, KeyValue, Lease, compare, delete_op, get_op, put_op
from rallypoint.etcd_client.errors import EtcdCompactedError, EtcdError, EtcdForkError, EtcdLeaseLostError
from rallypoint.etcd_client.messages import RangeResponse, RequestOp
from rallypoint.stores.base import (
    DEFAULT_TIMEOUT,
    Store,
    decode_key,
    encode_key,
    encode_keys,
    encode_pairs,
    encode_value,
    in_64_bits,
    name_some,
)
from rallypoint.stores.data import read_number, sum_of, swapped
from rallypoint.stores.errors import QueueEmptyError, StoreError, StoreForkError
from rallypoint.stores.etcd_v3.exactly_once import ExactlyOnce, GuardedWrite, StoreLease
from rallypoint.stores.etcd_v3.key_layout import KeyLayout, Queue, SplitValue, read_queue, read_value, written_queue
from rallypoint.stores.etcd_v3.large_values import PART_BYTES, LargeValues
from rallypoint.stores.etcd_v3.watcher import NAMES_AT_ONCE, KeyWatcher, look_s
from rallypoint.stores.tcp.wire import Query, StoreLimits, why_too_large

T = TypeVar("T")


class EtcdV3Store(Store):
    """The keys under a prefix of an etcd cluster.

    Everything that is written hangs on `lease`, if there is one: a lease of the client's, or the number of one that
    somebody else keeps.  When it is lost, the store is over, and every call is a `StoreError`.  Without a lease, keys
    stay until somebody deletes the prefix.  The client stays yours: the store does not close it.
    """

    def __init__(
        self,
        client: EtcdClient,
        prefix: str,
        *,
        lease: Lease | int | None = None,
        timeout: timedelta = DEFAULT_TIMEOUT,
        limits: StoreLimits | None = None,
    ) -> None:
        self._client = client
        self._names = KeyLayout(prefix)
        self._store_lease = StoreLease(lease, self._names.prefix)
        self._changes = ExactlyOnce(client, self._names, self._store_lease)
        self._values = LargeValues(client, self._names, self._store_lease.lease_id)
        self._watcher = KeyWatcher(client, self._names, self._store_lease, self._values)
        limits = limits or StoreLimits()
        # On the wire of a TCP store a key has a slash in front.
        self._limits = replace(limits, key_bytes=limits.key_bytes - 1)
        self.set_timeout(timeout)

    def __repr__(self) -> str:
        return f"<EtcdV3Store {self._names.prefix!r} on {','.join(self._client.endpoints)}>"

    # Values -----------------------------------------------------------------------------------------------------------

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes | str]) -> None:
        pairs = dict(encode_pairs(keys, values))
        with self._asking(f"set {name_some(keys)}", Query.MULTI_SET, *itertools.chain(*pairs.items())):
            for batch in _batches(pairs):
                self._changes.make(partial(self._writing_all, batch))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        names, deadline, asked = encode_keys(keys), self._deadline(), f"get {name_some(keys)}"
        with self._asking(asked, Query.MULTI_GET, *names):
            while True:
                values, revision = self._watcher.values(names, look_s(deadline))
                missing = frozenset(names) - values.keys()
                if not missing:
                    return [values[name] for name in names]
                self._watcher.wait(missing, revision, deadline, asked)

    def add(self, key: str, amount: int) -> int:
        return self._add(f"add {amount} to {key!r}", encode_key(key), amount)[0]

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        name, wanted, new = encode_key(key), encode_value(expected), encode_value(desired)
        with self._asking(f"compare and set {key!r}", Query.COMPARE_SET, name, wanted, new):
            return self._edit(name, lambda present: swapped(present, wanted, new))[0]

    def append(self, key: str, value: bytes | str) -> None:
        name, more = encode_key(key), encode_value(value)
        with self._asking(f"append to {key!r}", Query.APPEND, name, more):
            self._changes.make(lambda: self._appending(name, more))

    def delete_key(self, key: str) -> bool:
        name = encode_key(key)
        place = self._names.value(name)

        def plan() -> GuardedWrite[bool]:
            found = self._client.range(place, keys_only=True).kvs
            if not found:
                return GuardedWrite(False)
            there = compare(place, mod_revision=found[0].mod_revision)
            return GuardedWrite(True, (there,), (delete_op(place), delete_op(self._names.parts(place), prefix=True)))

        with self._asking(f"delete {key!r}", Query.DELETE, name):
            return self._changes.make(plan)[0]

    def list_keys(self) -> list[str]:
        with self._asking("list the keys"):
            found = self._client.range(self._names.keys, prefix=True, keys_only=True).kvs
        return [decode_key(name) for kv in found if (name := self._names.of_value(kv.key)) is not None]

    def check(self, keys: Sequence[str]) -> bool:
        names = encode_keys(keys)
        with self._asking(f"check {name_some(keys)}", Query.CHECK, *names):
            return not self._watcher.missing(names, None)[0]

    # Waiting ----------------------------------------------------------------------------------------------------------

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        names, deadline = encode_keys(keys), self._deadline(timeout)
        asked = f"wait for {name_some(keys)}"
        with self._asking(asked, Query.WAIT, *names):
            missing, revision = self._watcher.missing(names, look_s(deadline))
            self._watcher.wait(missing, revision, deadline, asked)

    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        in_64_bits(world_size)
        name, deadline = encode_key(key), self._deadline(timeout)
        asked = f"barrier {key!r} of {world_size}"
        here, revision = self._add(asked, name, 1)
        if here >= world_size:
            return

        def is_full(kv: KeyValue) -> bool:
            count = read_value(kv.value, kv.key)
            return not isinstance(count, SplitValue) and (read_number(count) or 0) >= world_size

        with self._asking(asked):
            self._watcher.wait_until(self._names.value(name), revision, deadline, asked, is_full)

    # Queues -----------------------------------------------------------------------------------------------------------

    def queue_push(self, key: str, value: bytes | str) -> None:
        name, new = encode_key(key), encode_value(value)
        with self._asking(f"push to the queue {key!r}", Query.QUEUE_PUSH, name, new):
            # A large one is written once, under a name of its own: the number of the entry is not known yet.
            prepared = self._values.prepare(secrets.token_bytes(16), new)

            def plan() -> GuardedWrite[None]:
                place = self._names.queue(name)
                kv = self._client.get(place)
                first, after = Queue(0, 0) if kv is None else read_queue(kv.value, place)
                unchanged = compare(place, mod_revision=0 if kv is None else kv.mod_revision)
                longer = self._put(place, written_queue(Queue(first, after + 1)))
                entry = self._put(self._names.entry(name, after), prepared.raw)
                return GuardedWrite(None, (unchanged, *prepared.when), (longer, entry))

            self._changes.make(plan)

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        name, deadline = encode_key(key), self._deadline()
        asked = f"pop from the queue {key!r}"
        with self._asking(asked, Query.QUEUE_POP, name):
            while True:
                (popped, revision), _ = self._changes.make(lambda: self._popping(name, look_s(deadline)))
                if popped is not None:
                    return popped
                if not block:
                    raise QueueEmptyError(f"the queue {key!r} is empty")
                self._watcher.wait_until(self._names.queue(name), revision, deadline, asked, lambda _: True)

    def queue_len(self, key: str) -> int:
        name = encode_key(key)
        with self._asking(f"look at the queue {key!r}", Query.QUEUE_LEN, name):
            kv = self._client.get(self._names.queue(name))
        first, after = (0, 0) if kv is None else read_queue(kv.value, kv.key)
        return after - first

    def clone(self) -> EtcdV3Store:
        return copy.copy(self)

    # Changing ---------------------------------------------------------------------------------------------------------

    def _put(self, key: bytes, raw: bytes) -> RequestOp:
        return put_op(key, raw, lease=self._store_lease.lease_id)

    def _writing(self, name: bytes, value: bytes, result: T, seen: int | None = None) -> GuardedWrite[T]:
        """Write a value; given the revision that was seen of it, only if that has not changed."""
        place = self._names.value(name)
        prepared = self._values.prepare(place, value)
        unchanged = () if seen is None else (compare(place, mod_revision=seen),)
        then = (self._put(place, prepared.raw), *prepared.then)
        return GuardedWrite(result, (*unchanged, *prepared.when), then, can_return=seen == 0)

    def _writing_all(self, batch: dict[bytes, bytes]) -> GuardedWrite[None]:
        writes = [self._writing(name, value, None) for name, value in batch.items()]
        when, then = (tuple(itertools.chain(*parts)) for parts in zip(*((w.when, w.then) for w in writes), strict=True))
        return GuardedWrite(None, when, then)

    def _add(self, asked: str, name: bytes, amount: int) -> tuple[int, int]:
        """The sum, and at which revision it was written."""
        in_64_bits(amount)

        def decide(present: bytes | None) -> tuple[int, bytes | None]:
            total = sum_of(name, present, amount)
            text = b"%d" % total
            return total, None if text == present else text

        with self._asking(asked, Query.ADD, name):
            return self._edit(name, decide)

    def _edit(self, name: bytes, decide: Callable[[bytes | None], tuple[T, bytes | None]]) -> tuple[T, int]:
        """Read a value and write what `decide` makes of it; None: it stays as it is."""

        def plan() -> GuardedWrite[T]:
            kv, value = self._watcher.read(self._names.value(name))
            result, new = decide(value)
            if new is None:
                return GuardedWrite(result)
            return self._writing(name, new, result, 0 if kv is None else kv.mod_revision)

        return self._changes.make(plan)

    def _appending(self, name: bytes, more: bytes) -> GuardedWrite[None]:
        place = self._names.value(name)
        kv = self._client.get(place)
        found = b"" if kv is None else read_value(kv.value, place)
        size, longest = (found.size if isinstance(found, SplitValue) else len(found)), self._limits.unread_bytes // 2
        if size + len(more) > longest:
            raise StoreError(
                f"append to {decode_key(name)!r}: {size:,} bytes are there, and with {len(more):,} more they would be over "
                f"the limit of {longest:,}"
            )
        if kv is not None and isinstance(found, SplitValue):
            if len(more) <= PART_BYTES:
                unchanged = compare(place, mod_revision=kv.mod_revision)
                return GuardedWrite(None, (unchanged,), self._values.extend(place, found, more))
            kv, whole = self._watcher.read(place)
            found = whole or b""
        assert isinstance(found, bytes)
        return self._writing(name, found + more, None, 0 if kv is None else kv.mod_revision)

    def _popping(self, name: bytes, timeout_s: float) -> GuardedWrite[tuple[bytes | None, int]]:
        """Take the first entry of a queue.  What it is, None where there is none, and the revision of the look."""
        place, entries = self._names.queue(name), self._names.entries(name)
        while True:
            look = [get_op(place), get_op(entries, prefix=True, limit=1)]
            outcome = self._client.transaction(then=look, timeout_s=timeout_s)
            queues, found = (answer.kvs for answer in outcome.answers if isinstance(answer, RangeResponse))
            if not queues:
                return GuardedWrite((None, outcome.revision))
            queue = read_queue(queues[0].value, place)
            if not found or found[0].key != self._names.entry(name, queue.first):
                raise StoreError(f"somebody has deleted entries of the queue {decode_key(name)!r}")
            try:
                value = self._values.read(found[0], outcome.revision, timeout_s)
            except EtcdCompactedError:
                continue
            rest, parts = Queue(queue.first + 1, queue.after), read_value(found[0].value, found[0].key)
            then = [
                delete_op(found[0].key),
                delete_op(place) if rest.first == rest.after else self._put(place, written_queue(rest)),
            ]
            if isinstance(parts, SplitValue):
                then.append(delete_op(parts.folder, prefix=True))
            unchanged = compare(place, mod_revision=queues[0].mod_revision)
            return GuardedWrite((value, outcome.revision), (unchanged,), tuple(then))

    @contextmanager
    def _asking(self, asked: str, query: Query | None = None, *texts: bytes) -> Iterator[None]:
        """Within, what goes wrong with etcd is a `StoreError` that says what was asked."""
        if query is not None and (why := why_too_large(query, texts, self._limits)):
            raise StoreError(f"{asked}: {why}")
        self._store_lease.check()
        try:
            yield
        except EtcdLeaseLostError as exc:
            raise self._store_lease.over() from exc
        except EtcdError as exc:
            error = StoreForkError if isinstance(exc, EtcdForkError) else StoreError
            raise error(f"{asked}, in the store {self._names.prefix!r}: {exc}") from exc


def _batches(pairs: dict[bytes, bytes]) -> Iterator[dict[bytes, bytes]]:
    """Pairs that fit into a transaction together; a large one goes by itself."""
    batch, size = dict[bytes, bytes](), 0
    for name, value in pairs.items():
        size += len(name) + len(value)
        if batch and (size > PART_BYTES or len(batch) == NAMES_AT_ONCE):
            yield batch
            batch, size = {}, len(name) + len(value)
        batch[name] = value
    if batch:
        yield batch
